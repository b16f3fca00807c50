"""What a run folder holds, read once. A part that is missing or damaged is noted, never fatal."""

import json
import math
import shlex
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from prosmin.errors import ProsminError, UsageError
from prosmin.messages import runs_below

Line = dict[str, float]
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run folder: `log` has a line a logged step, `results` and `arrays` an entry a protocol."""

    path: Path
    name: str
    config: dict[str, Any] = field(default_factory=dict)
    log: list[Line] = field(default_factory=list)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    arrays: dict[str, Arrays] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    card: dict[str, Any] = field(default_factory=dict)  # encoder.json of an encoder that lies elsewhere

    @property
    def foreign(self) -> bool:
        """Whether the encoder came ready, of others or with the package: there is nothing to tell of its training."""
        return "encoder" in self.card

    @property
    def home(self) -> Path:
        """Where the encoder and its log are: the folder itself, unless it keeps the results of a run elsewhere."""
        return Path(self.card.get("run", self.path))

    def setting(self, group: str, name: str) -> Any:
        """A field of the configuration, None where the run does not say."""
        values = self.config.get(group)
        return values.get(name) if isinstance(values, dict) else None

    def part(self, protocol: str, name: str) -> dict[str, Any]:
        """A mapping inside a result, such as its metrics or curves; empty where there is none."""
        value = self.results.get(protocol, {}).get(name)
        return value if isinstance(value, dict) else {}

    def metrics(self, protocol: str) -> dict[str, float]:
        """The numbers of a protocol."""
        return numbers(self.part(protocol, "metrics"))

    def baselines(self, protocol: str) -> dict[str, dict[str, float]]:
        """The same numbers of other features: {"raw pixels": {...}, "untrained": {...}}."""
        found = self.part(protocol, "baselines")
        return {str(name): numbers(values) for name, values in found.items() if isinstance(values, dict)}

    def command(self, protocol: str) -> str:
        """The command that made a result, or would make it."""
        said = self.results.get(protocol, {}).get("command")
        return said if isinstance(said, str) else f"prosmin evaluate {self.quoted} --protocols {protocol}"

    @property
    def quoted(self) -> str:
        """The folder as a shell takes it."""
        return shlex.quote(str(self.path))

    def column(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The logged steps that carry a value, and the value: (n,), (n,)."""
        rows = [(line["step"], line[name]) for line in self.log if name in line]
        steps, values = zip(*rows, strict=True) if rows else ((), ())
        return np.array(steps, dtype=float), np.array(values, dtype=float)


