"""Load weights from a file into a backbone: the layouts of DINO, iBOT, MoCo v3, timm and prosmin.

Files are read with torch's restricted unpickler, which runs no code of the file. Other content of a checkpoint (such as
optimiser state and options) is ignored.
"""

import argparse
import math
import pickle
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from timm.data import resolve_model_data_config
from torch import Tensor, nn

from prosmin.config import Config
from prosmin.errors import MissingFileError, ProsminError, UsageError
from prosmin.messages import some
from prosmin.models.backbones import attention_heads, build_pretrained
from prosmin.models.origin import Origin, compare_heads, named_heads, other_normalisation

# Where a checkpoint keeps its networks; DINO and iBOT evaluate the teacher, not the student.
_CONTAINERS = ("teacher", "student", "state_dict", "model")

# prefix of the backbone's names -> kind of file
_LAYOUTS = {
    "online.backbone.": "an encoder of prosmin",
    "base_encoder.": "a checkpoint of MoCo v3, its base encoder",
    "backbone.": "a checkpoint of DINO or iBOT",
    "": "a plain state dict",
}

# Tensors of published backbones that we do not load: classifiers, projectors, mask tokens.
_EXTRAS = {"head", "head_dist", "fc", "classifier", "pre_logits", "masked_embed", "mask_token"}

# DINO's checkpoints also contain their command line and numpy scalars. None of these types runs code.
_NUMPY_SCALAR: Any = np.float64(0).__reduce__()[0]
_HARMLESS: list[Any] = [
    argparse.Namespace,
    np.dtype,
    *{type(np.dtype(kind)) for kind in ("float64", "float32", "int64", "bool")},
    (_NUMPY_SCALAR, "numpy.core.multiarray.scalar"),  # its name before numpy 2
    (_NUMPY_SCALAR, "numpy._core.multiarray.scalar"),
]


_ENCODER = "encoder.safetensors"  # in a run folder
_ALLOWED = "Allowed: .safetensors, or a file written by torch.save."


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The tensors of a backbone as the file names them, and the kind of file."""

    file: Path
    layout: str
    tensors: dict[str, Tensor]
    left_out: tuple[str, ...]  # names of tensors that do not belong to the backbone

    @property
    def from_prosmin(self) -> bool:
        """Whether prosmin wrote the file."""
        return self.layout == _LAYOUTS["online.backbone."]

    @property
    def heads(self) -> int | None:
        """The number of attention heads where shapes do not show it: MoCo v3's ViT-S has 12."""
        token = self.tensors.get("cls_token")
        small = token is not None and token.shape[-1] == 384
        return 12 if small and self.layout == _LAYOUTS["base_encoder."] else None


def load_backbone_weights(backbone: nn.Module, file: Path) -> str:
    """Load a file into a backbone; returns a sentence that says what was loaded and what was left out."""
    return fill_backbone(backbone, read_weights(file))


