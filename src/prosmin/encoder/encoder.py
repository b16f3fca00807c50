"""The trained encoder a user loads: features, forecast mean and scale, uncertainty, out-of-distribution score."""

import copy
import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from prosmin import __version__
from prosmin import config as configs
from prosmin.config import Config
from prosmin.data.image_sets import Pictures
from prosmin.data.inputs import Images, open_images, picture_batches
from prosmin.data.sources import Source
from prosmin.data.stream import Batch
from prosmin.data.views import evaluation_view, make_views
from prosmin.encoder.detectors import KnnDistance, fit_knn_distance
from prosmin.encoder.file import (
    CARD,
    REFERENCE,
    WEIGHTS,
    fill,
    read_card,
    read_reference,
    write_encoder,
    write_reference,
)
from prosmin.encoder.foreign import Bare, bare_network, is_foreign, open_foreign
from prosmin.encoder.shipped import is_shipped, shipped_folder, shipped_names
from prosmin.errors import ProsminError
from prosmin.methods import METHODS, build_method, float32_default, seeded
from prosmin.methods.output import Embedding
from prosmin.models.vit import encode

PRECISIONS = ("32-true", "bf16-mixed")
LEAST_REFERENCE = 10  # images: fewer say nothing about what belongs
UNCERTAINTY_VIEWS = 4  # views whose variance stands for the uncertainty of a method without a scale
_STATISTICS_BATCH = 256  # fixed: the statistics of a BatchNorm must not depend on the machine


class Summary(NamedTuple):
    """What is told of an image, without the K numbers of its forecast; on the encoder's device.

    features (N, D); log_scale (N,): mean of ln(scale), -inf where a forecast has no spread, None where a method has no
    scale; view_variance (N,): variance of the forecast's mean between random views, averaged over coordinates.
    """

    features: Tensor
    log_scale: Tensor | None
    view_variance: Tensor | None


