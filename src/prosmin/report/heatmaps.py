"""A table of numbers as shades: rows by columns, each cell with its number."""

from collections.abc import Callable, Sequence

import numpy as np

from prosmin.report.axes import finite
from prosmin.report.drawing import WIDTH, Chart, Words, svg, text

NAMES, TOP, ROW, GAP = 116, 34, 21, 1.5
FAINT, STRONG = 0.05, 0.62  # opacities of the lowest and highest number; text stays readable on the strongest


def heat_chart(
    words: Words,
    rows: Sequence[str],
    columns: Sequence[str],
    values: np.ndarray,
    *,
    write: Callable[[float], str],
    whole: tuple[str, float] | None = None,
) -> Chart:
    """Values (rows, columns), empty where not finite; `whole` is a number without columns, drawn across the top."""
    known = finite(np.append(values.ravel(), [] if whole is None else [whole[1]]))
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    wide = (WIDTH - NAMES) / max(len(columns), 1)

    def cell(left: float, top: float, width: float, value: float) -> str:
        if not np.isfinite(value):
            return ""
        strength = FAINT + (STRONG - FAINT) * ((value - low) / (high - low) if high > low else 0.5)
        shade = (
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{width - GAP:.1f}" height="{ROW - GAP:.1f}" '
            f'rx="2" class="heat" fill-opacity="{strength:.3f}"/>'
        )
        return shade + text(left + (width - GAP) / 2, top + 13.5, write(value), "cell middle")

    body = [text(NAMES - 6, 11, words.y, "axis-label end"), text(NAMES, 11, words.x, "axis-label")]
    body += [text(NAMES + wide * (i + 0.5), TOP - 9, label, "tick middle") for i, label in enumerate(columns)]
    top = float(TOP)
    if whole is not None:
        body += [text(NAMES - 6, top + 13.5, whole[0], "tick end"), cell(NAMES, top, WIDTH - NAMES, whole[1])]
        top += ROW + 4
    for name, numbers in zip(rows, values, strict=True):
        body.append(text(NAMES - 6, top + 13.5, name, "tick end"))
        body += [cell(NAMES + wide * i, top, wide, float(value)) for i, value in enumerate(numbers)]
        top += ROW
    return Chart(svg=svg(words, body, height=round(top) + 2))
