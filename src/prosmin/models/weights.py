"""Weights from a file into a backbone: the layouts that DINO, iBOT and MoCo v3 publish, timm's, and our own.

Files are read as tensors only. torch's restricted unpickler calls nothing but what it knows to be harmless; what
else a checkpoint may hold (its optimiser's numbers, its options) is read along and left out.
"""

import argparse
import pickle
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from prosmin.config import Config
from prosmin.errors import MissingFileError, ProsminError, UsageError

# Where a checkpoint keeps its networks; DINO and iBOT judge the teacher, not the student.
_CONTAINERS = ("teacher", "student", "state_dict", "model")

# prefix of the backbone's names -> what such a file is
_LAYOUTS = {
    "online.backbone.": "an encoder of prosmin",
    "base_encoder.": "a checkpoint of MoCo v3, its base encoder",
    "backbone.": "a checkpoint of DINO or iBOT",
    "": "a plain state dict",
}

# What a published backbone carries beyond the backbone: classifiers, projectors, tokens for hidden patches.
_EXTRAS = {"head", "head_dist", "fc", "classifier", "pre_logits", "masked_embed", "mask_token"}

# DINO's checkpoints keep their command line and numpy's numbers beside the tensors. None of these runs anything.
_NUMPY_SCALAR: Any = np.float64(0).__reduce__()[0]
_HARMLESS: list[Any] = [
    argparse.Namespace,
    np.dtype,
    *{type(np.dtype(kind)) for kind in ("float64", "float32", "int64", "bool")},
    (_NUMPY_SCALAR, "numpy.core.multiarray.scalar"),  # its name until numpy 2
    (_NUMPY_SCALAR, "numpy._core.multiarray.scalar"),
]


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The tensors of a backbone as a file names them, and what the file is."""

    file: Path
    layout: str
    tensors: dict[str, Tensor]
    left_out: tuple[str, ...]  # names of tensors that are not of the backbone

    @property
    def is_our_own(self) -> bool:
        """Whether a run of prosmin left the file."""
        return self.layout == _LAYOUTS["online.backbone."]

    @property
    def heads(self) -> int | None:
        """Attention heads, where the layout fixes a number that the shapes do not show: MoCo v3's ViT-S has 12."""
        token = self.tensors.get("cls_token")
        small = token is not None and token.shape[-1] == 384
        return 12 if small and self.layout == _LAYOUTS["base_encoder."] else None


def load_backbone_weights(backbone: nn.Module, file: Path) -> str:
    """Fill a backbone from a file and say in a sentence what was used and what was left out."""
    return fill_backbone(backbone, read_weights(file))


def read_weights(file: Path) -> Weights:
    """The backbone's tensors of a file in any of the layouts."""
    file = file.expanduser()
    content = _read(file)
    while (name := next((c for c in _CONTAINERS if isinstance(content.get(c), Mapping)), None)) is not None:
        content = content[name]
    tensors = {str(key).removeprefix("module."): value for key, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise ProsminError(
            f"{file} holds no named tensors; its entries: {_few(map(str, content))}. "
            "Allowed: a state dict, or a checkpoint of DINO, iBOT, MoCo v3 or prosmin."
        )
    prefix = next(p for p in _LAYOUTS if any(key.startswith(p) for key in tensors))
    return Weights(
        file=file,
        layout=_LAYOUTS[prefix],
        tensors={key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)},
        left_out=tuple(key for key in tensors if not key.startswith(prefix)),
    )


def fill_backbone(backbone: nn.Module, weights: Weights) -> str:
    """Load the weights: every tensor of the backbone must be there, and nothing else but heads."""
    _check_heads(backbone, weights)
    wanted = backbone.state_dict()
    tensors = _converted(backbone, weights, wanted)
    strange = [key for key in tensors if key not in wanted]
    extras = [key for key in strange if key.partition(".")[0] in _EXTRAS]
    # Old files have no counters of batches, which nothing here reads.
    missing = [key for key in wanted if key not in tensors and not key.endswith("num_batches_tracked")]
    if missing:
        raise ProsminError(
            f"{weights.file} ({weights.layout}) lacks {len(missing)} of the network's {len(wanted)} tensors, such as "
            f"{_few(missing)}; it holds {_few(tensors)}. Give the name of the network it was made with."
        )
    if len(extras) < len(strange):
        unknown = [key for key in strange if key not in extras]
        raise ProsminError(
            f"{weights.file} ({weights.layout}) holds {len(unknown)} tensors that the network does not have, such as "
            f"{_few(unknown)}. Give the name of the network it was made with."
        )
    used = {key: tensors[key] for key in wanted if key in tensors}
    _check_values(used, wanted, weights.file)
    backbone.load_state_dict(used, strict=False)
    return _sentence(weights, used, [*weights.left_out, *extras])


