"""Linear operations on pictures that treat rows and columns apart: resizing and blurring.

Every output row is a weighted sum of T rows of the picture, its taps, and so with the columns. A GPU is given
the whole matrices, mostly zeros, and multiplies: two batched products, which is what it does best. A CPU sums
the taps alone, a tenth of the work.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from prosmin.data.selection import host_may_look


class Taps(NamedTuple):
    """The pixels that make each output pixel of an axis, and their weights: (B, V, size, T)."""

    places: Tensor
    weights: Tensor

    def matrix(self, pixels: int) -> Tensor:
        """The weight of every pixel: (B, V, size, pixels)."""
        zeros = self.weights.new_zeros(*self.weights.shape[:-1], pixels)
        return zeros.scatter_add_(-1, self.places, self.weights)


def combine(images: Tensor, rows: Taps, columns: Taps) -> Tensor:
    """The weighted sums of both axes, float32: (B, C, H, W) -> (B, V, C, h, w)."""
    return (sum_taps if host_may_look(images) else multiply)(images, rows, columns)


def sum_taps(images: Tensor, rows: Taps, columns: Taps) -> Tensor:
    """Columns first: bags of T weighted rows of a table, whose rows are the picture's columns."""
    B, C, H, W = images.shape
    _, V, h, _ = rows.places.shape
    w = columns.places.shape[2]
    table = _laid_out(images.permute(0, 3, 1, 2))  # (B, W, C, H)
    places = columns.places + W * torch.arange(B).view(B, 1, 1, 1)
    half = _bags(table.view(B * W, C * H), places, columns.weights)  # (B V w, C H)
    table = half.view(B * V, w, C, H).permute(0, 2, 3, 1).reshape(B * V * C * H, w)
    places = rows.places[:, :, None] + H * torch.arange(B * V * C).view(B, V, C, 1, 1)  # (B, V, C, h, T)
    return _bags(table, places, rows.weights[:, :, None].expand_as(places)).view(B, V, C, h, w)


def _laid_out(images: Tensor) -> Tensor:
    """The pictures as float32 in the order of their axes, in one pass over memory."""
    return torch.empty(images.shape, dtype=torch.float32, device=images.device).copy_(images)


def _bags(table: Tensor, places: Tensor, weights: Tensor) -> Tensor:
    """Sums of weighted table rows: (rows, n), (..., T), (..., T) -> (bags, n)."""
    taps = places.shape[-1]
    # Contiguous always: for other strides torch has another kernel, and a view must not depend on its batch.
    places, weights = places.reshape(-1, taps).contiguous(), weights.reshape(-1, taps).contiguous()
    return F.embedding_bag(places, table.contiguous(), mode="sum", per_sample_weights=weights)


def multiply(images: Tensor, rows: Taps, columns: Taps) -> Tensor:
    """Two batched products. The first runs along the longer axis, so that less is left for the second."""
    # Zeros up to a multiple of eight: a GPU's fast products want rows that begin at aligned addresses.
    images = F.pad(images, (0, -images.shape[-1] % 8, 0, -images.shape[-2] % 8))
    if images.shape[-1] > images.shape[-2]:
        return _multiply(images.mT, columns, rows).mT.contiguous()
    return _multiply(images, rows, columns).contiguous()


def _multiply(images: Tensor, rows: Taps, columns: Taps) -> Tensor:
    B, C, H, W = images.shape
    first, second = rows.matrix(H), columns.matrix(W)  # (B, V, h, H), (B, V, w, W)
    _, V, h, _ = first.shape
    pixels = _laid_out(images.transpose(1, 2))  # (B, H, C, W)
    # The V views of a picture share one product: their matrices stand one above the other.
    half = torch.bmm(first.view(B, V * h, H), pixels.view(B, H, C * W))  # (B, V h, C W)
    views = torch.bmm(half.view(B * V, h * C, W), second.flatten(0, 1).mT)  # (B V, h C, w)
    return views.view(B, V, h, C, -1).transpose(2, 3)
