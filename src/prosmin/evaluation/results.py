"""Where results are kept, and which of them are reused: those of the same encoder, images and options."""

import json
import math
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prosmin.data.sources import files_marks, tree_mark
from prosmin.encoder import Encoder, encoder_folder
from prosmin.encoder.file import CARD, WEIGHTS
from prosmin.encoder.foreign import is_foreign, parse_name
from prosmin.encoder.shipped import is_shipped
from prosmin.errors import ProsminError, UsageError
from prosmin.evaluation.options import Options, as_arguments, files_of, read_by
from prosmin.evaluation.protocol import Result
from prosmin.evaluation.protocols import PROTOCOLS
from prosmin.evaluation.protocols.transfer import splits_of
from prosmin.evaluation.sets import NamedSets
from prosmin.files import check_writable, write_text, writing

Row = dict[str, Any]
"""A result as its file contains it."""

DEFINITION = "uncertainty_definition"
"""The setting that says of which known images the uncertainty is, and by which formula."""


def has_no_folder(run: Path | str) -> bool:
    """Whether the encoder has no folder for its results: one of timm, or one shipped with the package."""
    return is_foreign(run) or is_shipped(run)


def places(run: Path | str, out: Path | str | None) -> tuple[Path | str, Path]:
    """The encoder, as a Path if it has a folder, and the folder of its results."""
    if not isinstance(run, str | Path):
        raise UsageError(
            f"evaluate takes a run folder or the name of an encoder, and got {type(run).__name__}; "
            "save an encoder first: evaluate(encoder.save(DIR))."
        )
    if has_no_folder(run):
        return str(run), results_folder(run, out)
    folder = encoder_folder(run)
    owner = measured_run(folder)
    if owner is None:
        return folder, results_folder(folder, out)
    if not owner.is_dir():
        raise ProsminError(
            f"{folder} contains the results of {owner}, which does not exist any more. "
            "Evaluate the run where it is now: prosmin evaluate RUN --out DIR."
        )
    return owner, results_folder(owner, folder if out is None else out)


def results_folder(run: Path | str, out: Path | str | None = None) -> Path:
    """`out`, else the run folder itself, or runs/timm-NAME[-FILE] or runs/shipped-NAME."""
    if out is None and not has_no_folder(run):
        return Path(run)
    folder = Path("runs") / _default_name(str(run)) if out is None else Path(out).expanduser()
    if not has_no_folder(run) and folder.resolve() == Path(run).resolve():
        return folder
    for name, what in (("config.yaml", "a run"), (WEIGHTS, "an encoder")):  # their card would be overwritten
        if (folder / name).exists():
            raise UsageError(f"{folder} is the folder of {what}. Choose another for {run}: --out DIR.")
    card = _card(folder)
    if has_no_folder(run):
        same = "run" not in card and _same_encoder(str(card.get("encoder")), str(run))
    else:  # the same run, or one that was moved and has the same weights
        same = card.get("run") == str(Path(run).resolve()) or card.get("hash", "") == _card(Path(run)).get("hash")
    if card and not same:
        raise UsageError(
            f"{folder} contains the results of {card.get('run', card.get('encoder'))}. "
            f"Choose another for {run}: --out DIR."
        )
    return folder


def check_folder(folder: Path) -> None:
    """An error, before anything is measured, if results cannot be written."""
    try:
        check_writable(folder / "results")
    except ProsminError as error:
        raise ProsminError(f"{error} `--out DIR` puts the results elsewhere.") from error


def measured_run(folder: Path) -> Path | None:
    """The run elsewhere whose results a folder contains, as `--out` leaves them; None if it contains none."""
    found = _card(folder).get("run")
    return Path(found) if isinstance(found, str) else None


def keep_card(card: dict[str, Any], folder: Path, *, run: Path | None = None) -> None:
    """Write the card of an encoder beside its results if it lies elsewhere; `run` is the encoder's folder, if any."""
    if run is not None and folder.resolve() != run.resolve():
        weights = f"those of the run {run.resolve()}, step {card['step']}."
        write_text(folder / CARD, json.dumps(card | {"run": str(run.resolve()), "weights": weights}, indent=1))
    elif run is None and "encoder" in card:
        write_text(folder / CARD, json.dumps(card, indent=1))


def _same_encoder(first: str, second: str) -> bool:
    """Whether two names mean one encoder, however the path of its file is written."""
    if not (is_foreign(first) and is_foreign(second)):
        return first == second
    (model, file), (other, path) = parse_name(first), parse_name(second)
    return model == other and (file and file.resolve()) == (path and path.resolve())


def _default_name(run: str) -> str:
    if not is_foreign(run):
        return f"shipped-{run}"
    model, file = parse_name(run)
    return f"timm-{model}" + (f"-{file.name.partition('.')[0]}" if file is not None else "")


def _card(folder: Path) -> dict[str, Any]:
    return _read_json(folder / CARD)


