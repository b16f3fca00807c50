"""The numbers of a run in words: their names, which direction is better, how they are rounded."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

PROTOCOLS = {
    "knn": "kNN",
    "linear": "Linear probe",
    "linear-paper": "Linear classifier on augmented images",
    "lowshot": "Low-shot: frozen features, few labels",
    "semi": "Semi-supervised: fine-tuned on few labels",
    "transfer": "Transfer: fine-tuned on other sets",
    "ood": "Out of distribution",
    "uncertainty": "Uncertainty",
    "corruption": "Corrupted images",
    "pictures": "Map of the test images",
}

BASELINES = {
    "raw pixels": "raw pixels",
    "untrained": "untrained encoder",
    "untrained, BatchNorm set": "untrained encoder, BatchNorm set",
}
CHANCE = 0.5  # AUROC of a score that says nothing


@dataclass(frozen=True)
class Metric:
    """How one number is shown. `better` is empty where neither direction is."""

    label: str
    better: Literal["higher", "lower", ""] = ""
    percent: bool = False
    known: bool = True

    def text(self, value: float) -> str:
        """The number, rounded for a reader; what we know gets three decimals, so that columns line up."""
        if self.percent:
            return percent(value)
        return f"{value:.3f}".replace("-", "−") if self.known and math.isfinite(value) else number(value)

    def heading(self) -> str:
        """The label with its direction, on one line."""
        return f"{self.label}\u00a0{self.arrow()}" if self.better else self.label

    def arrow(self) -> str:
        """The direction as a sign beside the label."""
        return {"higher": "↑", "lower": "↓", "": ""}[self.better]


METRICS = {
    "top1": Metric("top-1 accuracy", "higher", True),
    "top1_k200": Metric("top-1 accuracy, k = 200", "higher", True),
    "nll": Metric("negative log-likelihood", "lower"),
    "ece": Metric("calibration error (ECE)", "lower"),
    "ece_floor": Metric("ECE floor at this size"),
    "adaptive_ece": Metric("adaptive ECE", "lower"),
    "classwise_calibration_error": Metric("class-wise calibration error", "lower"),
    "brier": Metric("Brier score", "lower"),
    "temperature": Metric("temperature"),
    "auroc": Metric("AUROC", "higher"),
    "aupr_in": Metric("AUPR, in positive", "higher"),
    "aupr_out": Metric("AUPR, out positive", "higher"),
    "fpr_at_95_tpr_in": Metric("FPR at 95 % TPR, in positive", "lower", True),
    "fpr_at_95_tpr_out": Metric("FPR at 95 % TPR, out positive", "lower", True),
    "recall_at_1": Metric("recall at 1 (R@1)", "higher", True),
    "r_auroc": Metric("R-AUROC: does uncertainty predict a wrong neighbour", "higher"),
    "aurc": Metric("area under the risk-coverage curve", "lower"),
    "aurc_optimal": Metric("the same in the best possible order"),
    "aurc_random": Metric("the same in random order"),
    "mean_error": Metric("mean error", "lower", True),
    "mean_nll": Metric("mean negative log-likelihood", "lower"),
    "mean_ece": Metric("mean calibration error (ECE)", "lower"),
    "mce": Metric("mean corruption error (mCE, AlexNet is 100 %)", "lower", True),
    "relative_mce": Metric("relative mCE", "lower", True),
    "clean_error": Metric("error on clean images", "lower", True),
    "clean_nll": Metric("negative log-likelihood on clean images", "lower"),
    "clean_ece": Metric("calibration error on clean images", "lower"),
    **{f"coverage_{p}": Metric(f"coordinates within intervals of {p} %", "", True) for p in (50, 90, 95)},
    **{f"joint_coverage_{p}": Metric(f"observations within ellipsoids of {p} %", "", True) for p in (50, 90, 95)},
    **{
        f"joint_coverage_{p}_reachable": Metric(f"observations that ellipsoids of {p} % could reach", "", True)
        for p in (50, 90, 95)
    },
    "squared_error_ratio": Metric("squared error over squared scale, 1 where the spread is right"),
    "pit_distance": Metric("distance of the PIT from uniform", "lower"),
    "energy_score": Metric("energy score of the forecasts"),
    "energy_skill": Metric("energy-score skill against one constant scale", "higher"),
    "energy_skill_coordinates": Metric("energy-score skill against a constant scale for each coordinate", "higher"),
    "energy_skill_climatology": Metric("energy-score skill against not looking at the image", "higher"),
    "spearman_crop": Metric("rank correlation with smaller crops", "higher"),
    "spearman_blur": Metric("rank correlation with blur", "higher"),
    "spearman_noise": Metric("rank correlation with noise", "higher"),
    "spearman_sharpness": Metric("rank correlation with the image's sharpness"),
    "spearman_feature_norm": Metric("rank correlation with the length of the features"),
    "map_neighbours_kept": Metric("neighbours the map keeps together", "", True),
}
ACCURACIES = ("top1", "top1_k200", "recall_at_1")
"""Shares of right answers, each of one image: their interval follows from the number of images."""
MAIN = (
    "top1", "nll", "ece", "mean_error", "mean_nll", "mean_ece", "mce", "relative_mce", "clean_error",
    "recall_at_1", "r_auroc", "aurc", "coverage_90", "squared_error_ratio", "energy_skill",
)  # fmt: skip
"""What stays in sight where a result has many numbers."""


SCORES = {
    "knn_distance": "kNN distance",
    "similarity_norm": "similarity times length",
    "mahalanobis": "Mahalanobis distance",
    "relative_mahalanobis": "relative Mahalanobis distance",
    "residual": "residual",
    "mean_log_scale": "mean log scale",
    "total_variance": "total variance",
    "cross_view_energy": "cross-view energy score",
    "distance_and_scale": "kNN distance and scale",
    "uncertainty": "the uncertainty",
    "between_view_variance": "variance between views",
    "low_sharpness": "lack of sharpness",
    "low_feature_norm": "short features",
}


def metric(name: str) -> Metric:
    """How a number is shown; one we do not know keeps its name and gets no direction."""
    parts = parse(name)
    plain = METRICS.get(parts.plain)
    if plain is not None:
        return replace(plain, label=", ".join([plain.label, *parts.words]))
    group, _, rest = name.partition("_")
    if group in ("near", "far") and metric(rest).known:
        return replace(metric(rest), label=f"{metric(rest).label}, {group} sets")
    if name.startswith("auroc_"):
        return replace(METRICS["auroc"], label=f"AUROC, {score(name.removeprefix('auroc_'))}")
    return Metric(name.replace("_", " "), known=False)


class Parts(NamedTuple):
    """A metric's name taken apart: nll_calibrated_10pct is the nll, after temperature scaling, with 10 % of labels."""

    plain: str
    calibrated: str  # "" or "_calibrated"
    share: str  # "" or such as "_10pct"
    where: str  # "" or such as "_severity_3", "_extra"

    @property
    def words(self) -> list[str]:
        """What its endings mean."""
        where = self.where.strip("_").replace("_", " ")
        said = [
            self.share and f"{self.share[1:].removesuffix('pct')} % of the labels",
            self.calibrated and "temperature-scaled",
            {"extra": "the four extra corruptions"}.get(where, where),
        ]
        return [word for word in said if word]


