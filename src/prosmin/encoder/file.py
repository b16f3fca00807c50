"""An encoder on disk: encoder.safetensors, its card encoder.json, and reference.safetensors where one was fitted.

Every file is written completely or not at all, and none is a pickle. The card is written last and has the hash of the
weights; the reference has the hash of the weights it was fitted with, so that it is never used with others.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from prosmin import config as configs
from prosmin.config import Config
from prosmin.encoder.calibrated import COMMAND, UNFINISHED
from prosmin.encoder.detectors import KnnDistance
from prosmin.encoder.neighbourhood import Neighbourhood
from prosmin.encoder.space import Space
from prosmin.errors import ProsminError
from prosmin.files import file_hash, write_text, writing
from prosmin.messages import runs_below

WEIGHTS, CARD, REFERENCE = "encoder.safetensors", "encoder.json", "reference.safetensors"
FORMAT = 1


def write_encoder(folder: Path, method: nn.Module, card: dict[str, Any], *, replace: bool) -> dict[str, Any]:
    """Write weights and card, and return the card with its hash. Other weights in the folder need `replace`.

    Weights that were read in float16 are written in float16 again, if no number changes by it. The card has
    `precision` only if some weights are in a format below float32.
    """
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in method.state_dict().items()}
    if card.get("precision") == "float16":
        tensors = _halved_again(tensors, matrices(method))
    if narrow := _narrow_formats(tensors):
        card = {**card, "precision": narrow}
    else:  # `deviation` is the effect of the rounding on the outputs
        card = {name: value for name, value in card.items() if name not in ("precision", "deviation")}
    with writing(folder / WEIGHTS) as part:
        save_file(tensors, part)
        found = file_hash(part)
        if not replace and (folder / CARD).exists() and read_card(folder)["hash"] != found:
            raise ProsminError(f"{folder} already has another encoder. Choose another folder, or remove that one.")
    card = {**card, "format": FORMAT, "hash": found}
    write_text(folder / CARD, json.dumps(card, indent=1))
    return card


def save_encoder(
    method: nn.Module, config: Config, folder: Path, *, step: int, steps: int, trained: int, share: float = 1.0
) -> None:
    """Write encoder.safetensors and its card encoder.json into a run folder.

    `step` is the step of the weights, `trained` the last step of the run, `steps` the step where the schedules end. A
    `share` below 1 says that the backbone is an average with the starting one, and the trained weights' share in it.
    """
    card = {"step": step, "steps": steps, "trained": trained, "config": configs.to_tree(config)}
    if share < 1:
        card["trained_share"] = share
    write_encoder(folder, method, card, replace=True)


def matrices(method: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are stored in float16 when asked for: matrices and filters, by name.

    Vectors (biases, norms) take little space. Buffers must stay exact: a running variance can be beyond float16's
    range, a centre is subtracted from values of its own size, a counter is an integer.
    """
    found = method.named_parameters(remove_duplicate=False)
    return {name: parameter for name, parameter in found if parameter.ndim > 1 and parameter.is_floating_point()}


