"""The groups of fields that depend on the method: heads and loss."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from prosmin.config.fields import (
    FollowerConfig,
    Range,
    TargetConfig,
    check,
    check_at_least,
    check_positive,
    check_range,
    check_share,
    option,
)
from prosmin.errors import UsageError
from prosmin.scoring import check_objective


@dataclass(frozen=True, kw_only=True)
class ProsminHeads:
    """g, the projector, and q, the predictor with its mean and scale branches."""

    hidden: int = option(2048, "width of the projector's two hidden layers")
    bottleneck: int = option(256, "width that is l2-normalised before the last layer, if there is one")
    dim: int = option(4096, "K, the size of the embedding")
    batchnorm: bool = option(True, "BatchNorm in projector and predictor")
    bottleneck_batchnorm: bool = option(
        False,
        "BatchNorm, without weights, of the bottleneck before l2 normalisation, if there is one",
    )
    last: Literal["learned", "fixed", "none", "whiten"] = option(
        "learned", "a last layer that is trained or keeps its random start; or g ends in BatchNorm (none) or whitening"
    )
    whitening_eps: float = option(
        1e-3, "share of the mean eigenvalue added to the batch's covariance; only with heads.last whiten"
    )
    normalise_last: bool = option(
        True, "rows of the last layer have length one; false: each has a gain that learns; only with heads.last learned"
    )
    predictor: bool = option(True, "whether q has two hidden layers; false: its branches are applied to g's output")
    predictor_hidden: int = option(2048, "width of the predictor's hidden layers; only with heads.predictor true")
    predictor_form: Literal["scaled", "released"] = option(
        "scaled", "scaled: works in units of heads.initial_scale; released: as in the code published with the paper"
    )
    predictor_lr: float = option(1.0, "learning rate of the predictor, relative to that of the other networks")
    initial_scale: float = option(
        0.05, "initial scale, about the target's standard deviation; only with heads.predictor_form scaled"
    )
    scale: Literal["learned", "zero"] = option("learned", "zero: a deterministic forecast, for comparison")
    radius: bool = option(
        False,
        "forecast the size of the whole error too, for joint regions; its gradient stops at mean and scale; only with "
        "heads.scale learned and loss.score_weight above 0",
    )
    condition: bool = option(False, "tell each forecast which two views it is of: their boxes and colours")

    def __post_init__(self) -> None:
        check_at_least(1, "heads", self, "hidden", "bottleneck", "dim", "predictor_hidden")
        check_at_least(0, "heads", self, "predictor_lr")
        check_positive("heads", self, "initial_scale")
        check(1e-9 <= self.whitening_eps <= 1, "heads.whitening_eps", self.whitening_eps, "a number from 1e-9 to 1")
        if self.predictor_form == "released" and (self.batchnorm or not self.predictor):
            raise UsageError(
                f"heads.predictor_form is 'released' with heads.batchnorm {self.batchnorm} and heads.predictor "
                f"{self.predictor}; allowed: false and true, as in the published code. Set both, or use scaled."
            )
        if self.condition and (self.predictor_form == "released" or not self.predictor):
            raise UsageError(
                f"heads.condition is true with heads.predictor_form {self.predictor_form!r} and heads.predictor "
                f"{self.predictor}; allowed: 'scaled' and true, as only this predictor takes it. Set both, or leave "
                "heads.condition out."
            )


@dataclass(frozen=True, kw_only=True)
class ProsminTarget(TargetConfig):
    """The target network, and what is removed from its outputs before they are scored."""

    whitening: Literal["none", "centre", "whiten"] = option(
        "centre", "removed from the target's outputs: nothing, their mean, or mean and covariance"
    )
    whitening_eps: float = option(
        1e-3, "share of the mean eigenvalue added to the covariance; only with target.whitening whiten"
    )
    whitening_momentum: float = option(
        0.9, "share of the averaged mean and covariance kept at each step; only with target.whitening whiten"
    )

    normalise: bool = option(
        False, "every target embedding gets the length sqrt(K): the mean square of its coordinates is 1"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check(1e-9 <= self.whitening_eps <= 1, "target.whitening_eps", self.whitening_eps, "a number from 1e-9 to 1")
        share = self.whitening_momentum
        check(0 <= share < 1, "target.whitening_momentum", share, "a number from 0 to below 1")

    def check(self, heads: ProsminHeads, *, batch_size: int) -> None:
        """Refuse heads and a batch whose outputs cannot be whitened; the error says what would work."""
        if not self.has_unit_variance(heads):
            return
        needs = []
        if self.is_whitened(heads) and heads.last in ("learned", "fixed") and heads.dim > heads.bottleneck:
            needs.append(
                f"heads.last whiten or none, since outputs of heads.last {heads.last} span only heads.bottleneck = "
                f"{heads.bottleneck} of heads.dim = {heads.dim} dimensions"
            )
        if heads.predictor_form == "scaled" and not 0.2 <= heads.initial_scale <= 5:
            needs.append(f"heads.initial_scale 1, the spread of a whitened target, not {heads.initial_scale:g}")
        behind = {}  # what the statistics are of
        if self.whitening == "whiten":
            behind["embeddings behind an average"] = int(2 * batch_size / (1 - self.whitening_momentum))
        if heads.last == "whiten":
            behind["images of training.batch_size"] = batch_size  # the views of an image are alike
        for what, seen in behind.items():
            if heads.dim > seen:
                needs.append(f"heads.dim of at most {seen}, the {what}, not {heads.dim}")
        if needs:
            what = "target.normalise is true"
            if self.is_whitened(heads):
                what = f"{'target.whitening' if self.whitening == 'whiten' else 'heads.last'} is 'whiten'"
            raise UsageError(f"{what}, which needs {'; '.join(needs)}.")

    def is_whitened(self, heads: ProsminHeads) -> bool:
        """Whether targets have mean 0 and covariance I, unless directions are missing (the verdict `singular`)."""
        return self.whitening == "whiten" or heads.last == "whiten"

    def has_unit_variance(self, heads: ProsminHeads) -> bool:
        """Whether the coordinates of the target have variance 1 on average."""
        return self.normalise or self.is_whitened(heads)


@dataclass(frozen=True, kw_only=True)
class ProsminLoss:
    """The scoring rule between the forecast N(mean, scale^2) and the target's embedding."""

    rule: Literal["energy", "crps", "kernel"] = option("energy", "the scoring rule")
    norm: Literal["euclidean", "coordinate"] = option("euclidean", "distance between vectors, or mean over coordinates")
    pairs: Literal["within", "pooled"] = option("within", "one forecast per view, or one mixture of all views")
    estimator: Literal["paired", "ustat", "closed"] = option("paired", "how the expectations are computed")
    beta: float = option(1.0, "power of the distance, in (0, 2)")
    lam: float = option(0.5, "weight of the distance to the target; only 1/2 is proper")
    samples: int = option(4, "samples per forecast, including mirrored ones; only with loss.estimator paired or ustat")
    antithetic: bool = option(True, "half of the samples mirror the other half; only with loss.estimator paired")
    absolute: bool = option(False, "the paper's absolute value around the score")
    same_view: bool = option(True, "compare a view also with the target's embedding of the same view")
    target_views: Literal["both", "one"] = option(
        "both", "average over both global target views, or choose one at random"
    )
    bandwidth: float | None = option(
        None, "kernel bandwidth, null: the median distance between targets; only with loss.rule kernel"
    )
    score_weight: float = option(1.0, "weight of the scoring rule; 0: identification alone, which leaves no scale")
    identification: float = option(
        0.0, "weight of finding an image's target among the batch's; trains f and g only, so the forecast stays proper"
    )
    temperature: float = option(0.2, "temperature of identification's cosines; only with loss.identification above 0")
    force: bool = option(False, "train even if the objective is not proper")

    def __post_init__(self) -> None:
        check_at_least(0, "loss", self, "score_weight", "identification")
        check(
            self.score_weight + self.identification > 0,
            "loss.score_weight",
            self.score_weight,
            "a number above 0, or 0 with loss.identification above 0",
        )
        check_positive("loss", self, "temperature")

    def check(self, heads: ProsminHeads, *, views: int) -> None:
        """Refuse an objective that is undefined or has no minimum for so many views; warn if it is not proper."""
        if heads.condition and self.pairs == "pooled":
            raise UsageError(
                "loss.pairs is 'pooled' with heads.condition true; allowed: within, as a mixture of all views has no "
                "view that it could be told of. Set loss.pairs within, or leave heads.condition out."
            )
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
    normalise_last: bool = option(True, "rows of the last layer have length one; false: each has a gain that learns")
    freeze_last_epochs: float = option(1.0, "epochs during which the last layer is frozen")

    def __post_init__(self) -> None:
        check_at_least(1, "heads", self, "hidden", "bottleneck", "dim")
        check_at_least(0, "heads", self, "freeze_last_epochs")


