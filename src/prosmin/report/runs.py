"""Reads a run folder once. A missing or damaged part is noted, never fatal."""

import json
import math
import shlex
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from prosmin.errors import ProsminError, UsageError
from prosmin.messages import runs_below
from prosmin.report.drawing.svg import series

Line = dict[str, float]
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run folder: `log` has one entry per logged step, `results` and `arrays` one per protocol."""

    path: Path
    name: str
    config: dict[str, Any] = field(default_factory=dict)
    log: list[Line] = field(default_factory=list)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    arrays: dict[str, Arrays] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    card: dict[str, Any] = field(default_factory=dict)  # encoder.json of an encoder stored elsewhere
    trained_share: float = 1.0  # of the trained weights in the encoder; the rest are those that it started from
    position: int = 0  # among the runs of the page
    several: bool = False  # whether the page shows other runs too

    @property
    def suffix(self) -> str:
        """What tells its figures from those of the other runs of the page: ", NAME", or nothing."""
        return f", {self.name}" if self.several else ""

    @property
    def prefix(self) -> str:
        """The same in front of a sentence: "NAME: ", or nothing."""
        return f"{self.name}: " if self.several else ""

    @property
    def style(self) -> str:
        """The style of its curves."""
        return series(self.position)

    @property
    def foreign(self) -> bool:
        """Whether the encoder is from timm or came with the package, so that there is no training to show."""
        return "encoder" in self.card

    @property
    def home(self) -> Path:
        """The folder of the encoder and its log: this one, unless it contains results of a run elsewhere."""
        return Path(self.card.get("run", self.path))

    def setting(self, group: str, name: str) -> Any:
        """A field of the configuration; None if unknown."""
        values = self.config.get(group)
        return values.get(name) if isinstance(values, dict) else None

    def part(self, protocol: str, name: str) -> dict[str, Any]:
        """A mapping inside a result, such as its metrics or curves; empty if there is none."""
        value = self.results.get(protocol, {}).get(name)
        return value if isinstance(value, dict) else {}

    def metrics(self, protocol: str) -> dict[str, float]:
        """The numbers of a protocol."""
        return numbers(self.part(protocol, "metrics"))

    def baselines(self, protocol: str) -> dict[str, dict[str, float]]:
        """The same numbers of the baselines: {"raw pixels": {...}, "untrained": {...}}."""
        found = self.part(protocol, "baselines")
        return {str(name): numbers(values) for name, values in found.items() if isinstance(values, dict)}

    def command(self, protocol: str) -> str:
        """The command that made a result, or would make it."""
        stored = self.results.get(protocol, {}).get("command")
        return stored if isinstance(stored, str) else f"prosmin evaluate {self.quoted} --protocols {protocol}"

    @property
    def quoted(self) -> str:
        """The folder, quoted for a shell."""
        return shlex.quote(str(self.path))

    def column(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The logged steps that have a value, and the value: (n,), (n,)."""
        rows = [(line["step"], line[name]) for line in self.log if name in line]
        steps, values = zip(*rows, strict=True) if rows else ((), ())
        return np.array(steps, dtype=float), np.array(values, dtype=float)


