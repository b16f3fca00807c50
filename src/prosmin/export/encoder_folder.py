"""The encoder in a folder of its own, as prosmin.load takes it, with its reference; weights in float16 by option."""

import copy
from pathlib import Path

import torch
from torch import Tensor

from prosmin.encoder import Encoder, load
from prosmin.encoder.file import CARD, REFERENCE, WEIGHTS, matrices
from prosmin.errors import ProsminError
from prosmin.export.card import Form, check_agreement, outputs_of, write_card

TOLERANCE = 1e-6
"""Of an output's size: the same numbers in the same order."""
HALF_TOLERANCE = 0.02
"""Of an output's size. Eleven bits a weight cost a few thousandths; more than this is another encoder."""


def write(encoder: Encoder, folder: Path) -> list[str]:
    """Write the encoder; one that was rounded to float16 gains nothing by more bytes and stays so."""
    (_halved(encoder) if _is_half(encoder) else encoder).save(folder)
    _check(encoder, folder, tolerance=TOLERANCE, remedy="Export it again.")
    return [_sentence(folder)]


def write_half(encoder: Encoder, folder: Path) -> list[str]:
    """Write the weights in float16, and a card that says so and how far this moves the outputs."""
    if _is_half(encoder):
        return write(encoder, folder)
    _halved(encoder).save(folder)
    found = _check(encoder, folder, tolerance=HALF_TOLERANCE, remedy="Export it without --half.")
    write_card(folder / CARD, load(folder, device="cpu").card | {"deviation": found})
    moved = ", ".join(f"{name} by {value:.0e}" for name, value in found.items())
    return [_sentence(folder), f"float16 moves {moved} of their size; prosmin.load computes in float32"]


def _is_half(encoder: Encoder) -> bool:
    return encoder.card.get("precision") == "float16"


def _halved(encoder: Encoder) -> Encoder:
    """The encoder to save, its matrices and filters in float16."""
    halved = copy.copy(encoder)
    halved.method = copy.deepcopy(encoder.method)
    halved.card = encoder.card | {"precision": "float16"}
    for name, parameter in matrices(halved.method).items():
        parameter.data = _half(parameter.data, name)
    return halved


def _half(tensor: Tensor, name: str) -> Tensor:
    half = tensor.half()
    if not bool(half.isfinite().all()):
        raise ProsminError(
            f"{name} holds numbers beyond float16's {torch.finfo(torch.float16).max:.0f}. "
            "Nothing was written. Export it without --half."
        )
    return half


def _check(encoder: Encoder, folder: Path, *, tolerance: float, remedy: str) -> dict[str, float]:
    """Compare with what a user of the folder gets."""
    loaded = load(folder, device="cpu")
    return check_agreement(encoder, lambda views: outputs_of(loaded, views), tolerance=tolerance, remedy=remedy)


def _sentence(folder: Path) -> str:
    files = sorted(folder.iterdir(), key=lambda file: file.stat().st_size, reverse=True)
    listed = ", ".join(f"{file.name} ({file.stat().st_size / 1e6:.1f} MB)" for file in files)
    return f"{listed}; prosmin.load takes the folder"


FORM = Form(write=write, write_half=write_half, entry="hash", names=(WEIGHTS, CARD, REFERENCE))
