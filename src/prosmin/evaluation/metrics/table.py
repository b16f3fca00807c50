"""Every metric once: title, direction and unit. The command line, the report and the benchmarks read this table."""

import math
import re
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

CHANCE = 0.5  # AUROC of a score that says nothing


@dataclass(frozen=True)
class Metric:
    """One number of a result. `better` is empty where neither direction is better."""

    title: str
    better: Literal["higher", "lower", ""] = ""
    unit: Literal["%", "auroc", ""] = ""  # auroc: from 0 to 1 in the report, in percent in the command line's table
    short: str = ""  # in narrow tables; empty: the title
    main: bool = False  # stays visible in the report where a result has many numbers
    known: bool = True

    @property
    def percent(self) -> bool:
        """Whether the report shows it in percent."""
        return self.unit == "%"

    def text(self, value: float) -> str:
        """The number, rounded for a reader; a known metric gets three decimals, so that columns line up."""
        if self.percent:
            return percent(value)
        return f"{value:.3f}".replace("-", "−") if self.known and math.isfinite(value) else number(value)

    def short_text(self, value: float) -> str:
        """The number in a narrow table whose heading names the unit."""
        return f"{100 * value:.1f}" if self.unit else f"{value:.3f}"

    def heading(self) -> str:
        """The title with its direction, on one line."""
        return f"{self.title}\u00a0{self.arrow()}" if self.better else self.title

    def arrow(self) -> str:
        """The direction as a sign."""
        return {"higher": "↑", "lower": "↓", "": ""}[self.better]


METRICS = {
    "top1": Metric("top-1 accuracy", "higher", "%", short="top-1", main=True),
    "top1_k200": Metric("top-1 accuracy, k = 200", "higher", "%"),
    "top1_half_whitened": Metric("top-1 accuracy, half-whitened features", "higher", "%"),
    "nll": Metric("negative log-likelihood", "lower", short="NLL", main=True),
    "ece": Metric("calibration error (ECE)", "lower", short="ECE", main=True),
    "ece_floor": Metric("ECE floor at this size"),
    "adaptive_ece": Metric("adaptive ECE", "lower"),
    "classwise_calibration_error": Metric("class-wise calibration error", "lower"),
    "brier": Metric("Brier score", "lower"),
    "temperature": Metric("temperature"),
    "auroc": Metric("AUROC", "higher", "auroc"),
    "aupr_in": Metric("AUPR, in positive", "higher"),
    "aupr_out": Metric("AUPR, out positive", "higher"),
    "fpr_at_95_tpr_in": Metric("FPR at 95 % TPR, in positive", "lower", "%"),
    "fpr_at_95_tpr_out": Metric("FPR at 95 % TPR, out positive", "lower", "%"),
    "recall_at_1": Metric("recall at 1 (R@1)", "higher", "%", short="R@1", main=True),
    "r_auroc": Metric(
        "R-AUROC: does uncertainty predict a wrong neighbour", "higher", "auroc", short="R-AUROC", main=True
    ),
    "aurc": Metric("area under the risk-coverage curve", "lower", main=True),
    "aurc_optimal": Metric("the same in the best possible order"),
    "aurc_random": Metric("the same in random order"),
    "mean_error": Metric("mean error", "lower", "%", short="error", main=True),
    "mean_nll": Metric("mean negative log-likelihood", "lower", main=True),
    "mean_ece": Metric("mean calibration error (ECE)", "lower", main=True),
    "mce": Metric("mean corruption error (mCE, AlexNet is 100 %)", "lower", "%", main=True),
    "relative_mce": Metric("relative mCE", "lower", "%", main=True),
    "clean_error": Metric("error on clean images", "lower", "%", main=True),
    "clean_nll": Metric("negative log-likelihood on clean images", "lower"),
    "clean_ece": Metric("calibration error on clean images", "lower"),
    **{
        f"coverage_{p}": Metric(
            f"coordinates within intervals of {p} %", "", "%", short=f"coverage of {p} % intervals", main=p == 90
        )
        for p in (50, 90, 95)
    },
    **{f"joint_coverage_{p}": Metric(f"observations within ellipsoids of {p} %", "", "%") for p in (50, 90, 95)},
    **{
        f"joint_coverage_{p}_radius": Metric(f"observations within regions of {p} % by the forecast radius", "", "%")
        for p in (50, 90, 95)
    },
    **{
        f"joint_coverage_{p}_reachable": Metric(f"observations that ellipsoids of {p} % could reach", "", "%")
        for p in (50, 90, 95)
    },
    "squared_error_ratio": Metric("squared error over squared scale, 1 where the scale is right", main=True),
    "pit_distance": Metric("distance of the PIT from uniform", "lower"),
    "energy_score": Metric("energy score of the forecasts"),
    "energy_skill": Metric("energy-score skill against one constant scale", "higher", short="energy skill", main=True),
    "energy_skill_coordinates": Metric("energy-score skill against a constant scale for each coordinate", "higher"),
    "energy_skill_climatology": Metric("energy-score skill against a forecast that ignores the image", "higher"),
    "spearman_crop": Metric("rank correlation with smaller crops", "higher", short="Spearman crop"),
    "spearman_blur": Metric("rank correlation with blur", "higher", short="Spearman blur"),
    "spearman_noise": Metric("rank correlation with noise", "higher", short="Spearman noise"),
    "spearman_sharpness": Metric("rank correlation with the image's sharpness"),
    "spearman_feature_norm": Metric("rank correlation with the length of the features"),
    "map_neighbours_kept": Metric("neighbours the map keeps together", "", "%"),
}
ACCURACIES = ("top1", "top1_k200", "top1_half_whitened", "recall_at_1")
"""Shares of correct answers, one answer per image: their interval follows from the number of images."""

