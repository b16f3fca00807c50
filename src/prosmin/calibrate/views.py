"""Features of several views of each image, computed once and kept on disk until the heads are trained."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from prosmin.data.stream import Batch
from prosmin.data.unreadable import CheckedSource, check_readable
from prosmin.data.views import PARAMETERS, evaluation_parameters, typical_parameters
from prosmin.embed.parts import PART, Parts, Process
from prosmin.embed.stream import BATCH, fill, recorded
from prosmin.encoder import Encoder
from prosmin.errors import ProsminError
from prosmin.files import writing
from prosmin.models.vit import encode

NAME = "views-{:05d}.safetensors"


class FeaturesError(ProsminError):
    """Features from which no forecasts can be learned."""


@contextmanager
def removing_useless(parts: Parts) -> Iterator[None]:
    """Remove the parts if nothing can be learned from them: they would make the corrected command fail."""
    try:
        yield
    except FeaturesError:
        for i in range(len(parts)):
            parts.path(i).unlink(missing_ok=True)
        raise


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
    """Write the missing parts: features (n, 2 + views, D), parameters and numbers (n,) of the readable images.

    More than the share `max_bad` of unreadable images, those of all parts together, is an error.
    """
    recall_unreadable(parts, source)
    option = "--max-bad SHARE"
    check_readable(source.lines(), total=len(parts.numbers), max_bad=max_bad, spec=source.spec, option=option)
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
            raise FeaturesError(
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


def recall_unreadable(parts: Parts, source: CheckedSource) -> None:
    """Record the unreadable images of parts that are written; remove a part if one of its images is readable by now."""
    for i in range(len(parts)):
        if parts.path(i).exists():
            (numbers,) = _load(parts.path(i), "numbers")
            left_out = parts.pictures(i)[~torch.isin(parts.pictures(i), numbers)]
            found = [source.image(number) for number in left_out.tolist()]
            if any(image is not None for image in found):
                parts.path(i).unlink()


class ViewPart(NamedTuple):
    """One part: features (n, 2 + V, D), parameters of the views (n, 2 + V, P)."""

    features: Tensor
    parameters: Tensor


def read_views(parts: Parts) -> Iterator[ViewPart]:
    """Each part, mapped into memory: the disk is read where it is used."""
    for i in range(len(parts)):
        yield ViewPart(*_load(parts.path(i), "features", "parameters"))


def _load(path: Path, *names: str) -> list[Tensor]:
    """Some tensors of a part."""
    try:
        with safe_open(path, framework="pt") as opened:
            return [opened.get_tensor(name) for name in names]
    except (OSError, SafetensorError) as error:
        raise ProsminError(f"{path} cannot be read: {error}. Remove it, and give the same command again.") from None
