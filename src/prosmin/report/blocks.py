"""The few kinds of block a page is made of. A section is a list of them; page.html draws each kind once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import ClassVar, Literal

from markupsafe import Markup

from prosmin.report.drawing.svg import Chart

Status = Literal["good", "watch", "bad", "unknown"]


@dataclass(frozen=True)
class Cell:
    """One cell of a table: text, and whether it is the best of its row."""

    text: str
    best: bool = False
    head: bool = False  # the first cell of a row, read as its heading
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
    kind: ClassVar[str] = "table"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Names with their values, for one run."""

    facts: Sequence[tuple[str, str]]
    kind: ClassVar[str] = "facts"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A chart with its reading, its numbers and the commands that made them."""

    id: str
    title: str
    chart: Chart
    reading: str = ""
    table: Table
    commands: Sequence[str]
    kind: ClassVar[str] = "figure"


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
class Gallery:
    """Images in order, their numbers in a table beneath."""

    id: str
    title: str
    reading: str
    pictures: Sequence[Picture]
    table: Table
    commands: Sequence[str]
    kind: ClassVar[str] = "gallery"


@dataclass(frozen=True, kw_only=True)
class Key:
    """An entry of a map's legend."""

    style: str
    label: str
    diamond: bool = False


@dataclass(frozen=True, kw_only=True)
class Atlas:
    """A map of images. `data` is JSON for script.js, `sheet` the thumbnails; both lie beside the drawing."""

    id: str
    title: str
    reading: str
    svg: Markup
    legend: Sequence[Key]  # by class; empty without labels
    fifths: Sequence[Key]  # the same points by uncertainty
    run: int
    data: str
    sheet: str
    table: Table
    commands: Sequence[str]
    kind: ClassVar[str] = "atlas"


@dataclass(frozen=True, kw_only=True)
class Shot:
    """One image of a strip."""

    uri: str
    caption: str
    alt: str


@dataclass(frozen=True, kw_only=True)
class Strip:
    """One image in several renderings beside each other."""

    label: str
    key: str
    value: str
    place: str
    shots: Sequence[Shot]


@dataclass(frozen=True, kw_only=True)
class Strips:
    """Strips under each other, their numbers in a table beneath."""

    id: str
    title: str
    reading: str
    strips: Sequence[Strip]
    table: Table
    commands: Sequence[str]
    kind: ClassVar[str] = "strips"


@dataclass(frozen=True, kw_only=True)
class Missing:
    """What is not there and the command that makes it."""

    what: str
    command: str
    kind: ClassVar[str] = "missing"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One sentence of a verdict."""

    status: Status
    text: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A judgement in words: the worst finding gives the title."""

    run: str
    status: Status
    title: str
    findings: Sequence[Finding]
    kind: ClassVar[str] = "verdict"


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar of a card: a run or a baseline."""

    label: str
    text: str
    share: float  # of the card's longest bar, 0 to 1
    style: str
    best: bool


@dataclass(frozen=True, kw_only=True)
class Card:
    """A headline number beside its baselines."""

    title: str
    value: str
    reading: str
    bars: Sequence[Bar]


@dataclass(frozen=True, kw_only=True)
class Cards:
    """The headline numbers."""

    cards: Sequence[Card]
    kind: ClassVar[str] = "cards"


@dataclass(frozen=True, kw_only=True)
class Fold:
    """Blocks behind a line that opens them."""

    title: str
    blocks: "Sequence[Block]"
    kind: ClassVar[str] = "fold"


@dataclass(frozen=True, kw_only=True)
class Code:
    """Text as it stands in a file."""

    title: str
    text: str
    kind: ClassVar[str] = "code"


Block = Table | Facts | Figure | Gallery | Atlas | Strips | Missing | Verdict | Cards | Fold | Code


@dataclass(frozen=True, kw_only=True)
class Section:
    """A titled part of the page. Neighbouring figures share a row where there is room."""

    id: str
    title: str
    lead: str = ""
    warnings: Sequence[str] = ()
    blocks: Sequence[Block] = field(default_factory=list)


def grouped(blocks: Sequence[Block]) -> Iterator[tuple[str, list[Block]]]:
    """Neighbouring blocks of one kind together, so that figures in a row can share it."""
    for kind, members in groupby(blocks, key=lambda block: block.kind):
        yield kind, list(members)
