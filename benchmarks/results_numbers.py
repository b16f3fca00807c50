"""The numbers of RESULTS.md: what each measure is, its interval, and how it is written."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from prosmin.models.predictor import LOG_SCALE_RANGE
from results_runs import TEST, Finished, Seeds

Z = 1.96  # of a normal's 95 %
Interval = tuple[float, float]
SCORE = "mean_log_scale"
"""The out-of-distribution score that is the learned scale and nothing else."""

STRANGERS = {"near": "CIFAR-100", "far": "SVHN"}


@dataclass(frozen=True)
class Number:
    """A measure over seeds, with its 95 % interval where one can be had.

    Of one seed the interval is that of the test pictures' sampling, of several that with Student's over the seeds.
    """

    seeds: tuple[int, ...]
    values: tuple[float, ...]
    interval: Interval | None

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return statistics.fmean(self.values)

    @property
    def half(self) -> float | None:
        """Half the interval's width."""
        return None if self.interval is None else (self.interval[1] - self.interval[0]) / 2


@dataclass(frozen=True)
class Metric:
    """A measure: where it stands in a file, what its sampling interval is, which way is better."""

    title: str
    value: Callable[[Finished], float | None]
    better: int  # 1: higher, -1: lower, 0: neither
    percent: bool = True
    digits: int = 1
    sampling: Callable[[Finished, float], Interval | None] = lambda run, value: None
    note: Callable[[Seeds], str] = lambda seeds: ""

    def show(self, value: float, *, sign: bool = False) -> str:
        """The number as the page writes it."""
        return f"{100 * value if self.percent else value:{'+' if sign else ''}.{self.digits}f}"


def measure(metric: Metric, seeds: Seeds) -> Number | None:
    """The measure over the seeds that have it."""
    found = [(run, value) for run in seeds if (value := metric.value(run)) is not None]
    if not found:
        return None
    values = tuple(value for _, value in found)
    samplings = [metric.sampling(run, value) for run, value in found]
    halves = [(each[1] - each[0]) / 2 for each in samplings if each is not None]
    interval = samplings[0] if len(found) == 1 else over_seeds(values, halves)
    return Number(tuple(run.seed for run, _ in found), values, interval)


def write(metric: Metric, number: Number, seeds: Seeds) -> str:
    """`mean ± sd` of several seeds, `value [low, high]` of one, and what the measure adds to it."""
    text = metric.show(number.mean)
    if len(set(number.values)) > 1:
        text += f" ± {metric.show(statistics.stdev(number.values))}"
    elif len(number.values) == 1 and number.interval is not None:
        low, high = number.interval
        text += f" [{metric.show(low)}, {metric.show(high)}]"
    if number.seeds != tuple(run.seed for run in seeds):
        text += f" of {name_seeds(number.seeds)}"
    return text + metric.note(seeds)


def name_seeds(seeds: tuple[int, ...]) -> str:
    """seed 0, or seeds 0, 1, 2."""
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def over_seeds(values: tuple[float, ...], halves: Sequence[float]) -> Interval:
    """Student's 95 % interval of the mean, and the sampling of the test pictures, which all seeds share.

    `halves` are half the widths of the seeds' own sampling intervals; none where the files have none.
    """
    student = float(stdtrit(len(values) - 1, 0.975)) * statistics.stdev(values) / math.sqrt(len(values))
    half, mean = math.hypot(student, statistics.fmean(halves) if halves else 0.0), statistics.fmean(values)
    return mean - half, mean + half


def binomial(share: float, count: int = TEST) -> Interval:
    """Wilson's interval of a share of `count` pictures."""
    spread = Z * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    middle, scale = share + Z * Z / (2 * count), 1 + Z * Z / count
    return (middle - spread) / scale, (middle + spread) / scale


def ranking(auroc: float, positive: int = TEST, negative: int = TEST) -> Interval | None:
    """Hanley and McNeil's interval of an AUROC; None where a class is empty."""
    if min(positive, negative) < 1:
        return None
    square = auroc * auroc
    one, other = auroc / (2 - auroc) - square, 2 * square / (1 + auroc) - square
    variance = (auroc * (1 - auroc) + (positive - 1) * one + (negative - 1) * other) / (positive * negative)
    half = Z * math.sqrt(max(variance, 0.0))
    return auroc - half, auroc + half


def ood_metric(group: str, score: str | None = None, *, note: str = "") -> Metric:
    """AUROC of a label-free score for the near or the far set; without a score the default one's."""
    name = f"{group}_auroc" + (f"_{score}" if score else "")
    return Metric(
        f"{group} OOD ({STRANGERS[group]}) AUROC %",
        lambda run: run.metric("ood", name),
        better=1,
        sampling=lambda run, value: ranking(value),
        note=lambda seeds: note,
    )


def score_names(seeds: Seeds) -> list[str]:
    """The label-free scores of a run, in its file's order."""
    metrics = seeds[0].document["results"].get("ood", {}).get("metrics", {})
    return [name.removeprefix("near_auroc_") for name in metrics if name.startswith("near_auroc_")]