@dataclass(frozen=True, kw_only=True)
class DinoLoss:
    """The cross-entropy between the target's and the online network's prototypes."""

    temperature: float = option(0.1, "temperature of the online softmax")
    target_temperature_start: float = option(0.04, "initial temperature of the target's softmax")
    target_temperature: float = option(0.07, "the same after its warm-up")
    temperature_warmup_epochs: float = option(30.0, "epochs over which it changes, linearly")

    def __post_init__(self) -> None:
        check_positive("loss", self, "temperature", "target_temperature_start", "target_temperature")
        check_at_least(0, "loss", self, "temperature_warmup_epochs")


@dataclass(frozen=True, kw_only=True)
class IbotHeads:
    """g, the projector of class and patch tokens onto K prototypes."""

    hidden: int = option(2048, "width of a projector's two hidden layers")
    bottleneck: int = option(256, "width that is l2-normalised before the last layer")
    dim: int = option(8192, "K, the number of prototypes")
    batchnorm: bool = option(False, "BatchNorm in the projectors")
    shared: bool = option(True, "one projector for class and patch tokens; false: one each")
    normalise_last: bool = option(True, "rows of the last layers have length one; false: each has a gain that learns")
    freeze_last_epochs: float = option(1.0, "epochs during which the last layers are frozen")

    def __post_init__(self) -> None:
        check_at_least(1, "heads", self, "hidden", "bottleneck", "dim")
        check_at_least(0, "heads", self, "freeze_last_epochs")