SCORES = {
    "knn_distance": "kNN distance",
    "neighbour_distance": "half-whitened distance (embed)",
    "centred_distance": "centred kNN distance",
    "neighbour_dispersion": "dispersion of the neighbours",
    "similarity_norm": "similarity times length",
    "mahalanobis": "Mahalanobis distance",
    "relative_mahalanobis": "relative Mahalanobis distance",
    "residual": "residual",
    "mean_log_scale": "mean log scale",
    "total_variance": "total variance",
    "cross_view_energy": "cross-view energy score",
    "surprise": "surprise: energy score at the target's embedding",
    "standardised_error": "standardised error of the forecast",
    "distance_and_scale": "kNN distance and scale",
    "uncertainty": "the uncertainty",
    "between_view_variance": "variance between views",
    "low_sharpness": "lack of sharpness",
    "low_feature_norm": "short features",
}
"""Titles of out-of-distribution and uncertainty scores."""


def metric(name: str) -> Metric:
    """The metric of a name, with its suffixes in the title; an unknown one keeps its name and has no direction."""
    parts = parse(name)
    plain = METRICS.get(parts.plain)
    if plain is not None:
        return replace(plain, title=", ".join([plain.title, *parts.words]))
    group, _, rest = name.partition("_")
    if group in ("near", "far") and metric(rest).known:
        return replace(metric(rest), title=f"{metric(rest).title}, {group} sets")
    if name.startswith("auroc_"):
        return replace(METRICS["auroc"], title=f"AUROC, {score(name.removeprefix('auroc_'))}")
    return Metric(name.replace("_", " "), known=False)


def short_heading(name: str) -> str:
    """The heading of a metric's column in a narrow table, with its unit."""
    parts = parse(name)
    if parts.plain == "top1" and parts.share:
        return f"{parts.share[1:].removesuffix('pct')} %"  # the share of the labels
    how = metric(parts.plain)
    return ", ".join([(how.short or how.title) + (" %" if how.unit else ""), *parts.words])


def score(name: str) -> str:
    """The title of a score."""
    return SCORES.get(name, name.replace("_", " "))


class Parts(NamedTuple):
    """A metric's name in parts: nll_calibrated_10pct is the nll, after temperature scaling, with 10 % of labels."""

    plain: str
    calibrated: str  # "" or "_calibrated"
    share: str  # "" or such as "_10pct"
    where: str  # "" or such as "_severity_3", "_extra"

    @property
    def words(self) -> list[str]:
        """What its suffixes mean."""
        where = self.where.strip("_").replace("_", " ")
        words = [
            self.share and f"{self.share[1:].removesuffix('pct')} % of the labels",
            self.calibrated and "temperature-scaled",
            {"extra": "the four extra corruptions"}.get(where, where),
        ]
        return [word for word in words if word]


def parse(name: str) -> Parts:
    """The parts of a metric's name."""
    found = re.fullmatch(r"(.+?)(_calibrated)?(_[\d.e+]+pct)?(_severity_\d|_extra)?", name)
    assert found is not None  # the first part takes what the others do not
    return Parts(*(part or "" for part in found.groups()))


def interval_of(name: str) -> tuple[str, str]:
    """The names under which a result keeps the ends of a metric's confidence interval."""
    plain, *endings = parse(name)
    ending = "".join(endings)
    return f"{plain}_low{ending}", f"{plain}_high{ending}"


def spread_of(name: str) -> str:
    """The name under which a result keeps a metric's standard deviation over draws."""
    return f"{name}_sd"


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


def percent(value: float) -> str:
    """A share as percent with one decimal."""
    return f"{100 * value:.1f} %".replace("-", "−") if math.isfinite(value) else "–"