def _halved_again(tensors: dict[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """The named tensors in float16 if that changes no number; else all unchanged."""
    wide = {name: tensors[name] for name in names}
    halves = {name: tensor.half() for name, tensor in wide.items()}
    same = all(torch.equal(half.to(wide[name].dtype), wide[name]) for name, half in halves.items())
    return tensors | halves if same else tensors


def _narrow_formats(tensors: dict[str, Tensor]) -> str:
    """The floating-point formats below float32, such as "float16"; empty if there is none."""
    formats = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point() and tensor.itemsize < 4}
    return ", ".join(sorted(str(kind).removeprefix("torch.") for kind in formats))


def read_card(folder: Path) -> dict[str, Any]:
    """The encoder's card: step, hash and configuration."""
    file = folder / CARD
    try:
        card = json.loads(file.read_text())
    except FileNotFoundError:
        raise _no_card(folder) from None
    except (OSError, ValueError) as error:
        raise ProsminError(f"{file} cannot be read: {error}.") from None
    if not isinstance(card, dict) or "hash" not in card or not ("config" in card or "encoder" in card):
        raise ProsminError(f"{file} is not the card of an encoder: no hash or configuration. Copy the files again.")
    if card.get("format", FORMAT) > FORMAT:
        raise ProsminError(
            f"{file} has format {card['format']}; this prosmin reads up to {FORMAT}. Install a newer one."
        )
    return card


def _no_card(folder: Path) -> ProsminError:
    """The error for a folder without a card, which may be an unfinished run or something else."""
    if (folder / "config.yaml").is_file():
        return ProsminError(
            f"The run in {folder} has not finished: it has no {CARD}. `prosmin pretrain --out {folder}` continues it."
        )
    if (folder / UNFINISHED).is_dir():
        return ProsminError(
            f"The calibration in {folder} has not finished: it has no {CARD}. {_calibration(folder)} continues it."
        )
    if (folder / WEIGHTS).exists():
        return ProsminError(f"{folder} has {WEIGHTS} but not its card {CARD}. Copy both again.")
    if runs := runs_below(folder):
        return ProsminError(f"{folder} is not a run folder, but contains some. Give one of them: {runs}.")
    return ProsminError(
        f"{folder} is not a run folder: it has no {CARD}. Give the folder that `prosmin pretrain --out` or "
        "Encoder.save wrote."
    )


def _calibration(folder: Path) -> str:
    """The command of an unfinished calibration."""
    try:
        command = (folder / UNFINISHED / COMMAND).read_text().strip()
    except OSError:  # it was started in Python
        command = f"prosmin calibrate RUN --data SPEC --out {folder}"
    return f"`{command}`"


def fill(method: nn.Module, folder: Path, card: dict[str, Any]) -> nn.Module:
    """The method with the weights of the folder; an error names the first tensor that does not fit."""
    file = folder / WEIGHTS
    if not file.exists():
        if "run" in card:  # written by `prosmin evaluate RUN --out`
            raise ProsminError(f"{folder} has only results; their encoder is in {card['run']}: give that folder.")
        raise ProsminError(f"{folder} has a card {CARD} but not its weights {WEIGHTS}. Copy both again.")
    try:
        if file_hash(file) != card["hash"]:
            raise ProsminError(f"{file} does not match its card {CARD}: it was changed or truncated. Copy both again.")
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ProsminError(f"{file} cannot be loaded: {error}.") from None
    if problems := _differences(method.state_dict(), tensors):
        more = f", and {len(problems) - 1} others" if len(problems) > 1 else ""
        raise ProsminError(
            f"{file} does not match the network of its card {CARD}: {problems[0]}{more}. An earlier version of prosmin "
            "may have written them: use that one, or train again. If they were changed, copy both again."
        )
    method.eval()  # before the weights: after them, whitening would compute its matrix again, with other rounding
    method.load_state_dict(tensors, strict=True)
    return method


def _differences(network: dict[str, Tensor], found: dict[str, Tensor]) -> list[str]:
    """Each difference between the tensors of the network and those of the file, a few words each."""
    rows = [f"{name} is missing" for name in network if name not in found]
    rows += [f"{name} is not part of it" for name in found if name not in network]
    for name in network.keys() & found.keys():
        if network[name].shape != found[name].shape:
            rows.append(f"{name} is {tuple(found[name].shape)}, not {tuple(network[name].shape)}")
    return sorted(rows)


def write_reference(folder: Path, reference: Neighbourhood | KnnDistance, *, encoder: str) -> None:
    """Write a reference that was fitted with the encoder of this hash."""
    if isinstance(reference, Neighbourhood):
        space = reference.space
        tensors = {"features": reference.features, "mean": space.mean, "matrix": space.matrix}
    else:
        tensors = {"bank": reference.bank, "k": torch.tensor(reference.k)}
    if reference.groups is not None:
        tensors["groups"] = reference.groups
    tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    with writing(folder / REFERENCE) as part:
        save_file(tensors, part, metadata={"encoder": encoder, "hash": tensors_hash(tensors)})


def read_reference(folder: Path, *, encoder: str) -> Neighbourhood | KnnDistance | None:
    """The reference fitted with this encoder; None if there is none, or one of other weights.

    One of an early version is a KnnDistance and keeps its score.
    """
    remedy = "Remove it, and fit the reference again."
    tensors = read_beside(folder / REFERENCE, encoder=encoder, remedy=remedy)
    if tensors is None:
        return None
    if "features" in tensors:
        space = Space(tensors["mean"], tensors["matrix"])
        return Neighbourhood(features=tensors["features"], space=space, groups=tensors.get("groups"))
    return KnnDistance(bank=tensors["bank"], k=int(tensors["k"]), groups=tensors.get("groups"))


def read_beside(file: Path, *, encoder: str, remedy: str) -> dict[str, Tensor] | None:
    """The tensors of a file beside the encoder of this hash; None if there is none, or one of other weights."""
    if not file.exists():
        return None
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  (no dictionary)
    except (OSError, SafetensorError) as error:
        raise ProsminError(f"{file} cannot be loaded: {error}. {remedy}") from None
    if metadata.get("hash") != tensors_hash(tensors):
        raise ProsminError(f"{file} was changed or truncated. {remedy}")
    return tensors if metadata.get("encoder") == encoder else None


def tensors_hash(tensors: dict[str, Tensor]) -> str:
    """A hash for a file's metadata: safetensors itself checks only sizes."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.numpy().data)
    return digest.hexdigest()