def read_weights(file: Path) -> Weights:
    """The backbone's tensors in a file of any of the layouts."""
    file = file.expanduser()
    if (file / _ENCODER).is_file():  # a run folder
        file = file / _ENCODER
    content = _read(file)
    while (name := next((c for c in _CONTAINERS if isinstance(content.get(c), Mapping)), None)) is not None:
        content = content[name]
    tensors = {str(key).removeprefix("module."): value for key, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise ProsminError(
            f"{file} contains no named tensors; its entries: {some([str(key) for key in content])}. "
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
    """Load the weights: the file must have every tensor of the backbone, and no others except heads."""
    _check_heads(backbone, weights)
    expected = backbone.state_dict()
    remedy = _remedy(weights.tensors, expected)
    tensors = _converted(backbone, weights, expected, remedy=remedy)
    extras = [key for key in tensors if key not in expected and key.partition(".")[0] in _EXTRAS]
    unknown = [key for key in tensors if key not in expected and key not in extras]
    # Old files have no num_batches_tracked, and nothing here reads it.
    missing = [key for key in expected if key not in tensors and not key.endswith("num_batches_tracked")]
    name = f"{weights.file} ({weights.layout})"
    if missing:
        raise ProsminError(
            f"{name} lacks {len(missing)} of the network's {len(expected)} tensors: {some(missing)}. "
            f"It contains {some(list(tensors))}. {remedy}"
        )
    if unknown:
        raise ProsminError(
            f"{name} contains {len(unknown)} tensors that the network does not have: {some(unknown)}. {remedy}"
        )
    used = {key: tensors[key] for key in expected if key in tensors}
    _check_shapes(used, expected, weights.file, remedy=remedy)
    _check_finite(used, str(weights.file))
    backbone.load_state_dict(used, strict=False)
    return _sentence(weights, used, [*weights.left_out, *extras])


def _read(file: Path) -> Mapping[str, Any]:
    """A file's content: tensors and plain numbers."""
    if file.is_dir():
        raise UsageError(f"The weights {file} are a folder without {_ENCODER}. Give a finished run, or a file.")
    if not file.is_file():
        raise MissingFileError(f"The weights file {file} does not exist.")
    if not file.stat().st_size:
        raise ProsminError(f"{file} is empty, and not a file of weights. Copy or download it again. {_ALLOWED}")
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        with torch.serialization.safe_globals(_HARMLESS), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols
            content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = next((line for line in str(error).splitlines() if "GLOBAL" in line or "Trying to" in line), None)
        if reason is None:
            raise _no_weights(file) from None
        raise ProsminError(
            f"{file} was not loaded: it contains more than tensors and numbers, and unpickling that could run any "
            f"code ({reason.strip().partition(' Please')[0].rstrip('.')}). Save only its state dict, preferably as "
            ".safetensors."
        ) from None
    except (OSError, RuntimeError) as error:  # such as an archive that ends too early
        line = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ProsminError(f"{file} cannot be read as weights: {line}. {_ALLOWED}") from None
    except Exception:  # of any other file: SafetensorError, KeyError, IndexError, struct.error, ...
        raise _no_weights(file) from None
    if not isinstance(content, Mapping):
        raise ProsminError(f"{file} is a {type(content).__name__}; allowed: a state dict, or a checkpoint with one.")
    return content


def _no_weights(file: Path) -> ProsminError:
    return ProsminError(f"{file} is not a file of weights, or only a part of one. {_ALLOWED}")


def _remedy(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str:
    """What to do about weights of another network; of two ViTs, with the fields in which their shapes differ."""
    sizes, here = _vit_fields(found), _vit_fields(expected)
    differing = {name: size for name, size in sizes.items() if here.get(name, size) != size}
    if "backbone.patch_size" not in differing:
        differing.pop("views.global_size", None)  # then the position embedding is resized
    which = ", ".join(f"{name} is {size} (now {here[name]})" for name, size in differing.items())
    return f"Choose the network that the file was made with{f', in which {which}' if which else ''}."


def _vit_fields(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """The fields of a ViT, as far as its tensors show them; empty for another network."""
    filters, position = tensors.get("patch_embed.proj.weight"), tensors.get("pos_embed")
    if filters is None or filters.ndim != 4:
        return {}
    width, patch = len(filters), filters.shape[-1]
    blocks = {name.split(".")[1] for name in tensors if name.startswith("blocks.")}
    fields = {"backbone.patch_size": patch, "backbone.width": width, "backbone.depth": len(blocks)}
    if position is not None and position.ndim == 3:  # (1, h w and a few more tokens, D)
        fields["views.global_size"] = math.isqrt(position.shape[1]) * patch
    return fields


def _check_heads(backbone: nn.Module, weights: Weights) -> None:
    """A wrong number of heads fits all shapes but gives other features."""
    heads = attention_heads(backbone)
    if weights.heads is not None and heads is not None and heads != weights.heads:
        raise ProsminError(
            f"{weights.file} is {weights.layout}: a ViT-S with {weights.heads} attention heads. "
            f"The network has {heads}. Set backbone.heads to {weights.heads}."
        )


def _converted(
    backbone: nn.Module, weights: Weights, expected: Mapping[str, Tensor], *, remedy: str
) -> dict[str, Tensor]:
    """The tensors under timm's names, with the position embedding resized to the network's grid, both by timm."""
    # timm would also resize the filters of another patch size, but those belong to another network.
    filters = {key: value for key, value in weights.tensors.items() if value.ndim == 4 and key in expected}
    _check_shapes(filters, expected, weights.file, remedy=remedy)
    fits = all(key in weights.tensors and weights.tensors[key].shape == expected[key].shape for key in expected)
    convert = _conversion_of(backbone)
    if fits or convert is None:  # timm would rename some fitting tensors a second time
        return weights.tensors
    try:
        return dict(convert(dict(weights.tensors), backbone))
    except (RuntimeError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise ProsminError(f"{weights.file} ({weights.layout}) does not fit the network ({error}). {remedy}") from None


def _conversion_of(backbone: nn.Module) -> Callable[..., dict[str, Tensor]] | None:
    """timm's function for the files of a network; it is in the module of the network's class, or of one it extends."""
    modules = (sys.modules.get(kind.__module__) for kind in type(backbone).__mro__)
    return next(filter(None, (getattr(module, "checkpoint_filter_fn", None) for module in modules)), None)


def _check_shapes(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], file: Path, *, remedy: str) -> None:
    for key, value in tensors.items():
        if value.shape != expected[key].shape:
            raise ProsminError(
                f"{key} has shape {tuple(value.shape)} in {file} and {tuple(expected[key].shape)} in the network. "
                f"{remedy}"
            )


def _check_finite(tensors: Mapping[str, Tensor], name: str) -> None:
    bad = [key for key, value in tensors.items() if value.is_floating_point() and not bool(value.isfinite().all())]
    if bad:
        raise ProsminError(f"{name} contains numbers that are not finite, in {some(bad)}. Download it again.")


def _sentence(weights: Weights, used: Mapping[str, Tensor], left_out: list[str]) -> str:
    parts = [f"{len(used)} tensors of {weights.file.name}, {weights.layout}"]
    if left_out:
        groups = dict.fromkeys(key.partition(".")[0] for key in left_out)
        parts.append(f"{len(left_out)} left out ({some(list(groups))})")
    position, resized = weights.tensors.get("pos_embed"), used.get("pos_embed")
    if position is not None and resized is not None and position.shape != resized.shape:
        parts.append(f"position embedding resized from {position.shape[1]} to {resized.shape[1]} tokens")
    return "; ".join(parts) + "."


def load_initial_weights(
    method: nn.Module, config: Config, file: Path | None, origin: Origin | None = None
) -> tuple[str, list[str]]:
    """Load a file, or timm's own weights, into the online backbone, and into the target's if that starts as a copy.

    `origin` is what the card beside the file says. Returns a sentence that says what was loaded, and warnings.
    """
    online = method.get_submodule("online.backbone")
    if file is None:
        sentence, origin = _load_pretrained(online, config)
    else:
        weights = read_weights(file)
        sentence = fill_backbone(online, weights)
        origin = origin or _origin_of_file(online, weights, config.backbone.name)
    cautions = compare_heads(online, origin), other_normalisation(config.views, origin)
    if config.target.start == "copy":
        method.get_submodule("target.backbone").load_state_dict(online.state_dict(), strict=True)
    return sentence, [caution for caution in cautions if caution]


def _load_pretrained(online: nn.Module, config: Config) -> tuple[str, Origin]:
    network, sentence = build_pretrained(config.backbone, image_size=config.views.global_size)
    name = config.backbone.name
    _check_finite(network.state_dict(), f"What timm has as its weights of {name}")
    online.load_state_dict(network.state_dict(), strict=True)
    card = resolve_model_data_config(network)
    heads = named_heads(name, like=online)
    return sentence, Origin(whose=f"timm's {name}", heads=heads, mean=tuple(card["mean"]), std=tuple(card["std"]))


def _origin_of_file(online: nn.Module, weights: Weights, name: str) -> Origin:
    """Of a file without a card: published weights have the heads that their layout says, or timm's network."""
    whose, named = f"{weights.file} ({weights.layout})", named_heads(name, like=online)
    if weights.from_prosmin or weights.heads is not None or named is None:
        return Origin(whose=whose, heads=weights.heads)
    return Origin(whose=f"{whose}, read as weights of timm's {name},", heads=named)
