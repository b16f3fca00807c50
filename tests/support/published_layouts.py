"""Small networks in the layouts that DINO, iBOT and MoCo v3 publish, and a plain ViT to hold timm's against."""

import argparse

import numpy as np
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

Tensors = dict[str, Tensor]


def vit_tensors(*, width: int = 32, depth: int = 2, patch: int = 8, grid: int = 4, seed: int = 0) -> Tensors:
    """A ViT's tensors under the names DINO, iBOT and MoCo v3 share."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "cls_token": (1, 1, width),
        "pos_embed": (1, 1 + grid * grid, width),
        "patch_embed.proj.weight": (width, 3, patch, patch),
        "patch_embed.proj.bias": (width,),
        "norm.weight": (width,),
        "norm.bias": (width,),
    }
    for block in range(depth):
        for name, shape in {
            "norm1.weight": (width,),
            "norm1.bias": (width,),
            "attn.qkv.weight": (3 * width, width),
            "attn.qkv.bias": (3 * width,),
            "attn.proj.weight": (width, width),
            "attn.proj.bias": (width,),
            "norm2.weight": (width,),
            "norm2.bias": (width,),
            "mlp.fc1.weight": (4 * width, width),
            "mlp.fc1.bias": (4 * width,),
            "mlp.fc2.weight": (width, 4 * width),
            "mlp.fc2.bias": (width,),
        }.items():
            shapes[f"blocks.{block}.{name}"] = shape
    return {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def vit_features(tensors: Tensors, x: Tensor, *, heads: int) -> Tensor:
    """What the published code computes from them, written out: (N, 3, h, h) -> the class token (N, D)."""

    def norm(x: Tensor, name: str) -> Tensor:
        weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
        return F.layer_norm(x, weight.shape, weight, bias, eps=1e-6)

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    filters = tensors["patch_embed.proj.weight"]
    patches = F.conv2d(x, filters, tensors["patch_embed.proj.bias"], stride=filters.shape[-1])
    tokens = patches.flatten(2).transpose(1, 2)  # (N, P, D)
    tokens = torch.cat([tensors["cls_token"].expand(len(x), -1, -1), tokens], 1) + tensors["pos_embed"]
    depth = sum(name.endswith("attn.qkv.weight") for name in tensors)
    for block in range(depth):
        at = f"blocks.{block}"
        q, k, v = linear(norm(tokens, f"{at}.norm1"), f"{at}.attn.qkv").unflatten(-1, (3, heads, -1)).unbind(2)
        scores = torch.einsum("nihd,njhd->nhij", q, k) / q.shape[-1] ** 0.5
        mixed = torch.einsum("nhij,njhd->nihd", scores.softmax(-1), v).flatten(2)
        tokens = tokens + linear(mixed, f"{at}.attn.proj")
        hidden = F.gelu(linear(norm(tokens, f"{at}.norm2"), f"{at}.mlp.fc1"))
        tokens = tokens + linear(hidden, f"{at}.mlp.fc2")
    return norm(tokens, "norm")[:, 0]


def prefixed(tensors: Tensors, prefix: str) -> Tensors:
    """The same under longer names."""
    return {prefix + name: tensor for name, tensor in tensors.items()}


def heads(width: int) -> Tensors:
    """A DINO head's tensors, weight-normalised last layer included."""
    return {
        "head.mlp.0.weight": torch.ones(16, width),
        "head.last_layer.weight_g": torch.ones(8, 1),
        "head.last_layer.weight_v": torch.ones(8, 16),
    }


def dino_checkpoint(tensors: Tensors, *, student: Tensors) -> dict[str, object]:
    """As main_dino.py saves it: numpy's numbers in the optimiser and the command line included."""
    head = heads(tensors["norm.bias"].numel()) if "norm.bias" in tensors else {}
    return {
        "student": prefixed(prefixed(student, "backbone.") | head, "module."),
        "teacher": prefixed(tensors, "backbone.") | head,
        "optimizer": {"state": {}, "param_groups": [{"lr": np.float64(1e-4), "params": [0, 1]}]},
        "epoch": 100,
        "args": argparse.Namespace(arch="vit_small", patch_size=16, lr=5e-4, out_dim=65536),
        "dino_loss": {"center": torch.zeros(1, 8)},
    }


def ibot_checkpoint(tensors: Tensors) -> dict[str, object]:
    """iBOT's full checkpoint: DINO's, with the token for hidden patches in the student and wider heads."""
    token = {"masked_embed": torch.ones(1, tensors["norm.bias"].numel())}
    content = dino_checkpoint(tensors | token, student=tensors | token)
    return content | {"ibot_loss": {"center": torch.zeros(1, 1, 8)}}


def moco_checkpoint(tensors: Tensors, *, momentum: Tensors, head: str = "head") -> dict[str, object]:
    """As main_moco.py saves it."""
    mlp = {f"{head}.0.weight": torch.ones(16, 8), f"{head}.1.running_mean": torch.ones(16)}
    networks = prefixed(tensors | mlp, "base_encoder.") | prefixed(momentum | mlp, "momentum_encoder.")
    return {
        "epoch": 300,
        "arch": "vit_small",
        "state_dict": prefixed(networks | {"predictor.0.weight": torch.ones(16, 8)}, "module."),
        "optimizer": {"state": {}, "param_groups": []},
        "scaler": {"scale": 65536.0},
    }


def timm_weights(folder):
    """A file of random weights of timm's smallest ViT."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        network = timm.create_model("test_vit", num_classes=0)
    save_file(network.state_dict(), folder / "weights.safetensors")
    return folder / "weights.safetensors"