@dataclass(frozen=True, kw_only=True)
class IbotLoss:
    """DINO's cross-entropy of class tokens and of hidden patches."""

    temperature: float = option(0.1, "temperature of the online softmax")
    target_temperature_start: float = option(0.04, "initial temperature of the target's class softmax")
    target_temperature: float = option(0.07, "the same after its warm-up")
    patch_temperature_start: float = option(0.04, "initial temperature of the target's patch softmax")
    patch_temperature: float = option(0.07, "the same after its warm-up")
    temperature_warmup_epochs: float = option(30.0, "epochs over which both change, linearly")
    patch_weight: float = option(1.0, "weight of the patch loss; the class loss has weight 1")
    mask_probability: float = option(0.5, "probability that a global view is masked")
    mask_ratio: Range = option((0.1, 0.5), "share of its patches that is hidden then (smallest, largest)")

    def __post_init__(self) -> None:
        check_positive("loss", self, "temperature", "target_temperature_start", "target_temperature")
        check_positive("loss", self, "patch_temperature_start", "patch_temperature")
        check_at_least(0, "loss", self, "temperature_warmup_epochs", "patch_weight")
        check_share("loss.mask_probability", self.mask_probability)
        check_range("loss.mask_ratio", self.mask_ratio, 0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class MocoHeads:
    """The projector, the predictor, and whether a ViT's patch embedding stays random."""

    hidden: int = option(4096, "width of the hidden layers of projector and predictor")
    dim: int = option(256, "K, the size of queries and keys")
    freeze_patch_embedding: bool | None = option(None, "a ViT's patch embedding stays random; null: true for a ViT")

    def __post_init__(self) -> None:
        check_at_least(1, "heads", self, "hidden", "dim")


@dataclass(frozen=True, kw_only=True)
class MocoLoss:
    """InfoNCE between the queries of a view and the keys of the other global views."""

    temperature: float = option(0.2, "temperature of the similarities (the paper's ResNet: 1.0)")

    def __post_init__(self) -> None:
        check_positive("loss", self, "temperature")


METHOD_GROUPS: dict[str, dict[str, type]] = {
    "prosmin": {"heads": ProsminHeads, "loss": ProsminLoss, "target": ProsminTarget},
    "dino": {"heads": DinoHeads, "loss": DinoLoss},
    "ibot": {"heads": IbotHeads, "loss": IbotLoss},
    "mocov3": {"heads": MocoHeads, "loss": MocoLoss, "target": FollowerConfig},  # no centre
}
"""The groups whose fields depend on the method: no method has another's options.

A field that is used only with some value of another field says "only with" and is otherwise ignored, not refused: a
grid can then switch the predictor off although its recipe sets the predictor's width.
"""

METHOD_TITLES = {"prosmin": "ProSMIN", "dino": "DINO", "ibot": "iBOT", "mocov3": "MoCo v3"}
"""The methods' names as their papers write them."""


def method_title(tree: Mapping[str, Any]) -> str:
    """The name of what a configuration trains, from its tree: ProSMIN without a suffix is the scoring rule alone."""
    name = (tree.get("method") or {}).get("name", "")
    title, loss = METHOD_TITLES.get(name, str(name)), tree.get("loss") or {}
    if name != "prosmin" or not loss.get("identification"):
        return title
    return f"{title} + identification" if loss.get("score_weight", 1) else "Identification alone"
