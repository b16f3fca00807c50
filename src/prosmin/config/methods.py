"""The groups of fields that depend on the method: its heads and its loss."""

from dataclasses import dataclass
from typing import Literal

from prosmin.config.fields import FollowerConfig, Range, check, check_range, check_share, option
from prosmin.scoring import check_objective


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
    predictor_hidden: int = option(2048, "width of the predictor's hidden layers; only with heads.predictor true")
    predictor_lr: float = option(1.0, "learning rate of the predictor, relative to the other networks'")
    initial_scale: float = option(0.05, "scale at the start, about the target's own spread")
    scale: Literal["learned", "zero"] = option("learned", "zero: the deterministic twin, a forecast without spread")

    def __post_init__(self) -> None:
        for name in ("hidden", "bottleneck", "dim", "predictor_hidden"):
            check(getattr(self, name) >= 1, f"heads.{name}", getattr(self, name), "1 or more")
        check(self.predictor_lr >= 0, "heads.predictor_lr", self.predictor_lr, "0 or more")
        check(self.initial_scale > 0, "heads.initial_scale", self.initial_scale, "a number above 0")


@dataclass(frozen=True, kw_only=True)
class ProsminLoss:
    """The scoring rule between the forecast N(mean, scale^2) and the target's embedding."""

    rule: Literal["energy", "crps", "kernel"] = option("energy", "the scoring rule")
    norm: Literal["euclidean", "coordinate"] = option("euclidean", "distance: of vectors, or the mean over coordinates")
    pairs: Literal["within", "pooled"] = option("within", "one forecast a view, or one mixture of all views")
    estimator: Literal["paired", "ustat", "closed"] = option("paired", "how the expectations are computed")
    beta: float = option(1.0, "power of the distance, in (0, 2)")
    lam: float = option(0.5, "weight of the distance to the target; only 1/2 is proper")
    samples: int = option(4, "samples a forecast, mirrored ones counted; only with loss.estimator paired or ustat")
    antithetic: bool = option(True, "half of the samples mirror the other half; only with loss.estimator paired")
    absolute: bool = option(False, "the paper's absolute value around the score")
    same_view: bool = option(True, "let a view meet the target's embedding of the same view too")
    target_views: Literal["both", "one"] = option(
        "both", "average over both global target views, or take one at random"
    )
    bandwidth: float | None = option(
        None, "kernel bandwidth, null: the median distance between targets; only with loss.rule kernel"
    )
    identification: float = option(
        0.0, "weight of telling the own target from the batch's, for f and g alone: the forecast stays proper"
    )
    temperature: float = option(0.2, "temperature of identification's cosines; only with loss.identification above 0")
    force: bool = option(False, "train although the objective is not proper")

    def __post_init__(self) -> None:
        check(self.identification >= 0, "loss.identification", self.identification, "0 or more")
        check(self.temperature > 0, "loss.temperature", self.temperature, "a number above 0")

    def check(self, *, views: int) -> None:
        """Refuse an objective without sense or without a minimum for so many views; warn of one not proper."""
        check_objective(
            rule=self.rule, norm=self.norm, pairs=self.pairs, estimator=self.estimator, beta=self.beta, lam=self.lam,
            samples=self.samples, antithetic=self.antithetic, same_view=self.same_view,
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
            check(getattr(self, name) >= 1, f"heads.{name}", getattr(self, name), "1 or more")
        check(self.freeze_last_epochs >= 0, "heads.freeze_last_epochs", self.freeze_last_epochs, "0 or more")


@dataclass(frozen=True, kw_only=True)
class DinoLoss:
    """The cross-entropy between the target's and the online network's prototypes."""

    temperature: float = option(0.1, "temperature of the online softmax")
    target_temperature_start: float = option(0.04, "temperature of the target's softmax at the start")
    target_temperature: float = option(0.07, "the same after its warm-up")
    temperature_warmup_epochs: float = option(30.0, "epochs over which it rises, in a straight line")

    def __post_init__(self) -> None:
        for name in ("temperature", "target_temperature_start", "target_temperature"):
            check(getattr(self, name) > 0, f"loss.{name}", getattr(self, name), "a number above 0")
        epochs = self.temperature_warmup_epochs
        check(epochs >= 0, "loss.temperature_warmup_epochs", epochs, "0 or more")


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
            check(getattr(self, name) >= 1, f"heads.{name}", getattr(self, name), "1 or more")
        check(self.freeze_last_epochs >= 0, "heads.freeze_last_epochs", self.freeze_last_epochs, "0 or more")


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
            check(getattr(self, name) > 0, f"loss.{name}", getattr(self, name), "a number above 0")
        for name in ("temperature_warmup_epochs", "patch_weight"):
            check(getattr(self, name) >= 0, f"loss.{name}", getattr(self, name), "0 or more")
        check_share("loss.mask_probability", self.mask_probability)
        check_range("loss.mask_ratio", self.mask_ratio, 0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class MocoHeads:
    """The projector, the predictor, and what of a ViT stays random."""

    hidden: int = option(4096, "width of the hidden layers of projector and predictor")
    dim: int = option(256, "K, the size of queries and keys")
    freeze_patch_embedding: bool | None = option(None, "a ViT's patch embedding stays random; null: with a ViT")

    def __post_init__(self) -> None:
        for name in ("hidden", "dim"):
            check(getattr(self, name) >= 1, f"heads.{name}", getattr(self, name), "1 or more")


@dataclass(frozen=True, kw_only=True)
class MocoLoss:
    """InfoNCE between the queries of one global view and the keys of the other."""

    temperature: float = option(0.2, "temperature of the similarities (the paper's ResNet: 1.0)")

    def __post_init__(self) -> None:
        check(self.temperature > 0, "loss.temperature", self.temperature, "a number above 0")


METHOD_GROUPS: dict[str, dict[str, type]] = {
    "prosmin": {"heads": ProsminHeads, "loss": ProsminLoss},
    "dino": {"heads": DinoHeads, "loss": DinoLoss},
    "ibot": {"heads": IbotHeads, "loss": IbotLoss},
    "mocov3": {"heads": MocoHeads, "loss": MocoLoss, "target": FollowerConfig},  # it has no centre
}
"""The groups whose fields depend on the method: no method carries another's options.

A field that counts only beside a value of another says so, "only with": refusing it would refuse recipes and grids that
set the other one alone, such as a row without the predictor whose width a recipe gives.
"""

METHOD_TITLES = {"prosmin": "ProSMIN", "dino": "DINO", "ibot": "iBOT", "mocov3": "MoCo v3"}
"""The methods' names as their papers write them."""