def _read(file: Path) -> Mapping[str, Any]:
    """A file's content, tensors and plain numbers only."""
    if file.is_dir():
        raise UsageError(f"The weights {file} are a folder. Name a file in it, such as {file / 'encoder.safetensors'}.")
    if not file.is_file():
        raise MissingFileError(f"The weights file {file} does not exist.")
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        with torch.serialization.safe_globals(_HARMLESS), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickle protocols
            content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = next((line for line in str(error).splitlines() if "GLOBAL" in line), "it is no file of tensors")
        raise ProsminError(
            f"{file} is not loaded: it holds more than tensors and numbers, and unpickling that could run any "
            f"program ({reason.strip().partition(' Please')[0].rstrip('.')}). Save its state dict alone, best as "
            ".safetensors."
        ) from None
    except (OSError, RuntimeError, EOFError, KeyError, ValueError, SafetensorError) as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise ProsminError(
            f"{file} cannot be read as weights: {line}. Allowed: .safetensors, or what torch.save writes."
        ) from None
    if not isinstance(content, Mapping):
        raise ProsminError(f"{file} holds a {type(content).__name__}; allowed: a state dict or a checkpoint with one.")
    return content


def _check_heads(backbone: nn.Module, weights: Weights) -> None:
    """Another number of heads fits every shape and gives other features."""
    blocks = getattr(backbone, "blocks", None)
    has = getattr(getattr(blocks[0], "attn", None), "num_heads", None) if isinstance(blocks, nn.Sequential) else None
    if weights.heads is not None and has is not None and has != weights.heads:
        raise ProsminError(
            f"{weights.file} is {weights.layout}: a ViT-S with {weights.heads} attention heads. "
            f"The network has {has}. Set backbone.heads to {weights.heads}."
        )


def _converted(backbone: nn.Module, weights: Weights, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under timm's names, a position embedding resized to the network's grid: timm's own functions."""
    # timm would also resize the filters of another patch size; those are of another network.
    filters = {key: value for key, value in weights.tensors.items() if value.ndim == 4 and key in wanted}
    _check_shapes(filters, wanted, weights.file)
    fits = all(key in weights.tensors and weights.tensors[key].shape == wanted[key].shape for key in wanted)
    convert = getattr(sys.modules[type(backbone).__module__], "checkpoint_filter_fn", None)
    if fits or convert is None:  # of what fits already, timm would rename some a second time
        return weights.tensors
    try:
        return dict(convert(dict(weights.tensors), backbone))
    except (RuntimeError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise ProsminError(
            f"{weights.file} ({weights.layout}) does not fit the network, timm says: {error}. "
            "Give the name of the network it was made with."
        ) from None


def _check_values(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor], file: Path) -> None:
    _check_shapes(tensors, wanted, file)
    wrong = [key for key, value in tensors.items() if value.is_floating_point() and not bool(value.isfinite().all())]
    if wrong:
        raise ProsminError(f"{file} holds numbers that are not finite, in {_few(wrong)}. Fetch it again.")


def _check_shapes(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor], file: Path) -> None:
    for key, value in tensors.items():
        if value.shape != wanted[key].shape:
            raise ProsminError(
                f"{key} is {tuple(value.shape)} in {file} and {tuple(wanted[key].shape)} in the network. "
                "Give the name of the network it was made with."
            )


def _sentence(weights: Weights, used: Mapping[str, Tensor], left_out: list[str]) -> str:
    parts = [f"{len(used)} tensors of {weights.file.name}, {weights.layout}"]
    if left_out:
        groups = dict.fromkeys(key.partition(".")[0] for key in left_out)
        parts.append(f"{len(left_out)} left out ({_few(groups)})")
    position, resized = weights.tensors.get("pos_embed"), used.get("pos_embed")
    if position is not None and resized is not None and position.shape != resized.shape:
        parts.append(f"position embedding resized from {position.shape[1]} to {resized.shape[1]} tokens")
    return "; ".join(parts) + "."


def _few(names: Any, count: int = 4) -> str:
    names = list(names)
    return ", ".join(names[:count]) + (", ..." if len(names) > count else "")


def start_from(method: nn.Module, config: Config) -> str:
    """Load `backbone.weights` into the online backbone, and into the target's where that starts as a copy."""
    assert config.backbone.weights is not None
    online = method.get_submodule("online.backbone")
    sentence = load_backbone_weights(online, Path(config.backbone.weights))
    if config.target.start == "copy":
        method.get_submodule("target.backbone").load_state_dict(online.state_dict(), strict=True)
    return sentence