def _read_json(path: Path) -> dict[str, Any]:
    """The mapping in a file; empty if there is none that can be read."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True, kw_only=True)
class Job:
    """What an evaluation measures, and where its results go."""

    run: Path | str
    folder: Path
    encoder: Encoder
    named: NamedSets
    options: Options

    def row(self, name: str, result: Result, *, seconds: float, seed: int, marks: dict[str, str]) -> Row:
        """A result as its file contains it."""
        row = {
            "protocol": name,
            "metrics": result.metrics,
            "baselines": result.baselines,
            "settings": result.settings | self.definition(name),
            "data": self.named.data,
            "options": read_by(self.options, name),
            "checkpoint": self.checkpoint,
            "seed": seed,
            "seconds": round(seconds, 2),
            "command": self.command(name),
        }
        row |= {key: value for key, value in (("sets", result.sets), ("curves", result.curves)) if value}
        files = {spec: mark for spec, mark in marks.items() if spec in self.reads(name)}
        return _finite(row) | {"files": files}

    def reads(self, name: str) -> set[str]:
        """The SPECs and files that a protocol reads."""
        return {*_images(name, self.named.specs, self.options.transfer).values(), *files_of(self.options, name)}

    def definition(self, name: str) -> dict[str, Any]:
        """What a protocol's uncertainty is, for its settings; empty if it has none, or only the forecast's."""
        found = self.encoder.known.definition if PROTOCOLS[name].uncertainty else None
        return {} if found is None else {DEFINITION: found}

    @property
    def checkpoint(self) -> dict[str, Any]:
        """What identifies the encoder."""
        return {"step": self.encoder.card["step"], "hash": self.encoder.card["hash"]}

    def command(self, name: str) -> str:
        """The command that measures one protocol alone."""
        words = ["prosmin", "evaluate", str(self.run), "--protocols", name, *self.named.arguments]
        if has_no_folder(self.run) or self.folder.resolve() != Path(self.run).resolve():
            words += ["--out", str(self.folder)]
        return f"{shlex.join(words)} {as_arguments(self.options, name)}".rstrip()

    def marks(self) -> dict[str, str]:
        """A mark of the files of each SPEC and of those that options name: it changes when they do."""
        marks = files_marks(self.named.specs.values())
        for spec in self.options.transfer:
            with suppress(UsageError):  # raised where the set is opened
                marks[spec] = " ".join(files_marks(splits_of(spec)).values())
        for name in PROTOCOLS:
            marks |= {file: tree_mark(file.removeprefix("folder:")) for file in files_of(self.options, name)}
        return {name: mark for name, mark in marks.items() if mark}

    def finished(self, name: str, options: Options) -> Row | None:
        """The result in the folder, if it is of this encoder, these images, these options and this uncertainty."""
        row = _read_json(self.folder / "results" / f"{name}.json")
        # A result of an earlier version that lacks an option had its default.
        had, asked = read_by(Options(), name) | (row.get("options") or {}), read_by(options, name)
        if asked.get("baselines") == "none":
            had["baselines"] = "none"  # a result with baselines has all that is asked for
        images = _images(name, row.get("data") or {}, had.get("transfer") or ())
        same = images == _images(name, self.named.data, options.transfer) and row.get("checkpoint") == self.checkpoint
        same &= (row.get("settings") or {}).get(DEFINITION) == self.definition(name).get(DEFINITION)
        return row if row and same and had == asked else None

    def replaced(self, names: Sequence[str]) -> str:
        """The results of other images that these protocols are about to replace; empty: none."""
        found: dict[str, list[str]] = {}
        for name in names:
            row = _read_json(self.folder / "results" / f"{name}.json")
            old = _images(name, row.get("data") or {}, (row.get("options") or {}).get("transfer") or ())
            if old.items() - _images(name, self.named.data, self.options.transfer).items():
                found.setdefault(", ".join(old.values()), []).append(name)
        return "; ".join(f"the results of {', '.join(those)} on {images}" for images, those in found.items())


def unchanged(found: dict[str, Row], marks: dict[str, str]) -> dict[str, Row]:
    """The results whose image files have not changed since; prints what is reused and what is not."""
    known = [item for row in found.values() for item in row.get("files", {}).items()]
    changed = {spec for spec, mark in known if marks.get(spec, mark) != mark}
    if changed:
        print(f"measuring again: the files of {', '.join(sorted(changed))} have changed.", file=sys.stderr)
    kept = {name: row for name, row in found.items() if not changed & row.get("files", {}).keys()}
    if kept:
        print(f"measured before: {', '.join(kept)}; --again measures them again.", file=sys.stderr)
    return kept


def results_of(encoder: Encoder, folder: Path) -> dict[str, Row]:
    """The results in a folder that were measured with these weights, by protocol."""
    rows = {name: _read_json(folder / "results" / f"{name}.json") for name in PROTOCOLS}
    own = encoder.card.get("hash")
    return {name: row for name, row in rows.items() if own and (row.get("checkpoint") or {}).get("hash") == own}


def write_result(folder: Path, row: Row, arrays: dict[str, np.ndarray]) -> None:
    """Write NAME.json and, if there are arrays, NAME.npz."""
    path = folder / "results" / f"{row['protocol']}.json"
    if arrays:
        with writing(path.with_suffix(".npz")) as part, part.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    write_text(path, json.dumps(row, indent=1))


def _images(name: str, data: dict[str, str], transfer: Sequence[str]) -> dict[str, str]:
    """The images that a protocol reads, by name."""
    protocol = PROTOCOLS[name]
    if protocol.own_images:
        return {spec: spec for spec in transfer}
    return {part: spec for part, spec in data.items() if part in ("train", "test") or protocol.ood != "unused"}


def _finite(value: Any) -> Any:
    """NaN, such as the AUROC of errors that do not occur, is not JSON: None."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