def numbers(values: dict[str, Any]) -> dict[str, float]:
    """Only the entries that are numbers; a result may carry text beside them."""
    return {str(name): float(v) for name, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs in the order given, with names that tell them apart."""
    folders = [Path(path) for path in paths]
    if not folders:
        raise UsageError(
            "The report got no run folder; give one or more: prosmin report RUN [RUN ...] --out FILE.html."
        )
    places = [path.resolve() for path in folders]
    twice = [str(path) for i, path in enumerate(folders) if places[i] in places[:i]]
    if twice:
        raise UsageError(f"The report got {', '.join(dict.fromkeys(twice))} more than once; name each run once.")
    return [read_run(path, name) for path, name in zip(folders, distinct_names(folders), strict=True)]


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """The shortest tails of the paths that are all different."""
    parts = [path.resolve().parts for path in paths]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(p[-depth:]) for p in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def read_run(path: Path, name: str) -> Run:
    """One run folder as it stands."""
    if not path.is_dir():
        raise ProsminError(
            f"There is no run folder {path}; give a folder that prosmin pretrain or prosmin evaluate wrote."
        )
    notes: list[str] = []
    card = _read_card(path / "encoder.json")
    config = _config_of(card) if card else _read_config(path / "config.yaml", notes)
    log = _read_log(Path(card.get("run", path)) / "metrics.jsonl", notes)
    results = _read_results(path, notes)
    if not (config or log or results):
        if runs := runs_below(path):
            raise ProsminError(f"{path} is not a run folder, but holds some. Give one of them, or several: {runs}.")
        raise ProsminError(
            f"{path} holds no run: config.yaml, metrics.jsonl and results/*.json are missing or unreadable; "
            "give a folder that prosmin pretrain or prosmin evaluate wrote."
        )
    arrays = {p.stem: _read_arrays(p, notes) for p in sorted((path / "results").glob("*.npz"))}
    return Run(path=path, name=name, config=config, log=log, results=results, arrays=arrays, notes=notes, card=card)


def _read_config(path: Path, notes: list[str]) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        tree = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        tree = None
    if not isinstance(tree, dict):
        notes.append("config.yaml cannot be read and was left out.")
        return {}
    return tree


def _read_card(path: Path) -> dict[str, Any]:
    """The card of an encoder that lies elsewhere; empty for a run in its own folder, whose config.yaml says more."""
    try:
        card = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    elsewhere = isinstance(card, dict) and any(isinstance(card.get(key), str) for key in ("encoder", "run"))
    return card if elsewhere else {}


def _config_of(card: dict[str, Any]) -> dict[str, Any]:
    """What a card tells of the configuration: all of it for a run of prosmin, the network for an encoder of others."""
    if "encoder" in card:
        return {"method": {"name": card["encoder"]}, "backbone": card.get("backbone")}
    return card["config"] if isinstance(card.get("config"), dict) else {}


def _read_log(path: Path, notes: list[str]) -> list[Line]:
    """The lines by step. A step logged again after a resume counts once, its last line wins."""
    if not path.exists():
        return []
    try:
        texts = path.read_text(errors="replace").splitlines()
    except OSError as error:
        notes.append(f"metrics.jsonl cannot be read: {error.strerror}.")
        return []
    lines: dict[float, Line] = {}
    bad = 0
    for text in filter(str.strip, texts):
        try:
            line = numbers(json.loads(text))
            lines[_finite(line["step"])] = line
        except (ValueError, KeyError, AttributeError):
            bad += 1
    if bad:
        notes.append(f"{bad} of {len(texts)} lines of metrics.jsonl cannot be read and were left out.")
    return [lines[step] for step in sorted(lines)]


def _finite(step: float) -> float:
    if not math.isfinite(step):
        raise ValueError(step)
    return step


def _read_results(run: Path, notes: list[str]) -> dict[str, dict[str, Any]]:
    results = {}
    for path in sorted((run / "results").glob("*.json")):
        try:
            result = json.loads(path.read_text())
        except (OSError, ValueError):
            result = None
        if isinstance(result, dict):
            results[path.stem] = result
        else:
            again = f"prosmin evaluate {shlex.quote(str(run))} --protocols {path.stem}"
            notes.append(f"results/{path.name} cannot be read and was left out; make it again with: {again}")
    return results


def _read_arrays(path: Path, notes: list[str]) -> Arrays:
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile):  # TypeError: one bare array
        notes.append(f"results/{path.name} cannot be read and was left out.")
        return {}


def size_of_test(run: Run, protocol: str) -> int | None:
    """How many test images a protocol was measured on, where it or one with the same images says."""
    tested = run.part(protocol, "data").get("test")
    for name in (protocol, *run.results):
        if name == protocol or (tested is not None and run.part(name, "data").get("test") == tested):
            count = counted(run.part(name, "curves").get("reliability"))
            values = run.arrays.get(name, {}).get("uncertainty")
            count = count or (len(values) if values is not None and values.ndim == 1 else 0)
            if count:
                return count
    return None


def counted(curve: Any) -> int:
    """The images in a reliability diagram, 0 where it does not say."""
    counts = curve.get("count") if isinstance(curve, dict) else None
    if not isinstance(counts, list) or not all(isinstance(n, int) for n in counts):
        return 0
    return sum(counts)
