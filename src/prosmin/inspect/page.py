"""Findings in, one HTML file out: data, thumbnails, style and script are inside it, nothing is fetched."""

import base64
import io
import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from prosmin.embed.rows import COLUMNS
from prosmin.files import write_text
from prosmin.inspect.findings import KINDS, Findings, Issue
from prosmin.inspect.images import splits_of
from prosmin.randomness import generator
from prosmin.report.document import render_document

LIMIT = 4_000
"""Images on the page. Beyond it thumbnails of a useful size would make the file too large to open at once."""

SAMPLE = 400
"""Images of a larger folder that are on the page whether they have an issue or not."""

BYTES = 12_000_000
"""Size of all thumbnails as base64. If they are larger, they are made smaller."""

SIDES = (160, 128, 112, 96, 80, 64, 48)
"""Longest sides, in pixels, that are tried until the thumbnails fit into BYTES."""

TITLES = {
    "width": ("Width", "pixels"),
    "height": ("Height", "pixels"),
    "file_size": ("File size", "bytes"),
    "ood_score": ("OOD score", COLUMNS["ood_score"][1]),
    "reference_distance": ("Reference distance", COLUMNS["reference_distance"][1]),
    "uncertainty": ("Uncertainty", COLUMNS["uncertainty"][1]),
    "mean_log_scale": ("Forecast scale", COLUMNS["mean_log_scale"][1]),
    "brightness": ("Brightness", "mean of the brightest channel; 0 is black"),
    "brightest": ("Bright parts", "5 % of the pixels are brighter, by their brightest channel"),
    "whiteness": ("Whiteness", "mean of the darkest channel; 1 is white"),
    "least_white": ("Least white parts", "5 % of the pixels are less white, by their darkest channel"),
    "contrast": ("Contrast", "standard deviation of the colours in a small version of the image"),
    "sharpness": ("Sharpness", "strength of the sharpest edges; a blurred image has less than others"),
    "colour": ("Colour", "largest difference between the colour channels; 0 is grey"),
}
"""Column -> title and meaning; other columns are shown by their names."""


def write_page(findings: Findings, out: Path, *, limit: int = LIMIT) -> None:
    """Write the page of a folder; an older page at `out` is replaced."""
    rows = shown_rows(findings, limit=limit)
    issues = _shown_issues(findings, rows, limit=limit)
    thumbnails, starts = _thumbnails([findings.thumbnail(row) for row in rows.tolist()])
    text = render_document(
        "prosmin.inspect",
        style="page.css",
        script="page.js",
        title=Path(findings.folder).name or findings.folder,
        lead=_lead(findings),
        notes=[*findings.notes, *_cut_note(findings, shown=len(rows))],
        clean=_clean(findings),
        data=Markup(_json(_data(findings, rows, issues) | {"starts": _packed(starts)})),
        thumbnails=Markup(thumbnails),
    )
    # A folder's name need not be valid Unicode; what cannot be written becomes a question mark.
    write_text(Path(out), text.encode("utf-8", "replace").decode("utf-8"))


