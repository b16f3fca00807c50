"""The fields that every method has, each with its documentation and its check."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from prosmin.errors import UsageError
from prosmin.messages import closest, did_you_mean

Range = tuple[float, float]


def option(default: Any, doc: str) -> Any:
    """A field with its line of documentation."""
    return dataclasses.field(default=default, metadata={"doc": doc})


def check(condition: bool, name: str, received: object, allowed: str) -> None:
    """An error that says what was received and what is allowed."""
    if not condition:
        raise UsageError(f"{name} is {received!r}; allowed: {allowed}.")


def check_choice(name: str, value: object, known: Iterable[str]) -> None:
    """One of the names there are; of another the error says which may have been meant."""
    known = list(known)
    if value not in known:
        meant = did_you_mean(closest(str(value), known))
        raise UsageError(f"{name} is {value!r}.{meant} Allowed: {', '.join(known)}.")


def check_share(name: str, value: float) -> None:
    """0 to 1."""
    check(0.0 <= value <= 1.0, name, value, "a share from 0 to 1")


def check_range(name: str, value: Range, low: float, high: float) -> None:
    """Two rising numbers."""
    check(low <= value[0] <= value[1] <= high, name, list(value), f"two rising numbers from {low:g} to {high:g}")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which images are learned from."""

    spec: str = option("photos", "training images: photos, folder:PATH, parquet:PATH, torchvision:NAME@ROOT, ...")
    max_bad: float = option(0.01, "share of images that may be unreadable before the run stops")

    def __post_init__(self) -> None:
        check_share("data.max_bad", self.max_bad)


@dataclass(frozen=True, kw_only=True)
class ViewsConfig:
    """The random views of every image. Triples are for the first global, the second global and the local views."""

    global_size: int = option(32, "side of the two global views in pixels")
    local_size: int = option(16, "side of the local views in pixels")
    local: int = option(2, "number of local views")
    global_scale: Range = option((0.4, 1.0), "share of the image's area a global view covers")
    local_scale: Range = option((0.05, 0.4), "share of the image's area a local view covers")
    ratio: Range = option((0.75, 4 / 3), "aspect ratio of a crop")
    interpolation: Literal["bilinear", "bicubic"] = option("bicubic", "filter of the resize, always antialiased")
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
        check(self.global_size >= 1, "views.global_size", self.global_size, "1 or more pixels")
        check(self.local_size >= 1, "views.local_size", self.local_size, "1 or more pixels")
        check(self.local >= 0, "views.local", self.local, "0 or more views")
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
        check(
            all(0 <= v <= 1 for v in self.jitter[:3]),
            "views.jitter",
            list(self.jitter),
            "strengths from 0 to 1",
        )
        check(0 <= self.jitter[3] <= 0.5, "views.jitter", list(self.jitter), "a hue strength from 0 to 0.5")
        check(all(v > 0 for v in self.std), "views.std", list(self.std), "numbers above 0")


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """f: the network whose output is the representation."""

    name: str = option("resnet14_cifar", "a small ResNet (resnet8_cifar ... resnet18_cifar) or any timm ViT or ResNet")
    patch_size: int | None = option(None, "ViT: side of a patch in pixels, when other than the name says")
    width: int | None = option(None, "ViT: embedding width, when other than the name says")
    depth: int | None = option(None, "ViT: number of blocks, when other than the name says")
    heads: int | None = option(None, "ViT: attention heads, when other than the name says")
    drop_path: float = option(0.0, "rate of stochastic depth in the online network")
    weights: str | None = option(None, "file to start from: a run's encoder.safetensors, or of timm, DINO, iBOT, MoCo")

    def __post_init__(self) -> None:
        for name in ("patch_size", "width", "depth", "heads"):
            value = getattr(self, name)
            check(value is None or value >= 1, f"backbone.{name}", value, "1 or more, or null")
        check(0.0 <= self.drop_path < 1.0, "backbone.drop_path", self.drop_path, "a rate from 0 to below 1")


