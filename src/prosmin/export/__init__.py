"""A trained encoder in formats that other programs read: ONNX, timm, the Hugging Face Hub, a folder of prosmin.

The outputs of every exported file are compared with those of the encoder before the file gets its name. A new format
is one file and one line in `FORMATS`.
"""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

from prosmin.encoder import Encoder, load
from prosmin.errors import ProsminError, UsageError
from prosmin.export import encoder_folder, hub_folder, onnx_graph, timm_checkpoint
from prosmin.export.card import Form
from prosmin.files import staged

__all__ = ["FORMATS", "export"]

FORMATS: dict[str, Form] = {
    "onnx": onnx_graph.FORM,
    "timm": timm_checkpoint.FORM,
    "safetensors": encoder_folder.FORM,
    "huggingface": hub_folder.FORM,
}
NETWORKS = ("online", "target")


def export(
    run: Path | str,
    out: Path | str,
    *,
    format: str,
    network: str = "online",
    half: bool = False,
    patches: bool = False,
    again: bool = False,
) -> list[str]:
    """Write the encoder that `prosmin.load(run)` gives to `out`; returns lines that say what was written.

    `network` is online, or target for its moving average. Existing files are replaced only with `again`; `half`, for
    the format safetensors, stores weights in float16; `patches`, for the format onnx, adds an output with the patch
    features of a ViT.
    """
    if format not in FORMATS:
        raise UsageError(f"--format is {format!r}; allowed: {', '.join(FORMATS)}.")
    if network not in NETWORKS:
        raise UsageError(f"--network is {network!r}; allowed: {', '.join(NETWORKS)}.")
    form = FORMATS[format]
    write = _writer(format, half=half, patches=patches)
    out = Path(out).expanduser().resolve()  # `.` has no name
    _check_place(out, form, format=format, again=again)
    _check_packages(form, format=format)
    encoder = load(run, device="cpu")
    if network == "target":
        encoder = encoder.of_target()
    with staged(out, folder=form.folder(out)) as part:
        lines = write(encoder, part / out.name if form.suffix else part)
        if form.write_page is not None:
            form.write_page(encoder, run, part)
    return [f"wrote {out}", *lines]


def _writer(format: str, *, half: bool, patches: bool) -> Callable[[Encoder, Path], list[str]]:
    """How the format writes with these options; an error if it does not have one of them."""
    form = FORMATS[format]
    if half and form.write_half is None:
        able = ", ".join(name for name, other in FORMATS.items() if other.write_half)
        raise UsageError(f"--half is for --format {able}; --format {format} writes float32. Leave --half out.")
    if patches and form.write_patches is None:
        able = ", ".join(name for name, other in FORMATS.items() if other.write_patches)
        raise UsageError(f"--patches is for --format {able}, and the format is {format}. Leave --patches out.")
    return (half and form.write_half) or (patches and form.write_patches) or form.write


def _check_place(out: Path, form: Form, *, format: str, again: bool) -> None:
    if form.suffix and out.suffix != form.suffix:
        raise UsageError(f"--out is {out}; --format {format} writes a file *{form.suffix} and its card *.json.")
    if form.suffix and out.is_dir():
        raise UsageError(f"--out {out} is a folder; --format {format} writes a file. Choose another name.")
    if not form.suffix and out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file; --format {format} writes a folder. Choose another name.")
    if not form.suffix and (out / "config.yaml").exists():
        raise UsageError(f"--out {out} is the folder of a run, whose encoder would be lost. Choose another folder.")
    _refuse_other_card(form.card(out), format=format)
    existing = [file.name for file in form.files(out) if file.exists()]
    if existing and not again:
        raise UsageError(
            f"{form.folder(out)} already has {' and '.join(existing)}. Choose another --out, or replace with --again."
        )


def _refuse_other_card(card: Path, *, format: str) -> None:
    """An error for a card that describes a file of another format, even if files may be replaced."""
    try:
        entries = json.loads(card.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # there is no card
        return
    owners = [name for name, other in FORMATS.items() if isinstance(entries, dict) and other.entry in entries]
    for name in owners:
        file = FORMATS[name].described_by(card)
        if name != format and file.exists():
            raise UsageError(
                f"{card} describes {file.name}, of --format {name}; the card of --format {format} would replace it. "
                "Choose another name for --out."
            )


def _check_packages(form: Form, *, format: str) -> None:
    missing = [name for name in form.packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ProsminError(f"--format {format} needs {' and '.join(missing)}: pip install 'prosmin[{format}]'")