def parse(name: str) -> Parts:
    """The parts of a metric's name."""
    found = re.fullmatch(r"(.+?)(_calibrated)?(_[\d.e+]+pct)?(_severity_\d|_extra)?", name)
    assert found is not None  # the first part takes what the others do not
    return Parts(*(part or "" for part in found.groups()))


def interval_of(name: str) -> tuple[str, str]:
    """The names under which a result keeps the ends of a number's interval."""
    plain, *endings = parse(name)
    ending = "".join(endings)
    return f"{plain}_low{ending}", f"{plain}_high{ending}"


def spread_of(name: str) -> str:
    """The name under which a result keeps a number's standard deviation over draws."""
    return f"{name}_sd"


def score(name: str) -> str:
    """An out-of-distribution score in words."""
    return SCORES.get(name, name.replace("_", " "))


def protocol(name: str) -> str:
    """The title of a protocol."""
    return PROTOCOLS.get(name, name.replace("_", " "))


def baseline(name: str) -> str:
    """The title of a baseline."""
    return BASELINES.get(name, name)


def number(value: float) -> str:
    """Three figures or so: 1,234 · 56.7 · 0.123 · 2.3e-5."""
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    if value == int(value) and size < 1e15:
        text = f"{int(value):,}"
    elif size >= 1000:
        text = f"{value:,.0f}"
    elif size >= 10:
        text = f"{value:.1f}"
    elif size >= 1:
        text = f"{value:.2f}"
    elif size >= 0.001:
        text = f"{value:.3f}" if size >= 0.01 else f"{value:.4f}"
    else:
        digits, exponent = f"{value:.1e}".split("e")
        text = f"{digits}e{int(exponent)}"
    return text.replace("-", "−")


def apart(values: Sequence[float]) -> list[str]:
    """Numbers with one count of decimals, enough to tell a tenth of their range."""
    known = [v for v in values if math.isfinite(v)]
    span = max(known) - min(known) if known else 0.0
    digits = min(6, max(2, 1 - math.floor(math.log10(span)))) if span > 0 else 2
    return [f"{v:.{digits}f}".replace("-", "−") if math.isfinite(v) else "–" for v in values]


def percent(value: float) -> str:
    """A share as per cent with one decimal."""
    return f"{100 * value:.1f} %".replace("-", "−") if math.isfinite(value) else "–"


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def best(values: Sequence[float | None], how: Metric) -> list[bool]:
    """Which values are shown in bold: the best and all that round to it; none where nothing differs."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    texts = ["" if v is None else how.text(v) for v in values]
    if not how.better or len({t for t in texts if t and t != "–"}) < 2:
        return [False] * len(values)
    winner = how.text(max(known) if how.better == "higher" else min(known))
    return [text == winner for text in texts]
