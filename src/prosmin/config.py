"""The configuration: one tree of frozen dataclasses, checked when built, saved as YAML that reruns the run.

A tree is resolved from layers, later ones winning: the defaults, a recipe, the recipe's section for the method,
a configuration file, the command line. Nothing edits it afterwards; derived values are computed where they are needed.
"""

import dataclasses
import difflib
import hashlib
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml

from prosmin.errors import UsageError
from prosmin.scoring import check_objective

Tree = dict[str, Any]
Range = tuple[float, float]


def option(default: Any, doc: str) -> Any:
    """A field with its line of documentation."""
    return dataclasses.field(default=default, metadata={"doc": doc})


def _check(condition: bool, name: str, received: object, allowed: str) -> None:
    if not condition:
        raise UsageError(f"{name} is {received!r}; allowed: {allowed}.")


def _check_share(name: str, value: float) -> None:
    _check(0.0 <= value <= 1.0, name, value, "a share from 0 to 1")


def _check_range(name: str, value: Range, low: float, high: float) -> None:
    _check(low <= value[0] <= value[1] <= high, name, list(value), f"two rising numbers from {low:g} to {high:g}")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which pictures are learned from."""

    spec: str = option("photos", "training pictures: photos, folder:PATH, parquet:PATH, torchvision:NAME@ROOT, ...")
    max_bad: float = option(0.01, "share of pictures that may be unreadable before the run stops")

    def __post_init__(self) -> None:
        _check_share("data.max_bad", self.max_bad)


@dataclass(frozen=True, kw_only=True)
class ViewsConfig:
    """The random views of every picture. Triples are for the first global, the second global and the local views."""

    global_size: int = option(32, "side of the two global views in pixels")
    local_size: int = option(16, "side of the local views in pixels")
    local: int = option(2, "number of local views")
    global_scale: Range = option((0.4, 1.0), "share of the picture's area a global view covers")
    local_scale: Range = option((0.05, 0.4), "share of the picture's area a local view covers")
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
        _check(self.global_size >= 1, "views.global_size", self.global_size, "1 or more pixels")
        _check(self.local_size >= 1, "views.local_size", self.local_size, "1 or more pixels")
        _check(self.local >= 0, "views.local", self.local, "0 or more views")
        _check_range("views.global_scale", self.global_scale, 1e-4, 1.0)
        _check_range("views.local_scale", self.local_scale, 1e-4, 1.0)
        _check_range("views.ratio", self.ratio, 0.01, 100.0)
        for name in ("flip", "jitter_p", "grey"):
            _check_share(f"views.{name}", getattr(self, name))
        for name in ("blur", "solarise"):
            for value in getattr(self, name):
                _check_share(f"views.{name}", value)
        _check_range("views.blur_sigma", self.blur_sigma, 0.01, 100.0)
        _check(0 < self.crop_share <= 1, "views.crop_share", self.crop_share, "a share above 0, at most 1")
        _check(
            all(0 <= v <= 1 for v in self.jitter[:3]),
            "views.jitter",
            list(self.jitter),
            "strengths from 0 to 1",
        )
        _check(0 <= self.jitter[3] <= 0.5, "views.jitter", list(self.jitter), "a hue strength from 0 to 0.5")
        _check(all(v > 0 for v in self.std), "views.std", list(self.std), "numbers above 0")


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
            _check(value is None or value >= 1, f"backbone.{name}", value, "1 or more, or null")
        _check(0.0 <= self.drop_path < 1.0, "backbone.drop_path", self.drop_path, "a rate from 0 to below 1")


@dataclass(frozen=True, kw_only=True)
class ProsminHeads:
    """g, the projector, and q, the predictor with its mean and scale branches."""

    hidden: int = option(2048, "width of the projector's two hidden layers")
    bottleneck: int = option(256, "width that is l2-normalised before the last layer")
    dim: int = option(4096, "K, the size of the embedding")
    batchnorm: bool = option(True, "BatchNorm in projector and predictor")
    bottleneck_batchnorm: bool = option(False, "BatchNorm, without weights, of the bottleneck before it is normalised")
    last: Literal["learned", "fixed"] = option("learned", "whether the last layer learns or stays as it was drawn")
    predictor: bool = option(True, "whether q has its two hidden layers; without them its branches sit on g")
    predictor_hidden: int = option(2048, "width of the predictor")
    initial_scale: float = option(0.05, "scale at the start, about the target's own spread")
    scale: Literal["learned", "zero"] = option("learned", "zero: the deterministic twin, a forecast without spread")

    def __post_init__(self) -> None:
        for name in ("hidden", "bottleneck", "dim", "predictor_hidden"):
            _check(getattr(self, name) >= 1, f"heads.{name}", getattr(self, name), "1 or more")
        _check(self.initial_scale > 0, "heads.initial_scale", self.initial_scale, "a number above 0")


@dataclass(frozen=True, kw_only=True)
class ProsminLoss:
    """The scoring rule between the forecast N(mean, scale^2) and the target's embedding."""

    rule: Literal["energy", "crps", "kernel"] = option("energy", "the scoring rule")
    norm: Literal["euclidean", "coordinate"] = option("euclidean", "distance: of vectors, or the mean over coordinates")
    pairs: Literal["within", "pooled"] = option("within", "one forecast a view, or one mixture of all views")
    estimator: Literal["paired", "ustat", "closed"] = option("paired", "how the expectations are computed")
    beta: float = option(1.0, "power of the distance, in (0, 2)")
    lam: float = option(0.5, "weight of the distance to the target; only 1/2 is proper")
    samples: int = option(4, "samples a forecast, mirrored ones counted")
    antithetic: bool = option(True, "paired estimator: half of the samples mirror the other half")
    absolute: bool = option(False, "the paper's absolute value around the score")
    same_view: bool = option(True, "score a view against the target's embedding of the same view too")
    target_views: Literal["both", "one"] = option(
        "both", "average over both global target views, or take one at random"
    )
    bandwidth: float | None = option(None, "kernel bandwidth; null: the median distance between targets")
    force: bool = option(False, "train although the objective is not proper")

    def check(self, *, views: int) -> None:
        """Refuse an objective without sense or without a minimum for so many views; warn of one not proper."""
        check_objective(
            rule=self.rule, norm=self.norm, pairs=self.pairs, estimator=self.estimator, beta=self.beta, lam=self.lam,
            samples=self.samples, antithetic=self.antithetic, absolute=self.absolute, same_view=self.same_view,
            bandwidth=self.bandwidth, force=self.force, views=views,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DinoHeads:
    """g, the projector onto K prototypes."""

    hidden: int = option(2048, "width of the projector's two hidden layers")
    bottleneck: int = option(256, "width that is l2-normalised before the last layer")
    dim: int = option(65536, "K, the number of prototypes")
    batchnorm: bool = option(False, "BatchNorm in the projector")
    freeze_last_epochs: float = option(1.0, "epochs during which the last layer stays where it started")

    def __post_init__(self) -> None:
        for name in ("hidden", "bottleneck", "dim"):
            _check(getattr(self, name) >= 1, f"heads.{name}", getattr(self, name), "1 or more")
        _check(self.freeze_last_epochs >= 0, "heads.freeze_last_epochs", self.freeze_last_epochs, "0 or more")


@dataclass(frozen=True, kw_only=True)
class DinoLoss:
    """The cross-entropy between the target's and the online network's prototypes."""

    temperature: float = option(0.1, "temperature of the online softmax")
    target_temperature_start: float = option(0.04, "temperature of the target's softmax at the start")
    target_temperature: float = option(0.07, "the same after its warm-up")
    temperature_warmup_epochs: float = option(30.0, "epochs over which it rises, in a straight line")

    def __post_init__(self) -> None:
        for name in ("temperature", "target_temperature_start", "target_temperature"):
            _check(getattr(self, name) > 0, f"loss.{name}", getattr(self, name), "a number above 0")
        epochs = self.temperature_warmup_epochs
        _check(epochs >= 0, "loss.temperature_warmup_epochs", epochs, "0 or more")


@dataclass(frozen=True, kw_only=True)
class IbotHeads:
    """g, the projector of class tokens and of patch tokens onto K prototypes."""

    hidden: int = option(2048, "width of a projector's two hidden layers")
    bottleneck: int = option(256, "width that is l2-normalised before the last layer")
    dim: int = option(8192, "K, the number of prototypes")
    batchnorm: bool = option(False, "BatchNorm in the projectors")
    shared: bool = option(True, "one projector for class and patch tokens; false: one each")
    freeze_last_epochs: float = option(1.0, "epochs during which the last layers stay where they started")

    def __post_init__(self) -> None:
        for name in ("hidden", "bottleneck", "dim"):
            _check(getattr(self, name) >= 1, f"heads.{name}", getattr(self, name), "1 or more")
        _check(self.freeze_last_epochs >= 0, "heads.freeze_last_epochs", self.freeze_last_epochs, "0 or more")


@dataclass(frozen=True, kw_only=True)
class IbotLoss:
    """DINO's cross-entropy of class tokens, and the same of the patches the online network does not see."""

    temperature: float = option(0.1, "temperature of the online softmax")
    target_temperature_start: float = option(0.04, "temperature of the target's class softmax at the start")
    target_temperature: float = option(0.07, "the same after its warm-up")
    patch_temperature_start: float = option(0.04, "temperature of the target's patch softmax at the start")
    patch_temperature: float = option(0.07, "the same after its warm-up")
    temperature_warmup_epochs: float = option(30.0, "epochs over which both rise, in a straight line")
    patch_weight: float = option(1.0, "weight of the patch loss; the class loss has weight 1")
    mask_probability: float = option(0.5, "probability that a global view is masked")
    mask_ratio: Range = option((0.1, 0.5), "share of its patches that is hidden then, at most")

    def __post_init__(self) -> None:
        warmed_up = ("target_temperature", "patch_temperature")
        for name in ("temperature", *warmed_up, *(f"{name}_start" for name in warmed_up)):
            _check(getattr(self, name) > 0, f"loss.{name}", getattr(self, name), "a number above 0")
        for name in ("temperature_warmup_epochs", "patch_weight"):
            _check(getattr(self, name) >= 0, f"loss.{name}", getattr(self, name), "0 or more")
        _check_share("loss.mask_probability", self.mask_probability)
        _check_range("loss.mask_ratio", self.mask_ratio, 0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class MocoHeads:
    """The projector, the predictor, and what of a ViT stays random."""

    hidden: int = option(4096, "width of the hidden layers of projector and predictor")
    dim: int = option(256, "K, the size of queries and keys")
    freeze_patch_embedding: bool | None = option(None, "a ViT's patch embedding stays random; null: with a ViT")

    def __post_init__(self) -> None:
        for name in ("hidden", "dim"):
            _check(getattr(self, name) >= 1, f"heads.{name}", getattr(self, name), "1 or more")


@dataclass(frozen=True, kw_only=True)
class MocoLoss:
    """InfoNCE between the queries of one global view and the keys of the other."""

    temperature: float = option(0.2, "temperature of the similarities (the paper's ResNet: 1.0)")

    def __post_init__(self) -> None:
        _check(self.temperature > 0, "loss.temperature", self.temperature, "a number above 0")


@dataclass(frozen=True, kw_only=True)
class TargetConfig:
    """The target network: a moving average of the online one."""

    momentum: float = option(0.9, "share of the target kept at each step, at the start")
    momentum_end: float = option(1.0, "the same at the end; a cosine in between")
    centre_momentum: float = option(0.9, "share of the centre kept at each step")
    start: Literal["copy", "independent"] = option(
        "copy", "the target starts as a copy of the online network or on its own"
    )

    def __post_init__(self) -> None:
        for name in ("momentum", "momentum_end", "centre_momentum"):
            _check_share(f"target.{name}", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW and its schedules."""

    lr: float = option(5e-4, "learning rate for a batch of 256; the real one is lr * batch_size / 256")
    lr_end: float = option(1e-6, "learning rate at the end, not scaled by the batch")
    warmup_epochs: float = option(10.0, "epochs of linear warm-up; at most half of the run is used")
    weight_decay: float = option(0.04, "weight decay at the start, on matrices and filters only")
    weight_decay_end: float = option(0.4, "weight decay at the end; a cosine in between")
    predictor_lr: float = option(1.0, "learning rate of the predictor, relative to the other networks'")
    clip: float | None = option(3.0, "largest norm of the gradient; null: no clipping")

    def __post_init__(self) -> None:
        for name in ("lr", "lr_end", "warmup_epochs", "weight_decay", "weight_decay_end", "predictor_lr"):
            _check(getattr(self, name) >= 0, f"optimizer.{name}", getattr(self, name), "0 or more")
        _check(self.clip is None or self.clip > 0, "optimizer.clip", self.clip, "a number above 0, or null")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How long, how much at once, what is kept."""

    epochs: int = option(20, "passes over the pictures")
    max_steps: int | None = option(None, "stop after this many steps; the schedules still run to `epochs`")
    batch_size: int = option(256, "pictures a step over all processes")
    seed: int = option(0, "every random number of the run follows from it")
    accumulate: int = option(1, "parts in which a process takes its share of a step: less memory, the same batch")
    checkpoint_every: int = option(200, "steps between checkpoints")
    checkpoint_minutes: float | None = option(30.0, "minutes between checkpoints, if they come first; null: no limit")
    keep: int = option(2, "checkpoints kept, the one with the best kNN not counted")
    log_every: int = option(10, "steps between lines of metrics.jsonl")
    logger: Literal["none", "tensorboard", "wandb"] = option("none", "where the lines of metrics.jsonl go besides")
    knn_every: int | None = option(None, "steps between kNN on a held-out tenth of the labelled pictures; null: never")
    knn_pictures: int = option(20000, "labelled pictures it uses at most")
    encoder: Literal["last", "best"] = option("last", "the encoder left at the end: the last, or that of the best kNN")
    on_collapse: Literal["warn", "stop"] = option("warn", "what to do when the representation collapses")

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate", "checkpoint_every", "keep", "log_every"):
            _check(getattr(self, name) >= 1, f"training.{name}", getattr(self, name), "1 or more")
        for name in ("max_steps", "knn_every"):
            value = getattr(self, name)
            _check(value is None or value >= 1, f"training.{name}", value, "1 or more, or null")
        minutes = self.checkpoint_minutes
        _check(minutes is None or minutes > 0, "training.checkpoint_minutes", minutes, "a number above 0, or null")
        _check(self.knn_pictures >= 100, "training.knn_pictures", self.knn_pictures, "100 or more")
        if self.encoder == "best" and self.knn_every is None:
            raise UsageError("training.encoder is 'best', which kNN decides: give training.knn_every too.")
        _check(self.seed >= 0, "training.seed", self.seed, "0 or more")


@dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """Where it runs. These fields may change when a run is resumed."""

    accelerator: Literal["auto", "cpu", "cuda"] = option("auto", "auto: a GPU if there is one")
    devices: int = option(1, "processes, one a device")
    precision: Literal["32-true", "bf16-mixed", "64-true"] = option("32-true", "arithmetic of the networks")
    compile: Literal["none", "blocks", "whole"] = option(
        "none", "torch.compile: blocks starts in seconds, whole in a minute or more and is a little faster"
    )
    checkpoint_activations: bool = option(False, "ViT: compute activations again in the backward pass, for less memory")
    resident_gib: float = option(2.0, "decoded sets up to this size live on the device; larger ones are streamed")
    nvjpeg: bool = option(False, "a GPU decodes the JPEGs of a stream: for machines with few CPU cores")

    def __post_init__(self) -> None:
        _check(self.devices >= 1, "compute.devices", self.devices, "1 or more")
        _check(self.resident_gib >= 0, "compute.resident_gib", self.resident_gib, "0 or more")


METHOD_GROUPS: dict[str, dict[str, type]] = {
    "prosmin": {"heads": ProsminHeads, "loss": ProsminLoss},
    "dino": {"heads": DinoHeads, "loss": DinoLoss},
    "ibot": {"heads": IbotHeads, "loss": IbotLoss},
    "mocov3": {"heads": MocoHeads, "loss": MocoLoss},
}
"""The groups whose fields depend on the method: no method carries an option that does nothing."""

METHOD_TITLES = {"prosmin": "ProSMIN", "dino": "DINO", "ibot": "iBOT", "mocov3": "MoCo v3"}
"""The methods' names as their papers write them."""


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """Which method learns."""

    name: str = option("prosmin", "one of: " + ", ".join(METHOD_GROUPS))

    def __post_init__(self) -> None:
        _check(self.name in METHOD_GROUPS, "method.name", self.name, ", ".join(METHOD_GROUPS))


GROUPS: dict[str, type] = {
    "method": MethodConfig,
    "data": DataConfig,
    "views": ViewsConfig,
    "backbone": BackboneConfig,
    "target": TargetConfig,
    "optimizer": OptimizerConfig,
    "training": TrainingConfig,
    "compute": ComputeConfig,
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """The whole tree of one run."""

    method: MethodConfig
    data: DataConfig
    views: ViewsConfig
    backbone: BackboneConfig
    heads: Any
    loss: Any
    target: TargetConfig
    optimizer: OptimizerConfig
    training: TrainingConfig
    compute: ComputeConfig

    def __post_init__(self) -> None:
        if isinstance(self.loss, ProsminLoss):
            self.loss.check(views=2 + self.views.local)


def groups(method: str) -> dict[str, type]:
    """The dataclass of each group for a method."""
    own = METHOD_GROUPS.get(method, {})
    return {field.name: own.get(field.name) or GROUPS[field.name] for field in dataclasses.fields(Config)}


def build(tree: Mapping[str, Any]) -> Config:
    """The checked configuration of a nested dictionary; missing fields take their defaults."""
    method_tree = tree.get("method") or {}
    method = _build_group("method", MethodConfig, method_tree)
    classes = groups(method.name)
    for name in tree:
        if name not in classes:
            raise UsageError(f"There is no group {name!r} in a configuration.{_suggest(name, classes)}")
    built = {name: _build_group(name, cls, tree.get(name) or {}, method.name) for name, cls in classes.items()}
    return Config(**built)


def _build_group(group: str, cls: type, values: Any, method: str = "") -> Any:
    if not isinstance(values, Mapping):
        raise UsageError(f"{group} is {values!r}; allowed: a mapping of fields to values.")
    hints = typing.get_type_hints(cls)
    of = f" for {method}" if method and cls in METHOD_GROUPS.get(method, {}).values() else ""
    for name in values:
        if name not in hints:
            raise UsageError(f"There is no field {group}.{name}{of}.{_suggest(name, hints)}")
    return cls(**{name: _convert(f"{group}.{name}", value, hints[name]) for name, value in values.items()})


def _suggest(name: str, known: typing.Iterable[str]) -> str:
    known = list(known)
    close = difflib.get_close_matches(str(name), known, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return f"{hint} There are: {', '.join(known)}."


def _convert(name: str, value: Any, hint: Any) -> Any:
    """A YAML value or command-line text as the type of its field."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None or (isinstance(value, str) and value.lower() in ("null", "none")):
            return None
        return _convert(name, value, next(arg for arg in args if arg is not types.NoneType))
    if origin is Literal:
        _check(value in args, name, value, ", ".join(str(a) for a in args))
        return value
    if origin is tuple:
        values = value.strip("[]()").split(",") if isinstance(value, str) else value
        fits = isinstance(values, list | tuple) and len(values) == len(args)
        _check(fits, name, value, f"{len(args)} numbers with commas between")
        return tuple(_convert(name, v, arg) for v, arg in zip(values, args, strict=True))
    if hint is bool:
        text = str(value).lower()
        _check(text in ("true", "false", "yes", "no", "on", "off", "1", "0"), name, value, "true or false")
        return text in ("true", "yes", "on", "1")
    if hint is str:
        return str(value)
    return _convert_number(name, value, hint)


def _convert_number(name: str, value: Any, kind: type) -> Any:
    allowed = "a whole number" if kind is int else "a number"
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{name} is {value!r}; allowed: {allowed}.") from None
    _check(not isinstance(value, bool) and number == number and abs(number) != float("inf"), name, value, allowed)
    _check(kind is float or number == int(number), name, value, allowed)
    return kind(value) if isinstance(value, int) or kind is float else int(number)


def to_tree(config: Config) -> Tree:
    """The nested dictionary that `build` turns back into the same configuration."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        return list(value) if isinstance(value, tuple) else value

    return plain(dataclasses.asdict(config))


def to_yaml(config: Config) -> str:
    """The configuration as the text of a run's config.yaml."""
    return yaml.safe_dump(to_tree(config), sort_keys=False, default_flow_style=None)


_FREE = (
    "max_steps",
    "checkpoint_every",
    "checkpoint_minutes",
    "keep",
    "log_every",
    "logger",
    "knn_every",
    "knn_pictures",
    "on_collapse",
)  # of `training`: they may change when a run is resumed


def fingerprint(config: Config) -> str:
    """A short hash of all that determines the result."""
    tree = {name: values for name, values in to_tree(config).items() if name != "compute"}
    tree["training"] = {name: value for name, value in tree["training"].items() if name not in _FREE}
    return hashlib.blake2b(yaml.safe_dump(tree).encode(), digest_size=8).hexdigest()


def read_yaml(path: Path) -> Tree:
    """A configuration file as a nested dictionary."""
    try:
        tree = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UsageError(f"The configuration {path} cannot be read: {error.strerror}.") from None
    except yaml.YAMLError as error:
        raise UsageError(f"The configuration {path} is not YAML: {error}.") from None
    if not isinstance(tree, dict):
        raise UsageError(
            f"The configuration {path} holds {tree!r}; allowed: groups of fields, as in any run's config.yaml."
        )
    return tree


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(
        p.name[:-5] for p in resources.files("prosmin").joinpath("recipes").iterdir() if p.name.endswith(".yaml")
    )


def recipe_text(name: str) -> str:
    """A recipe's file, its header included."""
    names = recipe_names()
    if name not in names:
        raise UsageError(f"There is no recipe {name!r}.{_suggest(name, names)}")
    return resources.files("prosmin").joinpath("recipes", f"{name}.yaml").read_text()


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Tree:
    """Two trees as one, the second winning field by field."""
    merged = dict(below)
    for name, value in above.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = merge(merged[name], value) if both else value
    return merged


def resolve(
    *, recipe: str | None = None, file: Path | None = None, overrides: Mapping[str, Any] | None = None
) -> Config:
    """The configuration of a recipe or a file, with `overrides` ({"training.epochs": 3, ...}) on top."""
    tree: Tree = yaml.safe_load(recipe_text(recipe)) if recipe else {}
    sections = tree.pop("methods", {})
    above = merge(read_yaml(file) if file else {}, _nest(overrides or {}))
    method = (merge(tree, above).get("method") or {}).get("name", MethodConfig().name)
    return build(merge(merge(tree, sections.get(method, {})), above))


def _nest(overrides: Mapping[str, Any]) -> Tree:
    tree: Tree = {}
    for path, value in overrides.items():
        group, _, field = path.partition(".")
        if not field:
            raise UsageError(
                f"There is no option --{path}; fields are written --group.field, "
                f"with a group of: {', '.join(GROUPS)}, heads, loss."
            )
        tree.setdefault(group, {})[field] = value
    return tree


def describe(method: str = "prosmin") -> Iterator[tuple[str, str, str]]:
    """Every field with its default and its line, for the help text."""
    for group, cls in groups(method).items():
        for field in dataclasses.fields(cls):
            yield f"{group}.{field.name}", str(field.default), field.metadata["doc"]


def differences(one: Config, other: Config) -> list[str]:
    """The fields that determine the result and differ: "group.field: a -> b"."""
    first, second = to_tree(one), to_tree(other)
    rows = []
    for group in first:
        for name in dict.fromkeys([*first[group], *second[group]]):
            a, b = first[group].get(name), second[group].get(name)
            free = group == "compute" or (group == "training" and name in _FREE)
            if a != b and not free:
                rows.append(f"{group}.{name}: {a} -> {b}")
    return rows
