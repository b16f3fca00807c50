"""The encoder and its reference in a folder that prosmin.load reads; optionally with weights in float16."""

import copy
from pathlib import Path

import torch

from prosmin.encoder import Encoder, load
from prosmin.encoder.background import FILE as BACKGROUND
from prosmin.encoder.file import CARD, REFERENCE, WEIGHTS, matrices
from prosmin.errors import ProsminError
from prosmin.export.card import Form, check_agreement, outputs_of, write_card

TOLERANCE = 1e-6
"""Of an output's size: the same computation."""
HALF_TOLERANCE = 0.02
"""Of an output's size. Weights of eleven bits change it by a few thousandths."""


def write(encoder: Encoder, folder: Path) -> list[str]:
    """Write the encoder; one that was rounded to float16 stays in float16."""
    (_halved(encoder) if _is_half(encoder) else encoder).save(folder)
    _check(encoder, folder, tolerance=TOLERANCE, remedy="Export it again.")
    return [_list_files(folder)]


def write_half(encoder: Encoder, folder: Path) -> list[str]:
    """Write the weights in float16, and a card that says how much this changes the outputs."""
    if _is_half(encoder):
        return write(encoder, folder)
    _halved(encoder).save(folder)
    found = _check(encoder, folder, tolerance=HALF_TOLERANCE, remedy="Export it without --half.")
    write_card(folder / CARD, load(folder, device="cpu").card | {"deviation": found})
    changes = ", ".join(f"{name} by {value:.0e}" for name, value in found.items())
    return [_list_files(folder), f"float16 changes {changes} of their size; prosmin.load computes in float32"]


def _is_half(encoder: Encoder) -> bool:
    return encoder.card.get("precision") == "float16"


def _halved(encoder: Encoder) -> Encoder:
    """The encoder with its matrices and filters in float16, to be saved."""
    halved = copy.copy(encoder)
    halved.method = copy.deepcopy(encoder.method)
    halved.card = encoder.card | {"precision": "float16"}
    for name, parameter in matrices(halved.method).items():
        parameter.data = parameter.data.half()
        if not bool(parameter.isfinite().all()):
            raise ProsminError(
                f"{name} has numbers above {torch.finfo(torch.float16).max:.0f}, the largest of float16. "
                "Nothing was written. Export it without --half."
            )
    return halved


def _check(encoder: Encoder, folder: Path, *, tolerance: float, remedy: str) -> dict[str, float]:
    """Compare the encoder with the one that the folder gives."""
    loaded = load(folder, device="cpu")
    return check_agreement(encoder, lambda views: outputs_of(loaded, views), tolerance=tolerance, remedy=remedy)


def _list_files(folder: Path) -> str:
    files = sorted(folder.iterdir(), key=lambda file: file.stat().st_size, reverse=True)
    listed = ", ".join(f"{file.name} ({file.stat().st_size / 1e6:.1f} MB)" for file in files)
    return f"{listed}; load it with prosmin.load"


FORM = Form(write=write, write_half=write_half, entry="hash", names=(WEIGHTS, CARD, BACKGROUND, REFERENCE))
