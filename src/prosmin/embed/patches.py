"""The optional column `patches`: one feature vector per patch of a ViT, in a list of h * w * D numbers per image."""

from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from prosmin.encoder import Encoder
from prosmin.errors import ProsminError, UsageError

NAME = "patches"
MEANING = "features of the patches, (h, w, D) as one list, row 0 at the top; the metadata have the shape"

TYPES: dict[str, tuple[pa.DataType, torch.dtype]] = {
    "float16": (pa.float16(), torch.float16),
    "float32": (pa.float32(), torch.float32),
}

GROUP_BYTES = 256 * 2**20
"""Of a row group: its rows are in memory at once when the file is written, and when it is read."""


def check_type(name: str | None) -> None:
    """An error for a type that the column cannot have; None: no column."""
    if name is not None and name not in TYPES:
        raise UsageError(f"--patches is {name!r}; allowed: {', '.join(TYPES)}. Leave it out for no patches.")


def check_encoder(encoder: Encoder) -> None:
    """An error for a backbone without patches."""
    if not encoder.has_patches:
        raise UsageError(
            f"--patches needs a ViT, and the backbone of this encoder is {encoder.config.backbone.name}. "
            "Leave --patches out, or give another encoder."
        )


def narrowed(patches: Tensor, name: str) -> Tensor:
    """Patch features as they are stored, on their device: the patches of a part are in memory at once."""
    return patches.to(TYPES[name][1])


def column(patches: NDArray[Any]) -> pa.FixedSizeListArray:
    """(n, h, w, D) -> n lists of h * w * D numbers."""
    if not np.isfinite(patches).all():
        if patches.dtype == np.float16:
            raise ProsminError(
                f"A patch feature is above {np.finfo(np.float16).max:g}, the largest float16, or not finite. "
                "Give --patches float32 and another file with --out."
            )
        raise ProsminError("The patch features contain values that are not finite; is the checkpoint sound?")
    return pa.FixedSizeListArray.from_arrays(pa.array(patches.reshape(-1)), int(np.prod(patches.shape[1:])))


def rows_per_group(kind: pa.DataType, most: int) -> int:
    """Rows of a row group, at most `most`; `kind` is the type of the column."""
    return max(1, min(most, GROUP_BYTES // (kind.list_size * kind.value_type.bit_width // 8)))
