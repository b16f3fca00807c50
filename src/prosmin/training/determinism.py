"""The same bits every time on a GPU: the settings of torch, cuDNN and cuBLAS that `compute.deterministic` asks for."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.utils.deterministic

from prosmin.config import ComputeConfig
from prosmin.errors import UsageError

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
FIXED = (":4096:8", ":16:8")
"""Workspaces with which cuBLAS gives the same bits every time, as its documentation says."""


@contextmanager
def deterministic(compute: ComputeConfig) -> Iterator[None]:
    """Within the block torch uses deterministic algorithms if `compute` asks for them; the settings are restored."""
    if not compute.deterministic:
        yield
        return
    memory: Any = torch.utils.deterministic  # its type has no attributes
    cudnn = torch.backends.cudnn
    mode, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fills, fixed, tries = memory.fill_uninitialized_memory, cudnn.deterministic, cudnn.benchmark
    given = os.environ.get(WORKSPACE)
    if on_gpu := compute.accelerator != "cpu":
        _fix_workspace()
    try:
        torch.use_deterministic_algorithms(True)
        memory.fill_uninitialized_memory = False  # nothing reads such memory, and filling it takes time
        cudnn.deterministic, cudnn.benchmark = True, False
        with _compiling_without_timings() if compute.compile != "none" else nullcontext():
            yield
    except RuntimeError as error:
        if "does not have a deterministic implementation" not in str(error):
            raise
        raise UsageError(
            f"compute.deterministic is true, but the network of backbone.name needs an operation without a "
            f"deterministic form: {str(error).partition(',')[0]}. Choose another backbone, or leave it at false."
        ) from error
    finally:
        torch.use_deterministic_algorithms(mode, warn_only=warns)
        memory.fill_uninitialized_memory = fills
        cudnn.deterministic, cudnn.benchmark = fixed, tries
        if on_gpu and not torch.cuda.is_initialized():  # else cuBLAS may have read it, and a later run needs it too
            _set_workspace(given)


def _fix_workspace() -> None:
    """Give cuBLAS a fixed workspace; an error if it may have read another setting already."""
    given = os.environ.get(WORKSPACE)
    if given in FIXED:
        return
    if torch.cuda.is_initialized():
        raise UsageError(
            f"compute.deterministic is true, but this process has used the GPU already, with {WORKSPACE} "
            f"{'not set' if given is None else given}; allowed: {' or '.join(FIXED)}. Set this environment variable "
            "before Python starts."
        )
    _set_workspace(FIXED[0])


def _compiling_without_timings() -> AbstractContextManager[object]:
    """torch.compile pads matrices where that is faster in a trial, and padding changes how a sum is ordered."""
    import torch._inductor.config as inductor  # takes a while to import

    return inductor.patch(shape_padding=False)


def _set_workspace(value: str | None) -> None:
    if value is None:
        os.environ.pop(WORKSPACE, None)
    else:
        os.environ[WORKSPACE] = value
