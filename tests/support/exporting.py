"""Runs with tiny networks, and small functions, for the tests of `prosmin export`."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from prosmin import config as configs
from prosmin.encoder import Encoder, save_encoder
from prosmin.methods import build_method

if TYPE_CHECKING:
    import onnxruntime


def make_run(config: configs.Config, folder: Path) -> Path:
    """A run folder whose encoder has weights and statistics unlike those of a new network."""
    method = build_method(config)
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in method.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=random))
        for norm in method.modules():
            if isinstance(norm, _BatchNorm):
                norm.running_mean.normal_(std=0.2, generator=random)
                norm.running_var.uniform_(0.5, 2.0, generator=random)
    folder.mkdir()
    (folder / "config.yaml").write_text("# of a run\n")
    save_encoder(method, config, folder, step=4, steps=8, trained=4)
    return folder


def noise_views(encoder: Encoder, count: int) -> Tensor:
    side = encoder.config.views.global_size
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(count))


def session(file: Path) -> "onnxruntime.InferenceSession":
    import onnxruntime  # optional: only the tests of ONNX need it

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def everything(folder: Path) -> list[str]:
    """All paths below a folder, with hidden files."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
