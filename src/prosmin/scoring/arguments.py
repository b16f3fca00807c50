"""Checks of the tensors that a caller passes: shapes always, values on request."""

import torch
from torch import Tensor

from prosmin.errors import UsageError
from prosmin.scoring.settings import check_pair_count


def check_tensor(name: str, value: object) -> None:
    """A tensor, not an array or a list."""
    if not isinstance(value, Tensor):
        raise UsageError(
            f"{name} is of type {type(value).__name__}; allowed: a torch tensor. Convert it: torch.as_tensor({name})."
        )


def check_shape(name: str, tensor: Tensor, expected: tuple[int, ...], *, like: str) -> None:
    """The expected shape, which follows from `like`."""
    check_tensor(name, tensor)
    if tuple(tensor.shape) != expected:
        raise UsageError(f"{name} has shape {tuple(tensor.shape)}; allowed: {expected}, to match {like}.")


def check_not_empty(name: str, tensor: Tensor) -> None:
    """At least one item with at least one coordinate, in floating point."""
    check_tensor(name, tensor)
    if tensor.ndim == 0 or tensor.numel() == 0:
        raise UsageError(
            f"{name} has shape {tuple(tensor.shape)}; allowed: at least one item with at least one coordinate."
        )
    if not tensor.is_floating_point():
        raise UsageError(f"{name} has dtype {tensor.dtype}; allowed: floating point.")


def check_finite(name: str, tensor: Tensor) -> None:
    """No NaN and no infinity. Waits for the device."""
    finite = torch.isfinite(tensor)
    if not bool(finite.all()):
        bad = (~finite).nonzero()
        where = tuple(bad[0].tolist())
        raise UsageError(
            f"{name} of shape {tuple(tensor.shape)} has {len(bad)} values that are not finite, the first "
            f"({tensor[where].item()}) at {where}; allowed: finite numbers."
        )


def check_scale(scale: Tensor) -> None:
    """A standard deviation: 0 or more. Waits for the device."""
    if bool((scale < 0).any()):
        raise UsageError(
            f"scale has the value {scale.min().item():g}; allowed: 0 or more. It is a standard deviation, not its "
            "logarithm."
        )


def check_forecast(mean: Tensor, scale: Tensor, target: Tensor, *, validate: bool, mixture: bool = False) -> None:
    """A Gaussian forecast and its target: three tensors (..., d). A mixture of V has mean and scale (V, ..., d)."""
    check_not_empty("mean", mean)
    check_shape("scale", scale, tuple(mean.shape), like="mean")
    like = "the components of mean" if mixture else "mean"
    check_shape("target", target, tuple(mean.shape[1:] if mixture else mean.shape), like=like)
    if validate:
        for name, tensor in (("mean", mean), ("scale", scale), ("target", target)):
            check_finite(name, tensor)
        check_scale(scale)


def check_ensemble(samples: Tensor, target: Tensor, *, validate: bool) -> None:
    """r samples (r, ..., d) of the forecast, and the target (..., d)."""
    check_not_empty("target", target)
    check_not_empty("samples", samples)
    check_pair_count(len(samples))
    check_shape("samples", samples, (len(samples), *target.shape), like="target")
    if validate:
        check_finite("samples", samples)
        check_finite("target", target)
