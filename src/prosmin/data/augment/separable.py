"""Linear operations on images that treat rows and columns separately: resizing and blurring.

Every output row is a weighted sum of T rows of the image, its taps; columns likewise. A GPU multiplies with the
whole matrices, mostly zeros: two fast batched products. A CPU sums only the taps, a tenth of the work.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from prosmin.data.augment.sync_free import host_may_look

FLOATS = 2**22
"""Pixels that a CPU converts to float at a time. Much more would be new memory at every step, which must be cleared."""


class Taps(NamedTuple):
    """The input pixels of each output pixel of an axis, T neighbours from left to right, and their weights.

    Both are (B, V, size, T).
    """

    places: Tensor
    weights: Tensor

    def matrix(self, pixels: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weight of every pixel: (B, V, size, pixels).

        Looked up by pixel. Scattered by tap it would be the same, but torch's deterministic scatter waits for the host.
        """
        weights = F.pad(self.weights.to(dtype), (1, 1))  # a zero on either side for the pixels that do not count
        tap = torch.arange(1, pixels + 1, device=self.places.device) - self.places[..., :1]  # (B, V, size, pixels)
        return weights.gather(-1, tap.clamp_(0, weights.shape[-1] - 1))


def combine(images: Tensor, rows: Taps, columns: Taps) -> Tensor:
    """The weighted sums of both axes, float32: (B, C, H, W) -> (B, V, C, h, w)."""
    return (sum_taps if host_may_look(images) else multiply)(images, rows, columns)


def sum_taps(images: Tensor, rows: Taps, columns: Taps) -> Tensor:
    """A few images at a time, so that temporaries stay in the same memory."""
    few = max(1, FLOATS // images.shape[1:].numel())
    if len(images) <= few:
        return _sum_taps(images, rows, columns)
    parts = zip(images.split(few), *(part.split(few) for part in (*rows, *columns)), strict=True)
    return torch.cat([_sum_taps(some, Taps(p, w), Taps(q, v)) for some, p, w, q, v in parts])


def _sum_taps(images: Tensor, rows: Taps, columns: Taps) -> Tensor:
    """One axis after the other, each stored so that its pixels are rows of memory; columns first."""
    if len(images):
        images = images[:, :, : int(rows.places.amax()) + 1, : int(columns.places.amax()) + 1]  # the rest is padding
    half = _sum_rows(images.mT.contiguous().to(torch.float32)[:, None], columns)  # (B, V, C, w, H)
    return _sum_rows(half.mT.contiguous(), rows)


def _sum_rows(table: Tensor, taps: Taps) -> Tensor:
    """Weighted sums of T rows: (B, 1 or V, C, rows, n) -> (B, V, C, size, n)."""
    B, V, size, T = taps.places.shape
    C, rows, n = table.shape[2:]
    start = rows * torch.arange(table.shape[:3].numel()).view(*table.shape[:3], 1, 1)
    places = start + taps.places[:, :, None]  # (B, V, C, size, T)
    weights = taps.weights[:, :, None].expand_as(places)
    # Always contiguous: torch has another kernel for other strides, and a view must not depend on its batch.
    bags, weights = places.view(-1, T), weights.reshape(-1, T).contiguous()
    return F.embedding_bag(bags, table.reshape(-1, n), mode="sum", per_sample_weights=weights).view(B, V, C, size, n)


def multiply(images: Tensor, rows: Taps, columns: Taps) -> Tensor:
    """Two batched products. The first runs along the longer axis, so that less is left for the second."""
    # Zeros up to a multiple of eight: a GPU's fast products need rows that begin at aligned addresses.
    if images.shape[-1] % 8 or images.shape[-2] % 8:
        images = F.pad(images, (0, -images.shape[-1] % 8, 0, -images.shape[-2] % 8))
    if images.shape[-1] > images.shape[-2]:
        return _multiply(images.mT, columns, rows).mT.contiguous()
    return _multiply(images, rows, columns).contiguous()


def _multiply(images: Tensor, rows: Taps, columns: Taps) -> Tensor:
    B, C, H, W = images.shape
    dtype = product_dtype(images)
    first, second = rows.matrix(H, dtype), columns.matrix(W, dtype)  # (B, V, h, H), (B, V, w, W)
    _, V, h, _ = first.shape
    pixels = images.transpose(1, 2).contiguous().to(dtype)  # (B, H, C, W)
    # The V views of an image share one product: their matrices are stacked.
    half = torch.bmm(first.view(B, V * h, H), pixels.view(B, H, C * W))  # (B, V h, C W)
    views = torch.bmm(half.view(B * V, h * C, W), second.flatten(0, 1).mT)  # (B V, h C, w)
    return views.view(B, V, h, C, -1).transpose(2, 3).to(torch.float32)


def product_dtype(images: Tensor) -> torch.dtype:
    """The type of the products' factors: float16 on a GPU that may round to TF32.

    Both have eleven significant bits, float16 half as many bytes; bytes are exact in both. A value of 255 is then
    correct to 0.1 grey levels. `torch.set_float32_matmul_precision("highest")` selects float32.
    """
    narrow = images.is_cuda and torch.get_float32_matmul_precision() != "highest"
    return torch.float16 if narrow else torch.float32
