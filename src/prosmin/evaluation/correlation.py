"""Rank correlation: does one number rise with another, whatever the shape of the rise?"""

import torch
from torch import Tensor


def spearman(x: Tensor, y: Tensor) -> Tensor:
    """Spearman's correlation along the last dimension: twice (..., n) -> (...); NaN where one is constant."""
    a, b = _centred_ranks(x), _centred_ranks(y)
    return (a * b).sum(-1) / (a.square().sum(-1) * b.square().sum(-1)).sqrt()


def _centred_ranks(x: Tensor) -> Tensor:
    """Ranks less their mean; equal values share the mean of their ranks: (..., n) -> (..., n)."""
    x = x.double().contiguous()
    ordered = x.sort(-1).values
    below, up_to = (torch.searchsorted(ordered, x, right=right) for right in (False, True))
    return (below + up_to).double() / 2 - x.shape[-1] / 2
