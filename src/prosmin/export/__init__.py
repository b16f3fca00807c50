"""A trained encoder in the forms that other programs read: an ONNX graph, a checkpoint of timm, a folder of its own.

Every form is compared with the encoder it was made of before it takes its name. A new form is one file and one line
in `FORMATS`.
"""

import importlib.util
import json
from pathlib import Path

from prosmin.encoder import load
from prosmin.errors import ProsminError, UsageError
from prosmin.export import encoder_folder, onnx_graph, timm_checkpoint
from prosmin.export.card import Form
from prosmin.files import staged

__all__ = ["FORMATS", "export"]

FORMATS: dict[str, Form] = {
    "onnx": onnx_graph.FORM,
    "timm": timm_checkpoint.FORM,
    "safetensors": encoder_folder.FORM,
}
NETWORKS = ("online", "target")


def export(
    run: Path | str,
    out: Path | str,
    *,
    format: str,
    network: str = "online",
    half: bool = False,
    again: bool = False,
) -> list[str]:
    """Write what `prosmin.load` takes, a run's encoder or another, to `out` and say in sentences what was written.

    `network` is online, or target for its running average. Files that are there already are replaced with `again` only;
    `half` is for safetensors: weights in float16.
    """
    if format not in FORMATS:
        raise UsageError(f"--format is {format!r}; allowed: {', '.join(FORMATS)}.")
    if network not in NETWORKS:
        raise UsageError(f"--network is {network!r}; allowed: {', '.join(NETWORKS)}.")
    form = FORMATS[format]
    write = form.write_half if half else form.write
    if write is None:
        able = ", ".join(name for name, other in FORMATS.items() if other.write_half)
        raise UsageError(f"--half is for --format {able}; --format {format} keeps float32. Leave --half out.")
    out = Path(out).expanduser().resolve()  # so that it has a name, were it only `.`
    _check_place(out, form, format=format, again=again)
    _check_packages(form, format=format)
    encoder = load(run, device="cpu")
    if network == "target":
        encoder = encoder.of_target()
    with staged(out, folder=form.folder(out)) as part:
        said = write(encoder, part / out.name if form.suffix else part)
    return [f"wrote {out}", *said]


def _check_place(out: Path, form: Form, *, format: str, again: bool) -> None:
    if form.suffix and out.suffix != form.suffix:
        raise UsageError(f"--out is {out}; --format {format} writes a file, and its card beside it: *{form.suffix}.")
    if form.suffix and out.is_dir():
        raise UsageError(f"--out {out} is a folder; --format {format} writes a file. Choose another name.")
    if not form.suffix and out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file; --format {format} writes a folder. Choose another name.")
    if not form.suffix and (out / "config.yaml").exists():
        raise UsageError(f"--out {out} is the folder of a run, whose own encoder would be lost. Choose another folder.")
    _refuse_card_of_others(form.card(out), format=format)
    there = [file.name for file in form.files(out) if file.exists()]
    if there and not again:
        raise UsageError(
            f"{form.folder(out)} holds {' and '.join(there)} already. Choose another --out, or replace with --again."
        )


def _refuse_card_of_others(card: Path, *, format: str) -> None:
    """An error for a card that describes a file of another form, also where files may be replaced."""
    try:
        entries = json.loads(card.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none is there, or what is there is no card
        return
    owners = [name for name, other in FORMATS.items() if isinstance(entries, dict) and other.entry in entries]
    for name in owners:
        file = FORMATS[name].beside(card)
        if name != format and file.exists():
            raise UsageError(
                f"{card} is the card of {file.name} beside it, of --format {name}; the card of --format {format} would "
                "take its place. Choose another name for --out."
            )


def _check_packages(form: Form, *, format: str) -> None:
    missing = [name for name in form.packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ProsminError(
            f"--format {format} needs {' and '.join(missing)}, not installed here: pip install 'prosmin[{format}]'"
        )
