"""Findings of a made-up folder, with names that try to do harm."""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from prosmin.inspect.findings import Findings, Issue

NASTY = (
    "<img src=x onerror=window.harmed=1>.jpg",
    "a<" + "/script><script>window.harmed=1<" + "/script>.jpg",
    "it's \"quoted\" ''.jpg",
    "new\nline.jpg",
    "ends with a line break\n",
    "carriage\rreturn\ttab.jpg",
    "-rf.jpg",
    "--help/-n",
    "$(touch harmed) `touch harmed` ${HOME} $PATH.jpg",
    "; touch harmed #.jpg",
    "back\\slash\\n\\'.jpg",
    "* ? [a-z] ~ {a,b} !.jpg",
    " leading and trailing ",
    '=1+1,"x".csv',
    "日本語/é ☃ 😀.jpg",
    "\u202egpj.exe",
    "l" * 200,
    os.fsdecode(b"not UTF-8 \xe9\xff\xc3.jpg"),
    os.fsdecode(b"all bytes " + bytes(range(128, 256))),
    os.fsdecode("😀".encode() + b"\x80'\xff"),
)
"""Paths below a folder that every part of the page and every download must get right."""


def jpeg(seed: int, *, side: int = 24) -> bytes:
    """A small image, different for each seed."""
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).resize((side, side)).save(buffer, format="JPEG")
    return buffer.getvalue()


def made_findings(folder: Path | str, n: int = 60, **changes: Any) -> Findings:
    """N images, the first ones with nasty names, in two classes, with issues of several kinds; k is 8 at most."""
    rng = np.random.default_rng(0)
    keys = [*NASTY[:n], *(f"{'cat' if i % 2 else 'dog'}/{i:04d}.jpg" for i in range(len(NASTY), n))]
    points = rng.normal(size=(n, 2)).astype(np.float32)
    far = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.fill_diagonal(far, np.inf)
    near = np.argsort(far, axis=1)[:, : min(8, n - 1)]
    score = rng.uniform(0, 2, n).astype(np.float32)
    values: dict[str, Any] = {
        "folder": str(folder),
        "encoder": "cifar10-vit",
        "reference": None,
        "rate": 0.05,
        "threshold": 1.5,
        "keys": keys,
        "labels": [None if i < 4 else "<b>cat</b>" if i % 2 else "dog" for i in range(n)],
        "columns": {
            "width": rng.integers(16, 4000, n),
            "ood_score": score,
            "mean_log_scale": np.where(np.arange(n) == 5, np.nan, rng.normal(size=n)),
        },
        "points": points,
        "neighbours": near,
        "distances": np.take_along_axis(far, near, axis=1).astype(np.float32),
        "representative": [int(row) for row in rng.permutation(n)[:10]],
        "issues": made_issues(keys, score) if n >= 40 else [],
        "thumbnail": jpeg,
    }
    return Findings(**(values | changes))


def made_issues(keys: list[str], score: np.ndarray) -> list[Issue]:
    """Two groups of duplicates, images that do not belong, a dark one, and two files that cannot be read."""
    groups = {("exact_duplicate", 0): (30, 31, 3), ("near_duplicate", 1): (32, 17), ("near_duplicate", 2): (33, 34)}
    issues = [
        Issue(
            row, keys[row], kind, 1.0, group, "keep" if row == rows[0] else f"remove, keep {keys[rows[0]]}", "mirrored"
        )
        for (kind, group), rows in groups.items()
        for row in rows
    ]
    issues += [
        Issue(row, keys[row], "ood", float(score[row]), note=f"nearest: {keys[0]}")
        for row in np.flatnonzero(score > 1.5).tolist()
    ]
    issues.append(Issue(35, keys[35], "dark", float("nan")))
    return issues + [Issue(-1, f"broken {i}.jpg", "unreadable", 1.0, note=f"<i>reason {i}</i>") for i in range(2)]
