"""`prosmin inspect`: what does not belong in a folder of images, what is there twice, what is too bad to use."""

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from prosmin.commands.parsing import ENCODER, check_folder, path
from prosmin.data.sources import spec_of

if TYPE_CHECKING:  # it imports torch
    from prosmin.inspect.findings import Findings

LINE = "find what does not belong in a folder of images, what is there twice, what is too bad to use"
TAKES_FIELDS = False


def declare(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="the images: a folder with all its subfolders, or a SPEC such as parquet:FILE")
    add("--encoder", default="cifar10-vit", metavar="RUN", help=f"{ENCODER} (default: cifar10-vit)")
    add("--reference", metavar="SPEC", help="images that belong, a folder or a SPEC (default: the folder itself)")
    text = "where the results go (default: inspection-NAME in the current directory); the same command continues, and "
    add("--out", type=path, metavar="DIR", help=f"{text}computes only new and changed images")
    text = "share of images like the reference that may be flagged as not belonging (default: 0.05)"
    add("--false-alarms", type=float, metavar="SHARE", help=text)
    add("--representative", type=int, default=50, metavar="N", help="number of images to label first (default: 50)")


def run(options: argparse.Namespace, fields: dict[str, str]) -> None:
    """Inspect the folder and print a summary."""
    spec = spec_of(options.folder)
    check_folder(spec)
    out = options.out or default_out(spec)
    from prosmin.inspect import inspect

    findings = inspect(
        options.folder,
        out,
        encoder=options.encoder,
        reference=options.reference,
        false_alarms=options.false_alarms,
        count=options.representative,
        command=options.line,
    )
    print("\n".join(_summary(findings, out / "index.html")))


def default_out(spec: str) -> Path:
    """inspection-NAME in the current directory; beside the folder of images if that contains the current directory."""
    place = Path(spec.partition(":")[2] or spec).expanduser()
    place = place.resolve() if place.exists() else place
    name = re.sub(r"[^\w.@-]+", "-", place.stem if place.is_file() else place.name).strip("-.") or "images"
    inside = place.is_dir() and Path.cwd().is_relative_to(place)
    return (place.parent if inside else Path()) / f"inspection-{name}"


def _summary(findings: "Findings", page: Path) -> Iterator[str]:
    """The number of images of each kind of issue, and where to read more."""
    from prosmin.inspect.findings import KINDS

    for note in findings.notes:
        yield f"note: {note}"
    counts = Counter(issue.kind for issue in findings.issues)
    groups = {kind: len({one.group for one in findings.issues if one.kind == kind} - {None}) for kind in counts}
    yield f"{_counted(len(findings), 'image')}, {_counted(counts['unreadable'], 'unreadable file')}"
    for kind, (title, _, _) in KINDS.items():
        if count := counts[kind]:
            yield f"  {title:18} {count:6,}" + (f"  in {_counted(groups[kind], 'group')}" if groups[kind] else "")
    if not counts:
        yield "  no issues"
    yield f"open {page}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
