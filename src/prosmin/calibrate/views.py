"""Features of several views of each image, computed once and kept on disk until the heads are trained."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from prosmin.data.stream import Batch
from prosmin.data.unreadable import CheckedSource
from prosmin.data.views import PARAMETERS, evaluation_parameters, typical_parameters
from prosmin.embed.parts import PART, Parts, Process
from prosmin.embed.stream import BATCH, fill, recorded
from prosmin.encoder import Encoder
from prosmin.errors import ProsminError
from prosmin.files import writing
from prosmin.models.vit import encode

NAME = "views-{:05d}.safetensors"


def check_network(encoder: Encoder) -> None:
    """An error, before any image is read, unless the backbone gives one vector per image."""
    size = encoder.config.views.global_size
    with torch.inference_mode():
        found = encoder.method.get_submodule("online.backbone")(torch.zeros(1, 3, size, size, device=encoder.device))
    shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if not isinstance(found, Tensor) or found.ndim != 2:
        raise ProsminError(
            f"{encoder.config.backbone.name} gives {shape} for one image; allowed: one vector, (1, D). "
            "Choose a network with pooled features."
        )


@torch.inference_mode()
def view_features(encoder: Encoder, batch: Batch, *, views: int, seed: int) -> Tensor:
    """The evaluation view, the typical view and random global views: (n, 2 + views, D + P), features and parameters."""
    backbone = encoder.method.get_submodule("online.backbone")
    found = []
    for view, parameters in _every_view(encoder, batch, views=views, seed=seed):
        with encoder._arithmetic():
            features = encode(backbone, view).float()
        found.append(torch.cat([features, parameters.float()], dim=-1))
    return torch.stack(found, dim=1)


def _every_view(encoder: Encoder, batch: Batch, *, views: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Views (n, 3, h, h) and parameters (n, P), made one after the other: together they would not fit into memory."""
    config = encoder.config.views
    yield encoder._evaluation_view(batch), evaluation_parameters(batch.sizes, config)
    yield encoder._typical_view(batch), typical_parameters(batch.sizes, config)
    yield from encoder._random_views(batch, count=views, seed=seed)


def write_views(
    parts: Parts, encoder: Encoder, source: CheckedSource, *, views: int, seed: int, batch: int | None, max_bad: float
) -> None:
    """Write the missing parts: features (n, 2 + views, D), parameters and numbers (n,) of the readable images."""
    on_gpu = encoder.device.type == "cuda"
    size = batch or min(encoder.batch_size, BATCH if on_gpu else PART, PART)
    make = recorded(partial(view_features, encoder, views=views, seed=seed), encoder, size=size)

    def write(path: Path, chosen: Tensor, made: list[Tensor]) -> None:
        good = source.readable(chosen)
        features, parameters = torch.cat([some.cpu() for some in made])[good].tensor_split([-len(PARAMETERS)], dim=-1)
        numbers = chosen[good]
        finite = features.isfinite().flatten(1).all(1)
        if not bool(finite.all()):
            first = source.key(int(numbers[~finite][0]))
            raise ProsminError(
                f"The encoder's features of {first} are not finite (NaN or infinite). Check its weights, and that "
                "--precision is 32-true."
            )
        with writing(path) as part:
            found = {"features": features, "parameters": parameters, "numbers": numbers}
            save_file({name: x.contiguous() for name, x in found.items()}, part)

    fill(
        parts,
        source,
        Process(0, 1, 0),
        device=encoder.device,
        batch=size,
        max_bad=max_bad,
        make=make,
        write=write,
        title="views",
    )


class ViewPart(NamedTuple):
    """One part: features (n, 2 + V, D), parameters of the views (n, 2 + V, P)."""

    features: Tensor
    parameters: Tensor


def read_views(parts: Parts) -> Iterator[ViewPart]:
    """Each part, mapped into memory: the disk is read where it is used."""
    for i in range(len(parts)):
        path = parts.path(i)
        try:
            found = load_file(path)
            yield ViewPart(found["features"], found["parameters"])
        except (OSError, SafetensorError, KeyError) as error:
            raise ProsminError(f"{path} cannot be read: {error}. Remove it, and give the same command again.") from None
