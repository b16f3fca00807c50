"""What tests of optional packages skip for, with the reason."""

import importlib.util

import pytest
import torch
from torch.torch_version import TorchVersion

from prosmin.export.onnx_graph import TORCH


def _no_onnx() -> str:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed: pip install 'prosmin[onnx]'"
    return f"ONNX export needs torch {TORCH} or later" if TorchVersion(torch.__version__) < TORCH else ""


needs_onnx = pytest.mark.skipif(bool(_no_onnx()), reason=_no_onnx() or "ONNX export works here")


def need_imagecorruptions() -> None:
    """Skip the test that calls this unless the library of corruptions is installed."""
    reason = "imagecorruptions is not installed: pip install 'prosmin[corruptions]'"
    pytest.importorskip("imagecorruptions", reason=reason)
