"""`prosmin evaluate`: run protocols on an encoder and leave one JSON file each in RUN/results."""

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prosmin.data.pictures import Pictures, load_pictures
from prosmin.data.sources import split_spec
from prosmin.encoder import Encoder, load
from prosmin.errors import ProsminError, UsageError
from prosmin.evaluation.context import Context
from prosmin.evaluation.protocols import PROTOCOLS
from prosmin.evaluation.result import Result
from prosmin.files import write_text, writing


def evaluate(
    run: Path | str,
    *,
    protocols: Sequence[str] | None = None,
    data: str | None = None,
    test: str | None = None,
    ood: Sequence[str] | None = None,
    again: bool = False,
) -> dict[str, dict[str, Any]]:
    """The results by protocol; what RUN/results holds already for this encoder and these pictures is not repeated."""
    folder = Path(run)
    encoder = load(folder)
    specs = _specs(encoder.config.data.spec if data is None else data, test, ood)
    names = _protocol_names(protocols, has_ood=len(specs) > 2)
    found = (
        {} if again else {name: row for name in names if (row := _finished(folder, name, encoder, specs)) is not None}
    )
    missing = [name for name in names if name not in found]
    if missing:
        context = Context(encoder, {name: _load(spec) for name, spec in specs.items()}, ood=tuple(specs)[2:])
        for name in missing:
            began = time.monotonic()
            found[name] = _write(folder, name, PROTOCOLS[name](context), encoder, specs, time.monotonic() - began)
    return {name: found[name] for name in names}


def _specs(data: str, test: str | None, ood: Sequence[str] | None) -> dict[str, str]:
    """The pictures by name: train, test, then the out-of-distribution sets."""
    train = data if test is not None else split_spec(data, "train")
    specs = {"train": train, "test": split_spec(data, "test") if test is None else test}
    if ood is None and data.partition("@")[0] == "photos":
        ood = ["photos@ood"]
    return specs | {spec: spec for spec in ood or ()}


def _protocol_names(protocols: Sequence[str] | None, *, has_ood: bool) -> list[str]:
    if protocols is None:
        return [name for name in PROTOCOLS if has_ood or name != "ood"]
    for name in protocols:
        if name not in PROTOCOLS:
            raise UsageError(f"There is no protocol {name!r}; there are: {', '.join(PROTOCOLS)}.")
    if "ood" in protocols and not has_ood:
        raise UsageError("The protocol ood needs out-of-distribution pictures: --ood SPEC[,SPEC...].")
    return list(protocols)


def _load(spec: str) -> Pictures:
    pictures = load_pictures(spec)
    if len(pictures) < 2:
        raise ProsminError(f"{spec} holds {len(pictures)} pictures; a protocol needs 2 or more.")
    return pictures


def _finished(folder: Path, name: str, encoder: Encoder, specs: dict[str, str]) -> dict[str, Any] | None:
    """A result already there, if it is of this encoder and these pictures."""
    try:
        row = json.loads((folder / "results" / f"{name}.json").read_text())
    except (OSError, json.JSONDecodeError):
        return None
    return row if row.get("checkpoint") == _checkpoint(encoder) and row.get("data") == specs else None


def _checkpoint(encoder: Encoder) -> dict[str, Any]:
    return {"step": encoder.card["step"], "hash": encoder.card["hash"]}


def _write(
    folder: Path, name: str, result: Result, encoder: Encoder, specs: dict[str, str], seconds: float
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "protocol": name,
        # NaN, such as the AUROC of errors that do not occur, is not JSON.
        "metrics": {key: value if math.isfinite(value) else None for key, value in result.metrics.items()},
        "baselines": result.baselines,
        "settings": result.settings,
        "data": specs,
        "checkpoint": _checkpoint(encoder),
        "seed": encoder.config.training.seed,
        "seconds": round(seconds, 2),
        "command": _command(folder, name, specs),
    }
    row |= {key: value for key, value in (("sets", result.sets), ("curves", result.curves)) if value}
    if result.arrays:
        with writing(folder / "results" / f"{name}.npz") as part, part.open("wb") as file:
            np.savez_compressed(file, **result.arrays)  # type: ignore[arg-type]
    write_text(folder / "results" / f"{name}.json", json.dumps(row, indent=1))
    return row


def _command(folder: Path, name: str, specs: dict[str, str]) -> str:
    train, test, *ood = specs.values()
    extra = f" --ood {','.join(ood)}" if ood else ""
    return f"prosmin evaluate {folder} --protocols {name} --data {train} --test {test}{extra}"
