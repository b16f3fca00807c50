"""The trained encoder a user loads: features, forecast mean and scale, uncertainty, out-of-distribution score."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from prosmin import config as configs
from prosmin.config import Config
from prosmin.data.pictures import Pictures
from prosmin.data.views import evaluation_view, make_views
from prosmin.errors import ProsminError
from prosmin.evaluation.ood import KnnDistance, fit_knn_distance
from prosmin.files import file_hash, write_text, writing
from prosmin.foreign import is_foreign, open_foreign
from prosmin.methods import METHODS, build_method
from prosmin.methods.output import Embedding

_WEIGHTS, _CARD = "encoder.safetensors", "encoder.json"


class Encoder:
    """A method's trained networks behind one call. Pictures come as Pictures or uint8 tensors (N, 3, H, W)."""

    def __init__(
        self,
        method: nn.Module,
        config: Config,
        *,
        card: dict[str, Any] | None = None,
        fresh: Callable[[], nn.Module] | None = None,
    ) -> None:
        self.method = method.eval().requires_grad_(False)
        self.config = config
        self.card = card or {}
        self._fresh = fresh or (lambda: build_method(config))
        self.batch_size = 256
        self._reference: KnnDistance | None = None

    @property
    def device(self) -> torch.device:
        """Where the networks are."""
        return next(self.method.parameters()).device

    def to(self, device: torch.device | str) -> "Encoder":
        """Move the networks."""
        self.method.to(device)
        return self

    def untrained(self) -> "Encoder":
        """The same networks as they are before training: the baseline this encoder is held against."""
        return Encoder(self._fresh(), self.config, fresh=self._fresh).to(self.device)

    @torch.inference_mode()
    def __call__(self, images: Pictures | Tensor) -> Embedding:
        """Features (N, D), forecast mean (N, K) and scale (N, K), on the CPU in float32."""
        return self._embed(images, lambda x, sizes, positions: evaluation_view(x, sizes, self.config.views))

    @torch.inference_mode()
    def views(self, images: Pictures | Tensor, *, count: int = 4, seed: int = 0) -> list[Embedding]:
        """Embeddings of `count` random global views of every picture, by its place and the seed."""

        def view(number: int) -> Embedding:
            def draw(x: Tensor, sizes: Tensor, positions: Tensor) -> Tensor:
                return make_views(x, sizes, config, seed=seed, step=number // 2, positions=positions).global_views[
                    number % 2
                ]

            return self._embed(images, draw)

        config = dataclasses.replace(self.config.views, local=0)
        return [view(number) for number in range(count)]

    def uncertainty(self, images: Pictures | Tensor) -> Tensor:
        """One number a picture, larger is less sure: mean log scale; without a scale, the variance between views."""
        embedding = self(images)
        if embedding.scale is not None and bool((embedding.scale > 0).any()):
            return embedding.scale.log().mean(1)
        means = torch.stack([view.mean for view in self.views(images)])  # (V, N, K)
        return means.var(0).mean(1)

    def fit_reference(self, images: Pictures | Tensor) -> "Encoder":
        """Remember the features of pictures that belong."""
        self._reference = fit_knn_distance(self(images).features)
        return self

    def ood_score(self, images: Pictures | Tensor) -> Tensor:
        """Distance to the k-th nearest reference picture, larger is stranger; `fit_reference` comes first."""
        if self._reference is None:
            raise ProsminError("ood_score needs a reference: call encoder.fit_reference(pictures that belong) first.")
        return self._reference(self(images).features)

    def _embed(self, images: Pictures | Tensor, view: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Embedding:
        pictures, sizes = _as_batch(images)
        parts: list[Embedding] = []
        for start in range(0, len(pictures), self.batch_size):
            chunk = slice(start, start + self.batch_size)
            x = pictures[chunk].to(self.device)
            positions = torch.arange(start, start + len(x), device=self.device)
            parts.append(self.method.encode(view(x, sizes[chunk].to(self.device), positions)))  # type: ignore[operator]
        features = torch.cat([part.features.float().cpu() for part in parts])
        mean = torch.cat([part.mean.float().cpu() for part in parts])
        scales = [part.scale.float().cpu() for part in parts if part.scale is not None]
        return Embedding(features, mean, torch.cat(scales) if scales else None)


def _as_batch(images: Pictures | Tensor) -> tuple[Tensor, Tensor]:
    """uint8 pictures (N, 3, H, W) and their sizes (N, 2)."""
    if isinstance(images, Pictures):
        return images.images, images.sizes
    if images.ndim != 4 or images.shape[1] != 3 or images.dtype != torch.uint8 or len(images) == 0:
        raise ProsminError(
            f"Pictures came as {images.dtype} {tuple(images.shape)}; allowed: uint8 (N, 3, H, W) with N of 1 or more, "
            "such as torchvision.io.decode_image gives."
        )
    return images, torch.tensor(images.shape[2:]).expand(len(images), 2)


def untrained(config: Config) -> Encoder:
    """The encoder a run starts from: the baseline every trained one is held against."""
    return Encoder(build_method(config), config)


def set_statistics(encoder: Encoder, pictures: Pictures) -> Encoder:
    """Take the running statistics of every BatchNorm from these pictures, weights untouched.

    A fresh BatchNorm normalises by 0 and 1. Its statistics alone, without any learning, are worth many points of kNN,
    which a comparison with a merely initialised ResNet would count as learned.
    """
    norms = [module for module in encoder.method.modules() if isinstance(module, _BatchNorm)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over all batches
    encoder.method.train()
    encoder(pictures)
    encoder.method.eval()
    return encoder


def has_batchnorm(encoder: Encoder) -> bool:
    """Whether the features pass through a BatchNorm."""
    backbone = encoder.method.get_submodule("online.backbone")
    return any(isinstance(module, _BatchNorm) for module in backbone.modules())


def save_encoder(method: nn.Module, config: Config, folder: Path, *, step: int, steps: int, trained: int) -> None:
    """Write encoder.safetensors and its card encoder.json; the card comes last and holds the hash.

    `step` is the one the weights are of, `trained` the last one taken, `steps` where the schedules end.
    """
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in method.state_dict().items()}
    with writing(folder / _WEIGHTS) as part:
        save_file(tensors, part)
    card = {
        "format": 1,
        "step": step,
        "steps": steps,
        "trained": trained,
        "hash": file_hash(folder / _WEIGHTS),
        "config": configs.to_tree(config),
    }
    write_text(folder / _CARD, json.dumps(card, indent=1))


def read_card(folder: Path) -> dict[str, Any]:
    """The encoder's card: step, hash and configuration."""
    try:
        return json.loads((folder / _CARD).read_text())
    except FileNotFoundError:
        raise ProsminError(
            f"{folder} holds no encoder.json. `prosmin pretrain --out {folder}` finishes a run and writes it."
        ) from None
    except (OSError, json.JSONDecodeError) as error:
        raise ProsminError(f"{folder / _CARD} cannot be read: {error}.") from None


def load(run: Path | str) -> Encoder:
    """The encoder of a finished run, or one we did not train: timm:NAME[@FILE]."""
    if is_foreign(run):
        return _load_foreign(run)
    folder = Path(run)
    if not folder.is_dir():
        raise ProsminError(
            f"{folder} is not a run folder. Give the folder that `prosmin pretrain --out` wrote, or timm:NAME[@FILE]."
        )
    card = read_card(folder)
    if "encoder" in card:  # the folder keeps the results of an encoder that lies elsewhere
        return _load_foreign(card["encoder"], kept=(folder, card))
    config = configs.build(card["config"])
    try:
        if file_hash(folder / _WEIGHTS) != card["hash"]:
            raise ProsminError(
                f"{folder / _WEIGHTS} does not fit its card {_CARD}: it was changed or cut. Copy both again."
            )
        method = METHODS[config.method.name](config)
        method.load_state_dict(load_file(folder / _WEIGHTS), strict=True)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ProsminError(f"{folder / _WEIGHTS} cannot be loaded: {error}.") from None
    return _placed(Encoder(method, config, card=card))


def _load_foreign(run: Path | str, *, kept: tuple[Path, dict[str, Any]] | None = None) -> Encoder:
    """An encoder of timm; where a folder keeps its card, it must still be the same one."""
    parts = open_foreign(run)
    if kept is not None and kept[1]["hash"] != parts.card["hash"]:
        raise ProsminError(
            f"The weights of {run} are not those that {kept[0]} was measured with. "
            f"Measure them as they are now: `prosmin evaluate {run} --out {kept[0]}`."
        )
    return _placed(Encoder(parts.method, parts.config, card=parts.card, fresh=parts.fresh))


def _placed(encoder: Encoder) -> Encoder:
    """On the GPU, if there is one."""
    return encoder.to("cuda" if torch.cuda.is_available() else "cpu")
