"""From what was found to issues, one for each image and kind, and their list as a CSV file."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from prosmin.files import write_text
from prosmin.inspect.duplicates import DuplicateGroup
from prosmin.inspect.findings import KINDS, Issue
from prosmin.inspect.images import printable
from prosmin.inspect.outliers import Outliers

UNCERTAIN = 0.05
"""The share of images that are listed as uncertain, one at least."""

COLUMNS = ("name", "kind", "score", "group", "action", "note")


def duplicate_issues(
    groups: Sequence[DuplicateGroup], names: Sequence[str], splits: Sequence[str | None], *, others: Sequence[str]
) -> list[Issue]:
    """Issues of the images in groups of copies, numbered in order.

    Rows from len(names) on are images of the reference, whose names are `others`. A group with images of two splits,
    or with one of the reference, is a leak.
    """
    issues: list[Issue] = []
    number = 0
    for group in groups:
        here = [(row, note) for row, note in zip(group.members, group.notes, strict=True) if row < len(names)]
        there = [row for row in group.members if row >= len(names)]
        if not here:
            continue
        found = {splits[row] for row, _ in here} - {None}
        leak = bool(there) or len(found) > 1
        kind = "leak" if leak else group.kind
        for row, note in here:
            elsewhere = [f"{names[r]} ({splits[r]})" for r, _ in here if splits[r] != splits[row]]
            elsewhere += [f"{others[r - len(names)]} (reference)" for r in there]
            kept = group.members[0]
            action = "keep" if row == kept else f"remove, keep {names[kept]}" if kept < len(names) else ""
            issues.append(
                Issue(
                    row,
                    names[row],
                    kind,
                    group.score,
                    group=number,
                    action=KINDS["leak"].action if leak else action,
                    note="; ".join(filter(None, [note, f"copy of {elsewhere[0]}" if leak and elsewhere else ""])),
                )
            )
        number += 1
    return issues


def outlier_issues(found: Outliers, names: Sequence[str], *, others: Sequence[str]) -> list[Issue]:
    """Issues of the flagged images; `others` are the names of the reference."""
    rows = np.flatnonzero(found.flag).tolist()
    return [
        _issue(row, names, "ood", float(found.score[row]), note=f"nearest: {others[found.nearest[row]]}")
        for row in rows
    ]


def uncertain_issues(found: Outliers, names: Sequence[str]) -> list[Issue]:
    """Issues of the images whose neighbours disagree most, among those that are not flagged."""
    order = np.argsort(-found.disagreement, kind="stable")
    top = order[~found.flag[order]][: max(1, int(UNCERTAIN * len(order)))]
    return [_issue(row, names, "uncertain", float(found.disagreement[row])) for row in top.tolist()]


def quality_issues(found: Iterable[tuple[int, str, float]], names: Sequence[str]) -> list[Issue]:
    """Issues of images of bad quality."""
    return [_issue(row, names, kind, score) for row, kind, score in found]


def unreadable_issues(unreadable: Iterable[tuple[str, str]]) -> list[Issue]:
    """Issues of files that have no row, with the reason."""
    action = KINDS["unreadable"].action
    return [Issue(-1, name, "unreadable", 1.0, action=action, note=reason) for name, reason in unreadable]


def _issue(row: int, names: Sequence[str], kind: str, score: float, *, note: str = "") -> Issue:
    return Issue(row, names[row], kind, score, action=KINDS[kind].action, note=note)


def in_order(issues: Iterable[Issue]) -> list[Issue]:
    """By kind in the order of KINDS, copies by group with the one to keep first, all others the worst first."""
    place = {kind: i for i, kind in enumerate(KINDS)}
    # Sorting is stable: the members of a group stay in their order.
    return sorted(issues, key=lambda one: (place[one.kind], -one.score if one.group is None else one.group))


def write_issues(path: Path, issues: Iterable[Issue]) -> None:
    """One line per image and issue."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(COLUMNS)
    for one in issues:
        group = "" if one.group is None else one.group
        lines.writerow(
            [_cell(one.name), one.kind, f"{one.score:.6g}", group, printable(one.action), printable(one.note)]
        )
    write_text(path, text.getvalue())


def _cell(name: str) -> str:
    """A name that a spreadsheet would take for a formula, or a program for an option, is written as ./NAME."""
    return printable(f"./{name}" if name[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else name)