def shown_rows(findings: Findings, *, limit: int) -> NDArray[np.int64]:
    """(n,) rising rows: all, or those with issues, the worst of each kind first, then representative ones, then any."""
    if len(findings) <= limit:
        return np.arange(len(findings))
    groups: dict[str, dict[object, list[Issue]]] = defaultdict(lambda: defaultdict(list))
    for issue in findings.issues:
        if issue.image >= 0:
            groups[issue.kind][("row", issue.image) if issue.group is None else issue.group].append(issue)
    ranked = [sorted(each.values(), key=lambda group: -max(i.score for i in group)) for each in groups.values()]
    chosen: dict[int, None] = {}
    for group in chain.from_iterable(zip_longest(*ranked, fillvalue=[])):
        new = {issue.image: None for issue in group if issue.image not in chosen}
        if len(chosen) + len(new) <= limit - min(SAMPLE, limit // 2):  # a group is shown whole or not at all
            chosen |= new
    any_rows = torch.randperm(len(findings), generator=generator(0, 0, "inspect page")).tolist()
    order = dict.fromkeys(chain(chosen, findings.representative, any_rows))
    return np.sort(np.fromiter(order, np.int64)[:limit])


def _shown_issues(findings: Findings, rows: NDArray[np.int64], *, limit: int) -> list[Issue]:
    """The issues of the images on the page, and of as many files that cannot be read."""
    shown = set(rows.tolist())
    files = [issue for issue in findings.issues if issue.image < 0][:limit]
    return [issue for issue in findings.issues if issue.image in shown] + files


def _clean(findings: Findings) -> list[str]:
    """Titles of the kinds that were checked and not found."""
    found = {issue.kind for issue in findings.issues}
    unchecked = {"uncertain"}  # a share of the images in any case, as is "ood" without a reference
    if findings.reference is None or "ood_score" not in findings.columns:
        unchecked.add("ood")
    if findings.reference is None and not any(splits_of(findings.keys)):
        unchecked.add("leak")
    return [kind.title for name, kind in KINDS.items() if name not in found | unchecked]


def _lead(findings: Findings) -> str:
    """What was compared with what, in one sentence or two."""
    count = "1 image" if len(findings) == 1 else f"{len(findings):,} images"
    if "ood_score" not in findings.columns:
        return f"{count}, compared by the encoder {findings.encoder}."
    share = f"{100 * findings.rate:.3g} %"
    if findings.reference is None:
        return (
            f"{count}, compared with each other by the encoder {findings.encoder}. The {share} that are least like the "
            "rest are listed as not belonging, whether or not anything is wrong with them."
        )
    return (
        f"{count}, compared with {findings.reference} by the encoder {findings.encoder}. "
        f"Of images that belong, about {share} are flagged as not belonging."
    )


def _cut_note(findings: Findings, *, shown: int) -> list[str]:
    if shown == len(findings):
        return []
    return [
        f"This page has {shown:,} of the {len(findings):,} images: those with issues, the worst first, and a sample of "
        "the others. The files beside it have all of them."
    ]


def _data(findings: Findings, rows: NDArray[np.int64], issues: Sequence[Issue]) -> dict[str, Any]:
    """What page.js reads. An item is an image on the page, in the order of `rows`, or a file that cannot be read."""
    files = list(dict.fromkeys(issue.name for issue in issues if issue.image < 0))
    place = {row: i for i, row in enumerate(rows.tolist())}
    item = {name: len(rows) + i for i, name in enumerate(files)}
    labels = [findings.labels[row] for row in rows.tolist()]
    classes = sorted({label for label in labels if label is not None})
    number = {name: i for i, name in enumerate(classes)}
    places = np.full(len(findings) + 1, -1)  # the last is for neighbours that are missing, -1
    places[rows] = np.arange(len(rows))
    totals = Counter(issue.kind for issue in findings.issues)
    return {
        "folder": _folder(findings.folder),
        "images": len(rows),
        "names": [*(findings.keys[row] for row in rows.tolist()), *files],
        "classes": classes,
        "labels": _packed(np.array([-1 if label is None else number[label] for label in labels], np.int64)),
        "kinds": [
            {"id": kind, "title": title, "meaning": meaning, "action": action, "total": totals[kind]}
            for kind, (title, meaning, action) in KINDS.items()
            if totals[kind]
        ],
        "issues": [
            {
                "item": place[issue.image] if issue.image >= 0 else item[issue.name],
                "kind": issue.kind,
                "score": float(issue.score) if math.isfinite(issue.score) else None,
                "group": issue.group,
                "action": issue.action,
                "note": issue.note,
            }
            for issue in issues
        ],
        "columns": [
            {"id": name, "title": _title(name)[0], "meaning": _title(name)[1], "values": _packed(values[rows])}
            for name, values in findings.columns.items()
        ],
        "threshold": findings.threshold if math.isfinite(findings.threshold) else None,
        "points": _packed(np.asarray(findings.points, np.float32)[rows]),
        "neighbours": _packed(places[findings.neighbours[rows]]),
        "distances": _packed(np.asarray(findings.distances, np.float32)[rows]),
        "representative": [place[row] for row in findings.representative if row in place],
    }


def _title(column: str) -> tuple[str, str]:
    return TITLES.get(column, (column.replace("_", " ").capitalize(), ""))


def _folder(folder: str) -> str | None:
    """The absolute path of a folder, from which images can be moved; None if it is another kind of source."""
    path = folder.removeprefix("folder:")
    return os.path.abspath(path) if os.path.isdir(path) else None


def _packed(values: NDArray[Any]) -> dict[str, str]:
    """An array as base64, several times shorter than a list and quicker to read: float32, int32 or float64."""
    if values.dtype.kind in "biu" and (values.size == 0 or np.abs(values.astype(np.float64)).max() < 2**31):
        kind = "i4"
    else:
        kind = "f4" if values.dtype in (np.float16, np.float32) else "f8"
    return {"type": kind, "text": base64.b64encode(values.astype(f"<{kind}").tobytes()).decode("ascii")}


def _json(value: Any) -> str:
    """JSON in ASCII that cannot end the element around it; names that are not UTF-8 keep their escaped bytes."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _thumbnails(jpegs: Sequence[bytes]) -> tuple[str, NDArray[np.int64]]:
    """Base64 of all JPEGs in one piece, and where each begins, (n + 1,): each part of it is valid base64 by itself."""
    every = max(1, len(jpegs) // 64)  # enough images to know the size of all within a few per cent
    sides = (side for side in SIDES if len(jpegs) * _mean_size(_smaller(jpeg, side) for jpeg in jpegs[::every]) < BYTES)
    if len(jpegs) * _mean_size(jpegs[::every]) >= BYTES:
        side = next(sides, SIDES[-1])
        jpegs = [_smaller(jpeg, side) for jpeg in jpegs]
    # With a multiple of three bytes there is no padding within the text. A JPEG may be followed by anything.
    texts = [base64.b64encode(jpeg + bytes(-len(jpeg) % 3)).decode("ascii") for jpeg in jpegs]
    return "".join(texts), np.cumsum([0, *map(len, texts)])


def _mean_size(jpegs: Iterable[bytes]) -> float:
    """Bytes per image as base64."""
    sizes = [len(jpeg) * 4 / 3 for jpeg in jpegs]
    return sum(sizes) / max(1, len(sizes))


def _smaller(jpeg: bytes, side: int) -> bytes:
    """The JPEG with a longest side of at most `side` pixels."""
    with Image.open(io.BytesIO(jpeg)) as image:
        image.thumbnail((side, side))
        buffer = io.BytesIO()
        image.save(buffer, format="JPEG", quality=75, optimize=True)
    return min(jpeg, buffer.getvalue(), key=len)
