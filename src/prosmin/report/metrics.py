"""How the report writes numbers: the best value in bold, decimals that tell values apart, durations."""

import math
from collections.abc import Sequence

from prosmin.evaluation.metrics.table import Metric
from prosmin.evaluation.protocols import PROTOCOLS

BASELINES = {"untrained": "untrained encoder", "untrained, BatchNorm set": "untrained encoder, BatchNorm set"}


def protocol(name: str) -> str:
    """The title of a protocol."""
    return PROTOCOLS[name].title if name in PROTOCOLS else name.replace("_", " ")


def baseline(name: str) -> str:
    """The title of a baseline."""
    return BASELINES.get(name, name)


def apart(values: Sequence[float]) -> list[str]:
    """Numbers with the same count of decimals, enough to show a tenth of their range."""
    known = [v for v in values if math.isfinite(v)]
    span = max(known) - min(known) if known else 0.0
    digits = min(6, max(2, 1 - math.floor(math.log10(span)))) if span > 0 else 2
    return [f"{v:.{digits}f}".replace("-", "−") if math.isfinite(v) else "–" for v in values]


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
    """Which values are shown in bold: the best and all that round to it; none if all values are equal."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    texts = ["" if v is None else how.text(v) for v in values]
    if not how.better or len({t for t in texts if t and t != "–"}) < 2:
        return [False] * len(values)
    winner = how.text(max(known) if how.better == "higher" else min(known))
    return [text == winner for text in texts]