def numbers(values: dict[str, Any]) -> dict[str, float]:
    """Only the entries that are numbers; a result may contain text too."""
    return {str(name): float(v) for name, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def curve(found: Any, *parts: str, edges: str = "") -> Arrays | None:
    """Lists of numbers as arrays of one length, null as NaN; `edges` names one that is longer by one.

    None if a list is missing, its length does not fit, or there are too few numbers to draw.
    """
    names = (*parts, edges) if edges else parts
    if not isinstance(found, dict) or not all(isinstance(found.get(name), list) for name in names):
        return None
    arrays = {name: np.array(found[name], dtype=float) for name in names}
    count = len(arrays[parts[0]])
    fits = all(arrays[name].shape == (count + (name == edges),) for name in names)
    return arrays if fits and count > (0 if edges else 1) else None


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs in the order given, each with a name that no other has."""
    folders = [Path(path) for path in paths]
    if not folders:
        raise UsageError(
            "The report got no run folder; give one or more: prosmin report RUN [RUN ...] --out FILE.html."
        )
    places = [path.resolve() for path in folders]
    twice = [str(path) for i, path in enumerate(folders) if places[i] in places[:i]]
    if twice:
        raise UsageError(f"The report got {', '.join(dict.fromkeys(twice))} more than once; name each run once.")
    names = distinct_names(folders)
    several = len(folders) > 1
    return [read_run(path, names[i], position=i, several=several) for i, path in enumerate(folders)]


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """The shortest endings of the paths that are all different."""
    parts = [path.resolve().parts for path in paths]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(p[-depth:]) for p in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def read_run(path: Path, name: str, *, position: int = 0, several: bool = False) -> Run:
    """One run folder."""
    if not path.is_dir():
        raise ProsminError(
            f"There is no run folder {path}; give a folder that prosmin pretrain or prosmin evaluate wrote."
        )
    notes: list[str] = []
    card = _read(path / "encoder.json", json.load, [])
    share = numbers(card).get("trained_share", 1.0)
    if not any(isinstance(card.get(key), str) for key in ("encoder", "run")):
        card = {}  # a run in its own folder, where config.yaml says more
    again = f"; make it again with: prosmin evaluate {shlex.quote(str(path))} --protocols "
    stored = sorted((path / "results").glob("*.json"))
    run = Run(
        path=path,
        name=name,
        config=_config_of(card) if card else _read(path / "config.yaml", yaml.safe_load, notes),
        log=_read_log(Path(card.get("run", path)) / "metrics.jsonl", notes),
        results={p.stem: result for p in stored if (result := _read(p, json.load, notes, advice=again + p.stem))},
        arrays={p.stem: _read(p, _arrays, notes) for p in sorted((path / "results").glob("*.npz"))},
        notes=notes,
        card=card,
        trained_share=share,
        position=position,
        several=several,
    )
    if run.config or run.log or run.results:
        return run
    if runs := runs_below(path):
        raise ProsminError(f"{path} is not a run folder, but contains some. Give one of them, or several: {runs}.")
    raise ProsminError(
        f"{path} is not a run folder: config.yaml, metrics.jsonl and results/*.json are missing or unreadable; "
        "give a folder that prosmin pretrain or prosmin evaluate wrote."
    )


def _read(path: Path, parse: Callable[[Any], Any], notes: list[str], advice: str = ".") -> dict[str, Any]:
    """The mapping in a file; empty if there is no file, and with a note if it cannot be read."""
    if not path.exists():
        return {}
    try:
        with path.open("rb") as file:
            found = parse(file)
    except (OSError, ValueError, EOFError, yaml.YAMLError, zipfile.BadZipFile):
        found = None
    if isinstance(found, dict):
        return found
    where = "results/" if path.parent.name == "results" else ""
    notes.append(f"{where}{path.name} cannot be read and was left out{advice}")
    return {}


def _arrays(file: Any) -> Arrays | None:
    found = np.load(file, allow_pickle=False)
    return {name: found[name] for name in found.files} if hasattr(found, "files") else None  # else one bare array


def _config_of(card: dict[str, Any]) -> dict[str, Any]:
    """The configuration as far as a card knows it: all of it for a prosmin run, else the backbone."""
    if "encoder" in card:
        return {"method": {"name": card["encoder"]}, "backbone": card.get("backbone")}
    return card["config"] if isinstance(card.get("config"), dict) else {}


def _read_log(path: Path, notes: list[str]) -> list[Line]:
    """The lines by step. If a step was logged again after a resume, its last line counts."""
    try:
        texts = path.read_text(errors="replace").splitlines() if path.exists() else []
    except OSError as error:
        notes.append(f"metrics.jsonl cannot be read: {error.strerror}.")
        return []
    lines: dict[float, Line] = {}
    bad = 0
    for text in filter(str.strip, texts):
        try:
            line = numbers(json.loads(text))
            if not math.isfinite(line["step"]):
                raise ValueError(line["step"])
            lines[line["step"]] = line
        except (ValueError, KeyError, AttributeError):
            bad += 1
    if bad:
        notes.append(f"{bad} of {len(texts)} lines of metrics.jsonl cannot be read and were left out.")
    return [lines[step] for step in sorted(lines)]


def size_of_test(run: Run, protocol: str) -> int | None:
    """The number of test images of a protocol, if its result or another on the same images says it."""
    tested = run.part(protocol, "data").get("test")
    for name in (protocol, *run.results):
        if name == protocol or (tested is not None and run.part(name, "data").get("test") == tested):
            values = run.arrays.get(name, {}).get("uncertainty")
            count = counted(run.part(name, "curves").get("reliability"))
            count = count or (len(values) if values is not None and values.ndim == 1 else 0)
            if count:
                return count
    return None


def counted(curve: Any) -> int:
    """The number of images in a reliability diagram, 0 if unknown."""
    counts = curve.get("count") if isinstance(curve, dict) else None
    if not isinstance(counts, list) or not all(isinstance(n, int) for n in counts):
        return 0
    return sum(counts)