def best_score(group: str, seeds: Seeds) -> str | None:
    """The score with the highest mean over the seeds."""
    found = {name: measure(ood_metric(group, name), seeds) for name in score_names(seeds)}
    means = {name: number.mean for name, number in found.items() if number is not None}
    return max(means, key=lambda name: means[name]) if means else None


def at_bound(run: Finished) -> bool:
    """Whether the mean scale is the largest that the predictor can say, so that every picture's is."""
    scale = run.health("scale_mean")
    bound = _field(run, "heads.initial_scale") * math.exp(LOG_SCALE_RANGE) if scale else math.inf
    return scale is not None and scale > bound * (1 - 1e-3)  # the file has four digits


Column = Callable[[Seeds], Metric]
"""A measure may depend on the run: its best score has another name than another run's."""


def _share(title: str, protocol: str, name: str, *, better: int = 1) -> Metric:
    return Metric(
        title,
        lambda run: run.metric(protocol, name),
        better=better,
        sampling=lambda run, value: binomial(value),
    )


def _of_target(title: str, protocol: str) -> Metric:
    return Metric(
        title,
        lambda run: run.document.get("target", {}).get(protocol, {}).get("top1"),
        better=1,
        sampling=lambda run, value: binomial(value),
    )


def _low_shot(title: str, share: str) -> Metric:
    """Its interval holds the draw of the labels too."""

    def sampling(run: Finished, value: float) -> Interval:
        draws = len(run.document["results"]["lowshot"]["settings"]["shares"][share]["l2"])
        spread = run.metric("lowshot", f"top1_{share}_sd") or 0.0
        half = Z * math.sqrt(value * (1 - value) / TEST)
        if draws > 1:  # three draws know little of their spread: Student's factor is 4.3, not 1.96
            half = math.hypot(half, float(stdtrit(draws - 1, 0.975)) * spread / math.sqrt(draws))
        return value - half, value + half

    return Metric(title, lambda run: run.metric("lowshot", f"top1_{share}"), better=1, sampling=sampling)


def file_interval(protocol: str, name: str) -> Callable[[Finished, float], Interval | None]:
    """The interval that a file gives beside a metric."""

    def sampling(run: Finished, value: float) -> Interval | None:
        low, high = run.metric(protocol, f"{name}_low"), run.metric(protocol, f"{name}_high")
        return None if low is None or high is None else (low, high)

    return sampling


def _ece_floor(seeds: Seeds) -> str:
    floors = [floor for run in seeds if (floor := run.metric("linear", "ece_floor")) is not None]
    return f", floor {statistics.fmean(floors):.4f}" if floors else ""


def _r_auroc_interval(run: Finished, value: float) -> Interval | None:
    recall = run.metric("uncertainty", "recall_at_1")
    return None if recall is None else ranking(value, round((1 - recall) * TEST), round(recall * TEST))


def _order(name: str) -> Callable[[Finished], float | None]:
    """R-AUROC of a rival of the uncertainty, which every encoder has."""

    def value(run: Finished) -> float | None:
        sets = run.document["results"].get("uncertainty", {}).get("sets", {})
        return sets.get("test", {}).get(name, {}).get("r_auroc")

    return value


def _by_views(run: Finished) -> float | None:
    """The variance between views is the uncertainty itself where a method has no scale."""
    return _order("between_view_variance")(run) if run.has_forecast else run.metric("uncertainty", "r_auroc")


def _field(run: Finished, name: str) -> float:
    group, _, field = name.partition(".")
    return run.document["configuration"][group][field]


def _plain(title: str, protocol: str, name: str, *, digits: int) -> Metric:
    return Metric(title, lambda run: run.metric(protocol, name), better=-1, percent=False, digits=digits)


def _false_alarms(group: str) -> Metric:
    """Without an interval: its threshold is a quantile of test scores too, so that a binomial one is far too narrow."""
    return Metric(f"{group} FPR at 95 %", lambda run: run.metric("ood", f"{group}_fpr_at_95_tpr_in"), better=-1)


def _best(group: str) -> Column:
    def column(seeds: Seeds) -> Metric:
        score = best_score(group, seeds)
        return ood_metric(group, score or "none", note=f" `{score}`")

    return column


