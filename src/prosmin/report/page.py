"""Sections in, one HTML file out: style, script and images inside it, nothing fetched from anywhere."""

import base64
import hashlib
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from prosmin.errors import ProsminError, UsageError
from prosmin.files import write_text
from prosmin.report.blocks import Section, grouped
from prosmin.report.runs import Run, read_runs
from prosmin.report.sections.attention import attention_section
from prosmin.report.sections.calibration import calibration_section
from prosmin.report.sections.corruption import corruption_section
from prosmin.report.sections.images import pictures_section
from prosmin.report.sections.map import map_section
from prosmin.report.sections.ood import ood_section
from prosmin.report.sections.paper import paper_section
from prosmin.report.sections.results import results_section
from prosmin.report.sections.summary import headline_section, lead, sentence, summary_section
from prosmin.report.sections.training import training_section
from prosmin.report.sections.uncertainty import uncertainty_section
from prosmin.report.tables import mixed

SECTIONS: Sequence[Callable[[Sequence[Run]], Section]] = (
    headline_section,
    summary_section,
    training_section,
    results_section,
    paper_section,
    calibration_section,
    ood_section,
    corruption_section,
    uncertainty_section,
    map_section,
    attention_section,
    pictures_section,
)
"""The page from top to bottom; a section without blocks is left out. A new part is one file and one line here."""

ENDINGS = (".html", ".htm")


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Write the page of one run, or of several side by side; a page that stood at `out` is replaced whole."""
    out = Path(out)
    if out.is_dir():
        raise ProsminError(
            f"{out} is a folder and the report is a file; name one, such as --out {out / 'report.html'}."
        )
    if out.suffix.lower() not in ENDINGS:
        raise UsageError(
            f"--out is {out}; the report is a page of HTML: allowed are *{' and *'.join(ENDINGS)}, "
            f"such as --out {out.with_suffix('.html') if out.name else 'report.html'}. A browser prints it as PDF."
        )
    text = render(read_runs(runs))
    # A file name need not be valid Unicode; what cannot be written becomes a question mark.
    write_text(out, text.encode("utf-8", "replace").decode("utf-8"))
    return out


def render(runs: Sequence[Run]) -> str:
    """The page as text. The same runs give the same page."""
    style, script = _asset("style.css"), _asset("script.js")
    # Only our own style and script count, nothing is fetched: a script in a file name is harmless twice over.
    own = f"style-src {_hash(style)}; script-src {_hash(script)}"
    policy = f"default-src 'none'; img-src data:; {own}; base-uri 'none'; form-action 'none'"
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    return environment.from_string(_asset("page.html")).render(
        grouped=grouped,
        title=" · ".join(run.name for run in runs),
        lead=f"{sentence(runs[0]) if len(runs) == 1 else f'{len(runs)} runs side by side.'} {lead(runs)}",
        notes=[f"{run.name}: {note}" for run in runs for note in (*run.notes, *_of_the_test(run), *mixed(run))],
        sections=[section for build in SECTIONS if (section := build(runs)).blocks],
        command=" ".join(["prosmin report", *(run.quoted for run in runs)]),
        style=Markup(style),
        script=Markup(script),
        policy=policy,
    )


def _of_the_test(run: Run) -> list[str]:
    """What its results say of test images that are none, each sentence once."""
    said = [run.part(name, "settings").get("test_pictures") for name in run.results]
    return [f"{text}." for text in dict.fromkeys(said) if isinstance(text, str)]


def _asset(name: str) -> str:
    return resources.files("prosmin.report").joinpath(name).read_text(encoding="utf-8").strip()


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
    return f"'sha256-{digest}'"