@dataclass(frozen=True, kw_only=True)
class FollowerConfig:
    """The target network: a moving average of the online one."""

    momentum: float = option(0.9, "share of the target kept at each step, at the start")
    momentum_end: float = option(1.0, "the same at the end; a cosine in between")
    start: Literal["copy", "independent"] = option(
        "copy", "the target starts as a copy of the online network or on its own"
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

    lr: float = option(5e-4, "learning rate for a batch of 256; the real one is lr * batch_size / 256")
    lr_end: float = option(1e-6, "learning rate at the end, not scaled by the batch")
    warmup_epochs: float = option(10.0, "epochs of linear warm-up; at most half of the run is used")
    weight_decay: float = option(0.04, "weight decay at the start, on matrices and filters only")
    weight_decay_end: float = option(0.4, "weight decay at the end; a cosine in between")
    clip: float | None = option(3.0, "largest norm of the gradient; null: no clipping")

    def __post_init__(self) -> None:
        for name in ("lr", "lr_end", "warmup_epochs", "weight_decay", "weight_decay_end"):
            check(getattr(self, name) >= 0, f"optimizer.{name}", getattr(self, name), "0 or more")
        check(self.clip is None or self.clip > 0, "optimizer.clip", self.clip, "a number above 0, or null")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How long, how much at once, what is kept."""

    epochs: int = option(20, "passes over the images")
    max_steps: int | None = option(None, "stop after this many steps; the schedules still run to `epochs`")
    batch_size: int = option(256, "images a step over all processes")
    seed: int = option(0, "every random number of the run follows from it")
    accumulate: int = option(1, "parts in which a process takes its share of a step: less memory, the same batch")
    checkpoint_every: int = option(200, "steps between checkpoints")
    checkpoint_minutes: float | None = option(30.0, "minutes between checkpoints, if they come first; null: no limit")
    keep: int = option(2, "checkpoints kept, the one with the best kNN not counted")
    log_every: int = option(10, "steps between lines of metrics.jsonl")
    logger: Literal["none", "tensorboard", "wandb"] = option("none", "where the lines of metrics.jsonl go besides")
    knn_every: int | None = option(None, "steps between kNN on a held-out tenth of the labelled images; null: never")
    knn_pictures: int = option(20000, "labelled images of that kNN at most; only with training.knn_every")
    encoder: Literal["last", "best"] = option("last", "the encoder left at the end: the last, or that of the best kNN")
    on_collapse: Literal["warn", "stop"] = option(
        "warn", "what to do when the representation collapses or the loss runs away"
    )

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate", "checkpoint_every", "keep", "log_every"):
            check(getattr(self, name) >= 1, f"training.{name}", getattr(self, name), "1 or more")
        for name in ("max_steps", "knn_every"):
            value = getattr(self, name)
            check(value is None or value >= 1, f"training.{name}", value, "1 or more, or null")
        minutes = self.checkpoint_minutes
        check(minutes is None or minutes > 0, "training.checkpoint_minutes", minutes, "a number above 0, or null")
        check(self.knn_pictures >= 100, "training.knn_pictures", self.knn_pictures, "100 or more")
        if self.encoder == "best" and self.knn_every is None:
            raise UsageError("training.encoder is 'best', which kNN decides: give training.knn_every too.")
        check(self.seed >= 0, "training.seed", self.seed, "0 or more")


@dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """Where it runs. These fields may change when a run is resumed."""

    accelerator: Literal["auto", "cpu", "cuda"] = option("auto", "auto: a GPU if there is one")
    devices: int = option(1, "processes, one a device")
    precision: Literal["32-true", "bf16-mixed", "64-true"] = option("32-true", "arithmetic of the networks")
    compile: Literal["none", "blocks", "whole"] = option(
        "none", "torch.compile: blocks (of ViTs, and heads) starts in seconds, whole in a minute or more and is faster"
    )
    graph: bool = option(
        False,
        "record a step's kernels once and replay them, which small networks gain most by; only with one GPU, whole "
        "batches, no drop_path and no checkpoint_activations",
    )
    checkpoint_activations: bool = option(False, "ViT: compute activations again in the backward pass, for less memory")
    resident_gib: float = option(2.0, "decoded sets up to this size live on the device; larger ones are streamed")
    nvjpeg: bool = option(
        False, "the GPU decodes the JPEGs of a stream, for machines with few CPU cores; only with a GPU"
    )

    def __post_init__(self) -> None:
        check(self.devices >= 1, "compute.devices", self.devices, "1 or more")
        check(self.resident_gib >= 0, "compute.resident_gib", self.resident_gib, "0 or more")
