"""Where the results of an encoder go: to its run, or beside a copy of its card if it lies elsewhere."""

import json
from pathlib import Path
from typing import Any

from prosmin.encoder_file import CARD, WEIGHTS
from prosmin.errors import UsageError
from prosmin.files import write_text
from prosmin.foreign import is_foreign, parse_name
from prosmin.shipped import is_shipped


def has_no_folder(run: Path | str) -> bool:
    """Whether an encoder is named that has no folder for its results: one of timm, or one inside the package."""
    return is_foreign(run) or is_shipped(run)


def results_folder(run: Path | str, out: Path | str | None = None) -> Path:
    """Where results go: to `out`; else to a run folder itself, or to runs/timm-NAME[-FILE] or runs/shipped-NAME."""
    if out is None and not has_no_folder(run):
        return Path(run)
    folder = Path("runs") / _default_name(str(run)) if out is None else Path(out).expanduser()
    if not has_no_folder(run) and folder.resolve() == Path(run).resolve():
        return folder
    if (folder / "config.yaml").exists():
        raise UsageError(f"{folder} is the folder of a run of prosmin. Choose another for {run}: --out DIR.")
    if (folder / WEIGHTS).exists():  # whose card would be lost
        raise UsageError(f"{folder} is the folder of an encoder. Choose another for {run}: --out DIR.")
    kept = _card(folder)
    if has_no_folder(run):
        is_own = "run" not in kept and _same_encoder(str(kept.get("encoder")), str(run))
    else:  # the same run, or one that was moved and has the same weights
        is_own = kept.get("run") == str(Path(run).resolve()) or kept.get("hash", "") == _card(Path(run)).get("hash")
    if kept and not is_own:
        raise UsageError(
            f"{folder} keeps the results of {kept.get('run', kept.get('encoder'))}. "
            f"Choose another for {run}: --out DIR."
        )
    return folder


def _same_encoder(first: str, second: str) -> bool:
    """Whether two names mean one encoder, however the path of its file is written."""
    if not (is_foreign(first) and is_foreign(second)):
        return first == second
    (model, file), (other, path) = parse_name(first), parse_name(second)
    return model == other and (file and file.resolve()) == (path and path.resolve())


def measured_run(folder: Path) -> Path | None:
    """The run elsewhere whose results a folder keeps, as `--out` leaves them; None where it keeps no such results."""
    found = _card(folder).get("run")
    return Path(found) if isinstance(found, str) else None


def keep_card(card: dict[str, Any], folder: Path, *, run: Path | None = None) -> None:
    """Leave the card of an encoder that lies elsewhere beside its results; `run` is the folder it has, if any."""
    if run is not None and folder.resolve() != run.resolve():
        weights = f"those of the run {run.resolve()}, step {card['step']}."
        write_text(folder / CARD, json.dumps(card | {"run": str(run.resolve()), "weights": weights}, indent=1))
    elif run is None and "encoder" in card:
        write_text(folder / CARD, json.dumps(card, indent=1))


def _default_name(run: str) -> str:
    if not is_foreign(run):
        return f"shipped-{run}"
    model, file = parse_name(run)
    return f"timm-{model}" + (f"-{file.name.partition('.')[0]}" if file is not None else "")


def _card(folder: Path) -> dict[str, Any]:
    """The card in a folder; empty where there is none that can be read."""
    try:
        card = json.loads((folder / CARD).read_text())
    except (OSError, ValueError):
        return {}
    return card if isinstance(card, dict) else {}