KNN = _share("kNN top-1 %", "knn", "top1")
TARGET_KNN = _of_target("target's kNN top-1 %", "knn")
TARGET_LINEAR = _of_target("target's linear top-1 %", "linear")
KNN_WIDE = _share("kNN top-1 %, k = 200", "knn", "top1_k200")
LINEAR = _share("linear top-1 %", "linear", "top1")
ONE_PERCENT = _low_shot("1 % of labels, top-1 %", "1pct")
TEN_PERCENT = _low_shot("10 % of labels, top-1 %", "10pct")
NLL = Metric(
    "linear NLL", lambda run: run.metric("linear", "nll"), better=-1, percent=False, digits=3,
    sampling=file_interval("linear", "nll"),
)  # fmt: skip
ECE = Metric(
    "linear ECE", lambda run: run.metric("linear", "ece"), better=-1, percent=False, digits=4,
    sampling=file_interval("linear", "ece"), note=_ece_floor,
)  # fmt: skip
CORRUPTION = _share("mean corruption error %", "corruption", "mean_error", better=-1)
CORRUPTION_NLL = _plain("mean corruption NLL", "corruption", "mean_nll", digits=3)
NEAR, FAR = ood_metric("near"), ood_metric("far")
R_AUROC = Metric(
    "R-AUROC %", lambda run: run.metric("uncertainty", "r_auroc"), better=1, sampling=_r_auroc_interval
)  # fmt: skip
R_AUROC_DISTANCE = Metric(
    "R-AUROC by distance %", _order("knn_distance"), better=1, sampling=_r_auroc_interval
)  # fmt: skip
RIVALS = {
    "distance": R_AUROC_DISTANCE,
    "view variance": Metric("by view variance", _by_views, better=0, sampling=_r_auroc_interval),
    "short feature": Metric("by short feature", _order("low_feature_norm"), better=0, sampling=_r_auroc_interval),
    "low sharpness": Metric("by low sharpness", _order("low_sharpness"), better=0, sampling=_r_auroc_interval),
}
"""Orders that need no scale: what the scale has to beat."""


def best_order(run: Finished) -> float | None:
    """The R-AUROC of the order that foretells a run's wrong neighbours best, of those that need no scale."""
    return max((value for metric in RIVALS.values() if (value := metric.value(run)) is not None), default=None)


NORM = Metric(
    "Spearman with feature norm",
    lambda run: run.metric("uncertainty", "spearman_feature_norm"),
    better=0, percent=False, digits=2,
)  # fmt: skip
R_AUROC_FAIR = Metric(
    "R-AUROC %, the twin's by its best order",
    lambda run: R_AUROC.value(run) if run.has_forecast else best_order(run),
    better=1,
    sampling=_r_auroc_interval,
)
RECALL = _share("R@1 %", "uncertainty", "recall_at_1")
RANK = Metric("effective rank", lambda run: run.document["effective_rank"], better=0, percent=False)
# Not ranked: machines and their neighbours differ more than methods do.
SECONDS = Metric("training, s", lambda run: run.document["training_seconds"], better=0, percent=False, digits=0)
VIEWS = Metric("views a picture", lambda run: 2 + _field(run, "views.local"), better=0, percent=False, digits=0)
PEAK_LR = Metric(
    "peak lr",
    # As training/schedules.py has it: the rate is given for a batch of 256.
    lambda run: _field(run, "optimizer.lr") * _field(run, "training.batch_size") / 256,
    better=0, percent=False, digits=4,
)  # fmt: skip
MOMENTUM = Metric("target momentum", lambda run: _field(run, "target.momentum"), better=0, percent=False, digits=3)
TARGET_STD = Metric("target std", lambda run: run.health("target_std"), better=0, percent=False, digits=4)
SCALE = Metric(
    "mean scale", lambda run: run.health("scale_mean"), better=0, percent=False, digits=4,
    note=lambda seeds: " at its bound" if all(map(at_bound, seeds)) else "",
)  # fmt: skip


AURC = _plain("AURC", "uncertainty", "aurc", digits=4)
FORETELLING = (RECALL, R_AUROC, *RIVALS.values(), NORM, AURC)
SETTINGS = (VIEWS, PEAK_LR, MOMENTUM, SECONDS, RANK)


def _same(metric: Metric) -> Column:
    return lambda seeds: metric


TARGET = "The target network's features"
"""A table that is left out where no file has its numbers: runs before the target was judged too."""
BLOCKS: dict[str, dict[str, Column]] = {
    "Representation": {metric.title: _same(metric) for metric in (KNN, KNN_WIDE, LINEAR, ONE_PERCENT, TEN_PERCENT)},
    TARGET: {metric.title: _same(metric) for metric in (TARGET_KNN, TARGET_LINEAR)},
    "Probabilities on clean pictures": {metric.title: _same(metric) for metric in (NLL, ECE)},
    "Probabilities under corruption": {
        metric.title: _same(metric)
        for metric in (
            CORRUPTION, CORRUPTION_NLL,
            *(_plain(f"ECE, severity {level}", "corruption", f"ece_severity_{level}", digits=4) for level in (1, 3, 5)),
        )
    },
    "Out of distribution without labels, default score": {
        "near (CIFAR-100) AUROC %": _same(NEAR),
        "near FPR at 95 %": _same(_false_alarms("near")),
        "far (SVHN) AUROC %": _same(FAR),
        "far FPR at 95 %": _same(_false_alarms("far")),
    },
    "Out of distribution, best score of each run, AUROC %": {
        "near, best score": _best("near"),
        "far, best score": _best("far"),
    },
    "What foretells a wrong neighbour, R-AUROC %": {metric.title: _same(metric) for metric in FORETELLING},
    "Settings and cost, not ranked": {metric.title: _same(metric) for metric in SETTINGS},
}  # fmt: skip
"""The tables of a backbone: title -> column -> measure."""
BASELINED = (
    "Representation",
    "Probabilities on clean pictures",
    "Out of distribution without labels, default score",
)
"""Tables that untrained networks and raw pixels have rows in."""
