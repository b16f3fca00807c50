"""The fields that all methods share, each with one line of documentation and a check."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from prosmin.config.values import check
from prosmin.errors import UsageError

Range = tuple[float, float]


def option(default: Any, doc: str) -> Any:
    """A field with its line of documentation."""
    return dataclasses.field(default=default, metadata={"doc": doc})


def check_at_least(limit: int, group: str, config: object, *names: str) -> None:
    """Refuse fields of a group below `limit`; null passes where the field's type allows it."""
    for name in names:
        value = getattr(config, name)
        check(value is None or value >= limit, f"{group}.{name}", value, f"{limit} or more")


def check_positive(group: str, config: object, *names: str) -> None:
    """Refuse fields of a group that are not above 0; null passes where the field's type allows it."""
    for name in names:
        value = getattr(config, name)
        check(value is None or value > 0, f"{group}.{name}", value, "a number above 0")


def check_share(name: str, value: float) -> None:
    """Refuse a number outside 0 to 1."""
    check(0.0 <= value <= 1.0, name, value, "a share from 0 to 1")


def check_range(name: str, value: Range, low: float, high: float) -> None:
    """Refuse a pair that is not rising or not within the limits."""
    check(low <= value[0] <= value[1] <= high, name, list(value), f"two rising numbers from {low:g} to {high:g}")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The training images."""

    spec: str = option("photos", "training images: photos, folder:PATH, parquet:PATH, torchvision:NAME@ROOT, ...")
    max_bad: float = option(0.01, "share of images that may be unreadable before the run stops")

    def __post_init__(self) -> None:
        check_share("data.max_bad", self.max_bad)


@dataclass(frozen=True, kw_only=True)
class ViewsConfig:
    """The random views of each image. Triples: first global view, second global view, local views."""

    global_size: int = option(32, "side of the two global views in pixels")
    local_size: int = option(16, "side of the local views in pixels")
    local: int = option(2, "number of local views")
    global_scale: Range = option((0.4, 1.0), "share of the image's area that a global view covers")
    local_scale: Range = option((0.05, 0.4), "share of the image's area that a local view covers")
    ratio: Range = option((0.75, 4 / 3), "aspect ratio of a crop")
    interpolation: Literal["bilinear", "bicubic"] = option("bicubic", "interpolation of the resize, always antialiased")
    flip: float = option(0.5, "probability of a horizontal flip")
    jitter: tuple[float, float, float, float] = option((0.4, 0.4, 0.2, 0.1), "brightness, contrast, saturation, hue")
    jitter_p: float = option(0.8, "probability of colour jitter")
    grey: float = option(0.2, "probability of greyscale")
    blur: tuple[float, float, float] = option((1.0, 0.1, 0.5), "probability of a Gaussian blur")
    blur_sigma: Range = option((0.1, 2.0), "standard deviation of the blur in pixels of the view")
    solarise: tuple[float, float, float] = option((0.0, 0.2, 0.0), "probability of solarisation")
    crop_share: float = option(1.0, "evaluation view: share of the shorter side it covers, centred (ImageNet: 0.875)")
    mean: tuple[float, float, float] = option((0.485, 0.456, 0.406), "subtracted from the channels")
    std: tuple[float, float, float] = option((0.229, 0.224, 0.225), "the channels are divided by it")

    def __post_init__(self) -> None:
        check_at_least(1, "views", self, "global_size", "local_size")
        check_at_least(0, "views", self, "local")
        check_range("views.global_scale", self.global_scale, 1e-4, 1.0)
        check_range("views.local_scale", self.local_scale, 1e-4, 1.0)
        check_range("views.ratio", self.ratio, 0.01, 100.0)
        for name in ("flip", "jitter_p", "grey"):
            check_share(f"views.{name}", getattr(self, name))
        for name in ("blur", "solarise"):
            for value in getattr(self, name):
                check_share(f"views.{name}", value)
        check_range("views.blur_sigma", self.blur_sigma, 0.01, 100.0)
        check(0 < self.crop_share <= 1, "views.crop_share", self.crop_share, "a share above 0, at most 1")
        fits = all(0 <= v <= high for v, high in zip(self.jitter, (1, 1, 1, 0.5), strict=True))
        check(fits, "views.jitter", list(self.jitter), "three strengths from 0 to 1, a hue strength from 0 to 0.5")
        check(all(v > 0 for v in self.std), "views.std", list(self.std), "numbers above 0")


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """f: the network whose output is the representation."""

    name: str = option(
        "resnet14_cifar", "a small ResNet (resnet8_cifar ... resnet18_cifar) or any timm ViT or ResNet: [timm:]NAME"
    )
    patch_size: int | None = option(None, "ViT: side of a patch in pixels, if not as the name says")
    width: int | None = option(None, "ViT: embedding width, if not as the name says")
    depth: int | None = option(None, "ViT: number of blocks, if not as the name says")
    heads: int | None = option(None, "ViT: attention heads, if not as the name says")
    drop_path: float = option(0.0, "rate of stochastic depth in the online network")
    weights: str | None = option(
        None,
        "initial weights: pretrained (timm's own), a run, a shipped encoder, or a file of timm, DINO, iBOT, MoCo",
    )
    freeze_epochs: float = option(
        0.0, "epochs in which only the heads learn, below training.epochs; needs backbone.weights"
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name.removeprefix("timm:"))  # both spellings mean the same network
        check_at_least(0, "backbone", self, "freeze_epochs")
        if self.freeze_epochs and self.weights is None:
            raise UsageError(
                f"backbone.freeze_epochs is {self.freeze_epochs:g}, but the backbone starts with random weights. "
                "Give backbone.weights too, or leave it at 0."
            )
        check_at_least(1, "backbone", self, "patch_size", "width", "depth", "heads")
        check(0.0 <= self.drop_path < 1.0, "backbone.drop_path", self.drop_path, "a rate from 0 to below 1")


@dataclass(frozen=True, kw_only=True)
class FollowerConfig:
    """The target network: a moving average of the online network."""

    momentum: float = option(0.9, "share of the target kept at each step, at the start of training")
    momentum_end: float = option(1.0, "the same at the end; cosine schedule in between")
    start: Literal["copy", "independent"] = option(
        "copy", "the target starts as a copy of the online network, or with its own random weights"
    )

    def __post_init__(self) -> None:
        for name in ("momentum", "momentum_end"):
            check_share(f"target.{name}", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class TargetConfig(FollowerConfig):
    """The target network and the centre of its outputs."""

    centre_momentum: float = option(0.9, "share of the centre kept at each step")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("target.centre_momentum", self.centre_momentum)


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW and its schedules."""

    lr: float = option(5e-4, "learning rate for a batch of 256; the one used is lr * batch_size / 256")
    lr_end: float = option(1e-6, "learning rate at the end, not scaled by the batch")
    warmup_epochs: float = option(10.0, "epochs of linear warm-up; at most half of the run is used")
    weight_decay: float = option(0.04, "weight decay at the start, on matrices and filters only")
    weight_decay_end: float = option(0.4, "weight decay at the end; cosine schedule in between")
    clip: float | None = option(3.0, "gradients are clipped to this norm; null: no clipping")
    clip_each: bool = option(
        False, "each parameter's gradient is clipped by its own norm, not all by one; only with optimizer.clip"
    )
    layer_decay: float = option(
        1.0, "the backbone's deepest layer learns at this share of the rate, each layer below at this share of the next"
    )

    def __post_init__(self) -> None:
        check(0 < self.layer_decay <= 1, "optimizer.layer_decay", self.layer_decay, "a factor above 0, at most 1")
        check_at_least(0, "optimizer", self, "lr", "lr_end", "warmup_epochs", "weight_decay", "weight_decay_end")
        check_positive("optimizer", self, "clip")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Length, batch size, checkpoints and logs."""

    epochs: int = option(20, "passes over the images")
    max_steps: int | None = option(None, "stop after this many steps; the schedules still run to `epochs`")
    batch_size: int = option(256, "images per step, over all processes")
    seed: int = option(0, "determines every random number of the run")
    accumulate: int = option(1, "gradient accumulation: parts per step; less memory, the same batch")
    checkpoint_every: int = option(200, "steps between checkpoints")
    checkpoint_minutes: float | None = option(30.0, "minutes between checkpoints, if that is sooner; null: no limit")
    keep: int = option(2, "checkpoints to keep, in addition to the one with the best kNN")
    log_every: int = option(10, "steps between lines of metrics.jsonl")
    logger: Literal["none", "tensorboard", "wandb", "mlflow"] = option(
        "none", "where else the lines of metrics.jsonl go"
    )
    knn_every: int | None = option(None, "steps between kNN on a held-out tenth of the labelled images; null: never")
    knn_pictures: int = option(20000, "labelled images of that kNN, at most; only with training.knn_every")
    encoder: Literal["last", "best"] = option(
        "last", "the encoder to save at the end: the last, or that with the best kNN"
    )
    on_collapse: Literal["warn", "stop"] = option("warn", "what to do if features collapse or the loss diverges")
    guard: float | None = option(
        None,
        "share of the starting encoder's nearest neighbours that the encoder must keep, or its weights are averaged "
        "with the starting ones; only with backbone.weights; null or 0: off",
    )
    guard_every: int | None = option(
        None, "steps between comparisons with the starting encoder; only with backbone.weights; null: 20 per run"
    )

    def __post_init__(self) -> None:
        check_at_least(0, "training", self, "seed")
        check_share("training.guard", self.guard or 0.0)
        check_at_least(1, "training", self, "epochs", "max_steps", "batch_size", "accumulate")
        check_at_least(1, "training", self, "checkpoint_every", "keep", "log_every", "knn_every", "guard_every")
        check_positive("training", self, "checkpoint_minutes")
        check_at_least(100, "training", self, "knn_pictures")
        if self.encoder == "best" and self.knn_every is None:
            raise UsageError("training.encoder is 'best', which needs a kNN evaluation: set training.knn_every too.")


@dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """Hardware and speed. These fields may change when a run is resumed."""

    accelerator: Literal["auto", "cpu", "cuda"] = option("auto", "auto: a GPU if there is one")
    devices: int = option(1, "number of processes, one per device")
    precision: Literal["32-true", "bf16-mixed", "64-true"] = option("32-true", "precision of the networks")
    compile: Literal["none", "blocks", "whole"] = option(
        "none", "torch.compile: blocks (ViT blocks and heads) compiles in seconds; whole takes minutes and is faster"
    )
    graph: bool = option(
        False,
        "record a step as a CUDA graph and replay it, which speeds up small networks most; only with one GPU, "
        "training.accumulate 1, no drop_path and no checkpoint_activations",
    )
    checkpoint_activations: bool = option(False, "ViT: recompute activations in the backward pass, for less memory")
    resident_gib: float = option(2.0, "decoded image sets up to this size stay on the device; larger ones are streamed")
    deterministic: bool = option(
        False,
        "meant to give a resumed run on the same kind of GPU the same bits as one that was not stopped; may be slower",
    )
    nvjpeg: bool = option(False, "decode streamed JPEGs on the GPU, for machines with few CPU cores; only with a GPU")

    def __post_init__(self) -> None:
        check_at_least(1, "compute", self, "devices")
        check_at_least(0, "compute", self, "resident_gib")
