"""Runs in, one HTML file out: style, script and images are inside it, nothing is fetched."""

from collections.abc import Sequence
from pathlib import Path

from prosmin.errors import ProsminError, UsageError
from prosmin.files import write_text
from prosmin.report.blocks import Block, Missing, Section, grouped
from prosmin.report.commands import not_measured
from prosmin.report.document import render_document
from prosmin.report.runs import Run, read_runs
from prosmin.report.sections import (
    attention,
    calibration,
    configuration,
    corruption,
    headline,
    images,
    map,
    ood,
    paper,
    results,
    training,
    uncertainty,
)
from prosmin.report.tables import mixed

SECTIONS: Sequence[Section] = (
    headline.SECTION,
    images.SECTION,
    map.SECTION,
    attention.SECTION,
    configuration.SECTION,
    training.SECTION,
    results.SECTION,
    calibration.SECTION,
    ood.SECTION,
    corruption.SECTION,
    uncertainty.SECTION,
    paper.SECTION,
)
"""The page from top to bottom. A new section is one file and one line here."""

ENDINGS = (".html", ".htm")


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Write the page of one run, or of several side by side; an older page at `out` is replaced."""
    out = Path(out)
    if out.is_dir():
        raise ProsminError(f"--out is the folder {out}; name a file, such as --out {out / 'report.html'}.")
    if out.suffix.lower() not in ENDINGS:
        raise UsageError(
            f"--out is {out}; the report is an HTML page, so its name must end in {' or '.join(ENDINGS)}, "
            f"such as --out {out.with_suffix('.html') if out.name else 'report.html'}. A browser can print it as PDF."
        )
    text = render(read_runs(runs))
    # A file name need not be valid Unicode; what cannot be written becomes a question mark.
    write_text(out, text.encode("utf-8", "replace").decode("utf-8"))
    return out


def render(runs: Sequence[Run]) -> str:
    """The page as text. The same runs give the same page."""
    return render_document(
        "prosmin.report",
        style="style.css",
        script="script.js",
        grouped=grouped,
        title=" · ".join(run.name for run in runs),
        lead=headline.lead(runs),
        notes=[f"{run.name}: {note}" for run in runs for note in (*run.notes, *_test_notes(run), *mixed(run))],
        sections=[drawn for section in SECTIONS if (drawn := _draw(section, runs))["blocks"]],
        command=" ".join(["prosmin report", *(run.quoted for run in runs)]),
    )


def _draw(section: Section, runs: Sequence[Run]) -> dict[str, object]:
    """What page.html needs of a section; without anything measured it has no lead."""
    blocks: list[Block] = list(section.build(runs))
    lead = section.lead if isinstance(section.lead, str) else section.lead(runs)
    lead = "" if all(isinstance(block, Missing) for block in blocks) else lead
    for run in runs:
        if section.protocol and not (section.has(run) if section.has else section.protocol in run.results):
            blocks += not_measured(run, section.protocol)
    return {"id": section.id, "title": section.title, "lead": lead, "blocks": blocks}


def _test_notes(run: Run) -> list[str]:
    """What its results say if their test images are not unseen, each sentence once."""
    notes = [run.part(name, "settings").get("test_pictures") for name in run.results]
    return [f"{text}." for text in dict.fromkeys(notes) if isinstance(text, str)]