class Encoder:
    """A method's trained networks behind one call.

    Images come as uint8 tensors (N, 3, H, W) or (3, H, W), uint8 arrays (N, H, W, 3) or (H, W, 3), Pillow images,
    the bytes of a file, paths, lists of these, a folder, a SPEC such as photos@test, or Images. A text that begins
    like a SPEC is one, every other a path; in a list all are paths. Results have one row per image, on the CPU in
    float32; an unreadable image is an error that names it.
    """

    def __init__(
        self,
        method: nn.Module,
        config: Config,
        *,
        card: dict[str, Any] | None = None,
        fresh: Callable[[], nn.Module] | None = None,
        reference: KnnDistance | None = None,
        other_reference: Path | None = None,
    ) -> None:
        """`fresh` builds the networks with random weights; `other_reference` is a file of another encoder's."""
        self.method = method.eval().requires_grad_(False)
        self.config = config
        self.card = card or {}
        self._batch_size: int | None = None
        self.precision = "32-true"
        self._fresh = fresh or partial(build_method, config)  # no closure: an encoder can be pickled
        self._reference = reference
        self._other_reference = other_reference

    def __repr__(self) -> str:
        backbone = self.method.get_submodule("online.backbone")
        step = self.card.get("step", 0)
        parts = {
            "method": "none of ours" if isinstance(self.method, Bare) else self.config.method.name,
            "backbone": self.config.backbone.name,
            "step": "unknown" if step is None else step,
            "device": self.device,
            "features": backbone.num_features,
        }
        return f"Encoder({', '.join(f'{name}: {value}' for name, value in parts.items())})"

    @property
    def device(self) -> torch.device:
        """Where the networks are."""
        return next(self.method.parameters()).device

    @property
    def batch_size(self) -> int:
        """Images at once; unless it was set, a power of two that suits the size of a view and the device's memory."""
        return self._batch_size or _suitable_batch(3 * self.config.views.global_size**2, self.device)

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
            raise ProsminError(f"The batch size is {size!r}; allowed: a whole number, 1 or more.")
        self._batch_size = int(size)

    def to(self, device: torch.device | str, *, precision: str | None = None) -> "Encoder":
        """Move the networks, and choose their arithmetic: 32-true, or bf16-mixed, which a GPU does far faster."""
        if precision is not None and precision not in PRECISIONS:
            raise ProsminError(f"The precision is {precision!r}; allowed: {', '.join(PRECISIONS)}.")
        self.method.to(_device(device))
        self.precision = precision or self.precision
        return self

    def untrained(self) -> "Encoder":
        """The same networks as they are before training: the baseline this encoder is held against."""
        return Encoder(self._fresh(), self.config, fresh=self._fresh).to(self.device, precision=self.precision)

    def of_target(self) -> "Encoder":
        """An encoder of the target network, the running average of the online one, with the same head behind it."""
        if not hasattr(self.method, "target"):
            raise ProsminError("This encoder has no target network: its weights are not those of a run of prosmin.")
        method = copy.deepcopy(self.method)
        method.get_submodule("online").load_state_dict(method.get_submodule("target").state_dict())
        told = {name: value for name, value in self.card.items() if name != "deviation"}
        told |= {"network": "target", "hash": f"target of {self.card.get('hash')}"}  # one of its own when saved
        other = Encoder(method, self.config, card=told if self.card else None, fresh=self._fresh)
        return other.to(self.device, precision=self.precision)

    @torch.no_grad()
    def __call__(self, images: Images) -> Embedding:
        """Features (N, D), forecast mean (N, K) and scale (N, K)."""
        batches = self._batches(open_images(images))
        return _joined([_received(self._encode(self._evaluation_view(batch))) for batch in batches])

    @torch.no_grad()
    def features(self, images: Images) -> Tensor:
        """Features (N, D) alone: quicker, and without the memory that K numbers an image take."""
        return self._features(open_images(images))

    @torch.no_grad()
    def views(self, images: Images, *, count: int = UNCERTAINTY_VIEWS, seed: int = 0) -> list[Embedding]:
        """Embeddings of `count` random global views of every image, by its place and the seed."""
        if not isinstance(count, int) or count < 1:
            raise ProsminError(f"The count of views is {count!r}; allowed: a whole number, 1 or more.")
        rows = [
            [_received(self._encode(view)) for view in self._random_views(batch, count=count, seed=seed)]
            for batch in self._batches(open_images(images))
        ]
        return [_joined([row[number] for row in rows]) for number in range(count)]

    @torch.no_grad()
    def uncertainty(self, images: Images) -> Tensor:
        """One number per image, larger is less sure: mean log scale; without a scale, the variance between views."""
        given = open_images(images)
        found = [self._encode_summary(batch).log_scale for batch in self._batches(given)]
        scales = [part.cpu() for part in found if part is not None]
        if scales and bool(torch.cat(scales).isfinite().any()):
            return torch.cat(scales)
        return torch.cat(
            [self._view_variance(batch, count=UNCERTAINTY_VIEWS, seed=0).cpu() for batch in self._batches(given)]
        )

    @torch.no_grad()
    def fit_reference(self, images: Images) -> "Encoder":
        """Remember the features of images that belong; of a folder or SPEC a few unreadable ones are left out."""
        features = self._features(open_images(images), max_bad=self.config.data.max_bad)
        if len(features) < LEAST_REFERENCE:
            raise ProsminError(
                f"The reference has {len(features)} readable images; allowed: {LEAST_REFERENCE} or more. "
                "Give fit_reference more images that belong."
            )
        self._reference = fit_knn_distance(features)
        return self

    def ood_score(self, images: Images) -> Tensor:
        """Distance to the k-th nearest reference image, larger is stranger; `fit_reference` comes first.

        Of n reference images k is a thousandth, from 2 to 50. An image that is one of them is its own nearest.
        """
        if self._reference is None:
            other = f", and {self._other_reference} belongs to another encoder" if self._other_reference else ""
            raise ProsminError(
                f"ood_score needs a reference{other}: call encoder.fit_reference(pictures that belong) first."
            )
        here = dataclasses.replace(self._reference, bank=self._reference.bank.to(self.device))
        return here(self.features(images)).cpu()

    def save(self, folder: Path | str) -> Path:
        """Write the encoder, and the reference if one was fitted, for `prosmin.load(folder)`.

        A folder that has these weights already keeps the reference that lies there where none was fitted.
        """
        folder = Path(folder).expanduser()
        untaught = {"step": 0, "steps": 0, "trained": 0, "config": configs.to_tree(self.config)}
        card = write_encoder(folder, self.method, self.card or untaught, replace=False)
        if self._reference is not None:
            write_reference(folder, self._reference, encoder=card["hash"])
        return folder

    @torch.inference_mode()
    def summarise(self, batch: Batch, *, views: int = 0, seed: int = 0) -> Summary:
        """The summary of a batch on the encoder's device; with `views` of 2 or more, the variance between them.

        The random views follow from the images' numbers and the seed, not from the batch they come in.
        """
        summary = self._encode_summary(batch)
        return summary._replace(view_variance=self._view_variance(batch, count=views, seed=seed)) if views else summary

    @torch.inference_mode()
    def batch_features(self, batch: Batch) -> Tensor:
        """Features (n, D) of a batch on the encoder's device; the heads are not run."""
        backbone = self.method.get_submodule("online.backbone")
        with self._arithmetic():
            return encode(backbone, self._evaluation_view(batch)).float()

    def _batches(self, given: Pictures | Source, *, max_bad: float = 0.0) -> Iterator[Batch]:
        return picture_batches(given, size=self.batch_size, device=self.device, max_bad=max_bad)

    def _features(self, given: Pictures | Source, *, max_bad: float = 0.0) -> Tensor:
        return torch.cat([self.batch_features(batch).cpu() for batch in self._batches(given, max_bad=max_bad)])

    def _evaluation_view(self, batch: Batch) -> Tensor:
        return evaluation_view(batch.images, batch.sizes, self.config.views)

    def _random_views(self, batch: Batch, *, count: int, seed: int) -> Iterator[Tensor]:
        """Global views (n, 3, h, h), one after another; they are drawn in pairs."""
        config = dataclasses.replace(self.config.views, local=0)
        positions = batch.index.to(self.device, non_blocking=True)  # a plain copy would wait for all before it
        for first in range(0, count, 2):
            pair = make_views(batch.images, batch.sizes, config, seed=seed, step=first // 2, positions=positions)
            yield from itertools.islice(pair.global_views, count - first)

    def _encode(self, x: Tensor) -> Embedding:
        with self._arithmetic():
            return self.method.encode(x)  # type: ignore[operator]

    def _encode_summary(self, batch: Batch) -> Summary:
        embedding = self._encode(self._evaluation_view(batch))
        log_scale = None if embedding.scale is None else embedding.scale.float().log().mean(1)
        return Summary(embedding.features.float(), log_scale, None)

    def _view_variance(self, batch: Batch, *, count: int, seed: int) -> Tensor:
        means = [self._encode(view).mean.float() for view in self._random_views(batch, count=count, seed=seed)]
        return torch.stack(means).var(0).mean(1)  # (V, n, K) -> (n,)

    def _arithmetic(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16-mixed")


def _device(wanted: torch.device | str) -> torch.device:
    """The device of this name, if the machine and this torch have it."""
    try:
        device = torch.device(wanted)
        torch.empty(0, device=device)
    except torch.OutOfMemoryError:  # it is there, and full
        raise
    except (RuntimeError, AssertionError, TypeError) as error:  # an unknown name, none of the kind, no such number
        there = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        why = str(error).partition("\n")[0].rstrip(".")
        raise ProsminError(
            f"There is no device {str(wanted)!r} here that can be used ({why}); there are: {', '.join(there)}."
        ) from error
    return device


def _received(part: Embedding) -> Embedding:
    """On the CPU in float32, batch by batch: a GPU need not hold the forecasts of all images."""
    scale = None if part.scale is None else part.scale.float().cpu()
    return Embedding(part.features.float().cpu(), part.mean.float().cpu(), scale)


def _joined(parts: list[Embedding]) -> Embedding:
    scales = [part.scale for part in parts if part.scale is not None]
    features, mean = torch.cat([part.features for part in parts]), torch.cat([part.mean for part in parts])
    return Embedding(features, mean, torch.cat(scales) if scales else None)


def _suitable_batch(values: int, device: torch.device) -> int:
    """A power of two for views of so many values.

    A GPU is given a quarter of its memory at 64 floats a value, which leaves room for wide networks and heads; a CPU
    so few that what a layer leaves is still in its caches, and its memory mapped, when the next one reads it.
    """
    if device.type == "cuda":
        room = torch.cuda.get_device_properties(device).total_memory // 4 // (64 * 4 * values)
        return 2 ** (min(1024, max(16, room)).bit_length() - 1)
    return 2 ** (min(256, max(16, 2**19 // values)).bit_length() - 1)


def untrained(config: Config) -> Encoder:
    """The encoder a run starts from: the baseline every trained one is held against."""
    return Encoder(build_method(config), config)


def set_statistics(encoder: Encoder, pictures: Pictures) -> Encoder:
    """Take the running statistics of every BatchNorm from these images, weights untouched.

    A fresh BatchNorm normalises by 0 and 1. Its statistics alone, without any learning, are worth many points of kNN,
    which a comparison with a merely initialised ResNet would count as learned.
    """
    norms = [module for module in encoder.method.modules() if isinstance(module, _BatchNorm)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over all batches
    encoder.method.train()
    for batch in picture_batches(pictures, size=_STATISTICS_BATCH, device=encoder.device):
        encoder.summarise(batch)  # the networks run; nothing of what they give is kept
    encoder.method.eval()
    return encoder


def has_batchnorm(encoder: Encoder) -> bool:
    """Whether the features pass through a BatchNorm."""
    backbone = encoder.method.get_submodule("online.backbone")
    return any(isinstance(module, _BatchNorm) for module in backbone.modules())


def save_encoder(method: nn.Module, config: Config, folder: Path, *, step: int, steps: int, trained: int) -> None:
    """Write encoder.safetensors and its card encoder.json into a run folder.

    `step` is the one the weights are of, `trained` the last one taken, `steps` where the schedules end.
    """
    card = {"step": step, "steps": steps, "trained": trained, "config": configs.to_tree(config)}
    write_encoder(folder, method, card, replace=True)


def load(run: Path | str, *, device: torch.device | str | None = None) -> Encoder:
    """The encoder of a run, or of a folder `Encoder.save` wrote; a shipped one by its name; or timm:NAME[@FILE].

    The path of an encoder.safetensors means the folder it lies in, where its card encoder.json must be too. Without a
    device it goes to the GPU if there is one.
    """
    if not isinstance(run, str | os.PathLike):
        raise ProsminError(
            f"An encoder came as {type(run).__name__}; allowed: the path of a run folder or of one of Encoder.save, "
            "the name of a shipped encoder, or timm:NAME[@FILE]."
        )
    with float32_default:
        encoder = _load(run)
    return encoder.to(("cuda" if torch.cuda.is_available() else "cpu") if device is None else device)


def _load(run: Path | str) -> Encoder:
    if is_foreign(run) or is_shipped(run):
        return _load_named(str(run))
    folder = encoder_folder(run)
    card = read_card(folder)
    if "encoder" in card and not (folder / WEIGHTS).exists():  # the folder keeps the results of an encoder elsewhere
        return _load_measured(folder, card)
    return _load_folder(folder, card)


def encoder_folder(run: Path | str) -> Path:
    """The folder of an encoder of ours that is named by itself or by the encoder.safetensors in it."""
    path = Path(run).expanduser()
    if path.is_dir():
        return path
    if path.is_file() and path.name != WEIGHTS:
        raise ProsminError(
            f"{path} is not a run folder and no {WEIGHTS} with its card {CARD} beside it. "
            f"Weights of others are given as timm:NAME@{path}."
        )
    if not path.is_file():
        names = ", ".join(shipped_names())
        others, these = (f", and none of the shipped encoders: {names}", " one of these,") if names else ("", "")
        raise ProsminError(
            f"{path} is not a run folder{others}. Give{these} the folder that `prosmin pretrain --out` or Encoder.save "
            "wrote, or timm:NAME[@FILE]."
        )
    return path.parent


def _load_folder(folder: Path, card: dict[str, Any]) -> Encoder:
    config, build = _description(card) if "config" in card else _description_of_others(card)
    method = fill(build(), folder, card)
    reference = read_reference(folder, encoder=card["hash"])
    other = folder / REFERENCE if reference is None and (folder / REFERENCE).exists() else None
    fresh = partial(seeded, build, config)
    return Encoder(method, config, card=card, fresh=fresh, reference=reference, other_reference=other)


def _load_named(name: str) -> Encoder:
    """An encoder without a folder of the user's: timm's, or a shipped one. Its card says so under `encoder`."""
    if is_foreign(name):
        parts = open_foreign(name)
        return Encoder(parts.method, parts.config, card=parts.card, fresh=parts.fresh)
    folder = shipped_folder(name)
    card = read_card(folder)
    told = {
        "encoder": name,
        "weights": f"shipped with prosmin {__version__}, step {card['step']}.",
        "backbone": card["config"]["backbone"],
    }
    return _load_folder(folder, card | told)


def _load_measured(folder: Path, card: dict[str, Any]) -> Encoder:
    """The encoder elsewhere that the results of a folder are of; it must still be the same one."""
    name = card["encoder"]
    if not is_foreign(name) and name not in shipped_names():
        raise ProsminError(
            f"{folder} keeps the results of {name}, which this version of prosmin does not ship. "
            "Install the version they were measured with, or measure another encoder into another folder."
        )
    encoder = _load_named(name)
    if encoder.card["hash"] != card["hash"]:
        raise ProsminError(
            f"The weights of {name} are not those that {folder} was measured with. "
            f"Measure them as they are now: `prosmin evaluate {name} --out {folder}`."
        )
    return encoder


def _description(card: dict[str, Any]) -> tuple[Config, Callable[[], nn.Module]]:
    """The configuration of an encoder of ours, and what builds its networks."""
    config = configs.build(card["config"])
    return config, partial(METHODS[config.method.name], config)


def _description_of_others(card: dict[str, Any]) -> tuple[Config, Callable[[], nn.Module]]:
    """The same for a network of timm that `Encoder.save` wrote: its card holds all that builds it."""
    options = dict(card["backbone"])
    name = options.pop("name")
    config = configs.build({"backbone": {"name": name}, "views": card["views"]})
    return config, partial(bare_network, name, options)
