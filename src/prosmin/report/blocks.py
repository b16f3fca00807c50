"""The kinds of block that make up a page, and the record of a section. page.html draws each kind."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple

from markupsafe import Markup

from prosmin.report.drawing.svg import Chart, Words
from prosmin.report.runs import Run

Status = Literal["good", "watch", "bad", "unknown"]


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    best: bool = False  # shown in bold
    head: bool = False  # the first cell of a row, its heading
    detail: str = ""  # small print behind the number, such as its interval


Row = Sequence[Cell | str]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under columns; the first column is text, the others are numbers unless `text` is set."""

    columns: Sequence[str]
    rows: Sequence[Row]
    caption: str = ""
    note: str = ""
    text: bool = False


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Names with their values, for one run."""

    facts: Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """What figures, galleries, maps and strips share: how to read it, its numbers, the commands that made them."""

    id: str
    title: str
    reading: str
    table: Table
    commands: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Figure(Exhibit):
    """A chart."""

    chart: Chart


def figure(
    words: Words,
    chart: Chart,
    *,
    columns: Sequence[str],
    rows: Sequence[Row],
    commands: Sequence[str],
    reading: str | None = None,
    note: str = "",
) -> Figure:
    """A chart with its numbers; the description in its words is its reading unless another is given."""
    return Figure(
        id=f"figure-{words.id}",
        title=words.title,
        reading=words.desc if reading is None else reading,
        chart=chart,
        table=Table(columns=columns, rows=rows, caption=words.title, note=note),
        commands=list(dict.fromkeys(commands)),
    )


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One image of a gallery."""

    uri: str
    label: str
    key: str
    value: str
    pixelated: bool
    place: str = ""  # where script.js finds its neighbours: run and image, such as 0:17


@dataclass(frozen=True, kw_only=True)
class Gallery(Exhibit):
    """Images in order."""

    pictures: Sequence[Picture]


class Key(NamedTuple):
    """An entry of a map's legend."""

    style: str
    label: str
    diamond: bool = False


@dataclass(frozen=True, kw_only=True)
class Atlas(Exhibit):
    """A map of images. `data` is JSON for script.js, `sheet` is one image with all thumbnails."""

    svg: Markup
    legend: Sequence[Key]  # by class; empty without labels
    fifths: Sequence[Key]  # the same points by uncertainty
    run: int
    data: str
    sheet: str


class Strip(NamedTuple):
    """One image in several renderings: (data URI, caption, alternative text) each."""

    label: str
    value: str
    shots: Sequence[tuple[str, str, str]]


@dataclass(frozen=True, kw_only=True)
class Strips(Exhibit):
    """Strips below each other."""

    strips: Sequence[Strip]


@dataclass(frozen=True, kw_only=True)
class Missing:
    """What is not there and the command that makes it."""

    what: str
    command: str


@dataclass(frozen=True, kw_only=True)
class Note:
    """A warning."""

    text: str


class Finding(NamedTuple):
    """One sentence of a verdict."""

    status: Status
    text: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A judgement in words."""

    run: str  # its name, empty if the page shows only this run
    status: Status
    title: str
    findings: Sequence[Finding]


class Bar(NamedTuple):
    """One bar of a card, a run or a baseline. It begins at `start` and is `share` long, both from 0 to 1."""

    label: str
    text: str
    start: float
    share: float
    style: str
    best: bool


@dataclass(frozen=True, kw_only=True)
class Card:
    """A headline number beside its baselines."""

    title: str
    arrow: str  # which direction is better
    value: str
    reading: str
    bars: Sequence[Bar]


@dataclass(frozen=True, kw_only=True)
class Fold:
    """Blocks behind a line that opens them."""

    title: str
    blocks: "Sequence[Block]"


@dataclass(frozen=True, kw_only=True)
class Code:
    """The text of a file."""

    title: str
    text: str


Block = Table | Facts | Figure | Gallery | Atlas | Strips | Missing | Note | Verdict | Card | Fold | Code


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page; it is left out if it has no blocks.

    A run that has nothing to show gets a line with the command that measures `protocol`.
    """

    id: str
    title: str
    build: Callable[[Sequence[Run]], Sequence[Block]]
    lead: Callable[[Sequence[Run]], str] | str = ""
    protocol: str = ""
    has: Callable[[Run], object] | None = None  # whether a run has something to show; else a result of the protocol


def grouped(blocks: Sequence[Block]) -> Iterator[tuple[str, list[Block]]]:
    """Neighbouring blocks of one class together, with its name, so that figures can share a row."""
    for kind, members in groupby(blocks, key=type):
        yield kind.__name__, list(members)
