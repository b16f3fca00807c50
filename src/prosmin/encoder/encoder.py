"""The encoder that a user loads: features, forecast mean and scale, uncertainty, out-of-distribution score."""

import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from prosmin import config as configs
from prosmin.config import Config
from prosmin.data.image_sets import Pictures
from prosmin.data.inputs import Images, open_images
from prosmin.data.sources import Source
from prosmin.data.stream import Batch, picture_batches
from prosmin.data.views import draws_of_step, evaluation_view, render, typical_parameters, typical_view, view_parameters
from prosmin.encoder.background import Background, make_background, write_background
from prosmin.encoder.calibrated import Calibrated
from prosmin.encoder.detectors import KnnDistance
from prosmin.encoder.file import write_encoder, write_reference
from prosmin.encoder.foreign import Bare
from prosmin.encoder.known import Known
from prosmin.encoder.neighbourhood import Neighbourhood
from prosmin.encoder.neighbours import pixel_hash
from prosmin.encoder.stored import Match, open_stored
from prosmin.errors import ProsminError
from prosmin.methods import Observes, build_method
from prosmin.methods.output import Embedding
from prosmin.models.condition import condition
from prosmin.models.radius import region_radius
from prosmin.models.vit import encode, has_patches, patch_tokens
from prosmin.scoring import unexplained

PRECISIONS = ("32-true", "bf16-mixed")
UNCERTAINTY_VIEWS = 4  # views whose variance is the uncertainty of a method without a scale


class Summary(NamedTuple):
    """Features and uncertainty of N images without their forecasts; on the encoder's device."""

    features: Tensor  # (N, D)
    log_scale: Tensor | None  # (N,): mean of ln(scale), -inf for a scale of 0; None where a method has no scale
    view_variance: Tensor | None  # (N,): variance of the forecast's mean over random views, mean over coordinates


class Encoder:
    """A method's trained networks behind one call.

    Images are uint8 tensors (N, 3, H, W) or (3, H, W), uint8 arrays (N, H, W, 3) or (H, W, 3), Pillow images,
    the bytes of a file, paths, lists of these, a folder, a SPEC such as photos@test, or Pictures. A string that starts
    like a SPEC is a SPEC, any other a path; in a list all are paths. Results have one row per image, on the CPU in
    float32; an unreadable image is an error that names it.
    """

    def __init__(
        self,
        method: nn.Module,
        config: Config,
        *,
        card: dict[str, Any] | None = None,
        fresh: Callable[[], nn.Module] | None = None,
        background: Background | None = None,
        reference: Neighbourhood | KnnDistance | None = None,
        other_reference: Path | None = None,
    ) -> None:
        """`fresh` builds the networks with random weights; `other_reference` is a reference file of other weights.

        `background` is what was stored with the encoder; a reference of an early version is a KnnDistance. Both are
        then in `known`.
        """
        self.method = method.eval().requires_grad_(False)
        self.config = config
        self.card = card or {}
        self._batch_size: int | None = None
        self.precision = "32-true"
        self._fresh = fresh or partial(build_method, config)  # not a closure, so that an encoder can be pickled
        self.known = Known(background, reference)
        self._other_reference = other_reference

    def __repr__(self) -> str:
        backbone = self.method.get_submodule("online.backbone")
        step = self.card.get("step", 0)
        method = self.config.method.name
        if isinstance(self.method, Bare | Calibrated):
            method = "none of ours" if isinstance(self.method, Bare) else f"calibrated {self.card.get('encoder')}"
        parts = {
            "method": method,
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
        """Images computed at once; by default a power of two that suits the size of a view and the device."""
        return self._batch_size or _suitable_batch(3 * self.config.views.global_size**2, self.device)

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
            raise ProsminError(f"The batch size is {size!r}; allowed: an integer, 1 or more.")
        self._batch_size = int(size)

    def to(self, device: torch.device | str, *, precision: str | None = None) -> "Encoder":
        """Move the networks, and choose their precision: 32-true, or bf16-mixed, which is far faster on a GPU."""
        if precision is not None and precision not in PRECISIONS:
            raise ProsminError(f"The precision is {precision!r}; allowed: {', '.join(PRECISIONS)}.")
        self.method.to(_device(device))
        self.precision = precision or self.precision
        return self

    def untrained(self) -> "Encoder":
        """The same networks as they are before training: a baseline for this encoder."""
        return Encoder(self._fresh(), self.config, fresh=self._fresh).to(self.device, precision=self.precision)

    def of_target(self) -> "Encoder":
        """An encoder of the target network, the moving average of the online one, with the same head."""
        if not hasattr(self.method, "target"):
            raise ProsminError("This encoder has no target network: it is not a run of prosmin.")
        method = copy.deepcopy(self.method)
        method.get_submodule("online").load_state_dict(method.get_submodule("target").state_dict())
        card = {name: value for name, value in self.card.items() if name != "deviation"}
        card |= {"network": "target", "hash": f"target of {self.card.get('hash')}"}  # replaced when it is saved
        other = Encoder(method, self.config, card=card if self.card else None, fresh=self._fresh)
        return other.to(self.device, precision=self.precision)

    @torch.no_grad()
    def __call__(self, images: Images) -> Embedding:
        """Features (N, D), forecast mean (N, K) and scale (N, K)."""
        batches = self._batches(open_images(images))
        return _joined([_received(self._encode(self._evaluation_view(batch))) for batch in batches])

    @torch.no_grad()
    def features(self, images: Images) -> Tensor:
        """Only the features (N, D): faster, and without the memory of the forecasts."""
        return self._features(open_images(images))

    @torch.no_grad()
    def patches(self, images: Images) -> Tensor:
        """Features of each patch of a ViT (N, h, w, D): the last block's tokens without class and register tokens."""
        if not self.has_patches:
            raise ProsminError(
                f"patches needs a ViT, and the backbone of this encoder is {self.config.backbone.name}. "
                "encoder.features works for every encoder."
            )
        return torch.cat([self.batch_patches(batch).cpu() for batch in self._batches(open_images(images))])

    @property
    def has_patches(self) -> bool:
        """Whether the backbone is a ViT."""
        return has_patches(self.method.get_submodule("online.backbone"))

    @torch.no_grad()
    def views(self, images: Images, *, count: int = UNCERTAINTY_VIEWS, seed: int = 0) -> list[Embedding]:
        """Embeddings of `count` random global views of every image; they depend on its position and the seed."""
        if not isinstance(count, int) or count < 1:
            raise ProsminError(f"The count of views is {count!r}; allowed: an integer, 1 or more.")
        rows = [
            [
                _received(embedding)
                for embedding in self._encode_views(self._random_views(batch, count=count, seed=seed), batch.sizes)
            ]
            for batch in self._batches(open_images(images))
        ]
        return [_joined([row[number] for row in rows]) for number in range(count)]

    @property
    def is_conditional(self) -> bool:
        """Whether its forecasts depend on which view is forecast."""
        return getattr(self.method, "is_conditional", False)

    @property
    def background(self) -> Background:
        """What images in general look like to this encoder; computed from the package's photographs if not stored."""
        if self.known.background is None:
            self.known.background = make_background(self.features, None)
        return self.known.background

    @property
    def scores(self) -> dict[str, str]:
        """What `uncertainty` and `ood_score` of this encoder are."""
        has_scale = isinstance(self.method, Calibrated) or self._learned_scale
        forecast = "mean log scale of the forecast" if has_scale else "variance between random views"
        return {"uncertainty": forecast} | self.known.scores

    @property
    def _learned_scale(self) -> bool:
        config = self.config
        return config.method.name == "prosmin" and config.heads.scale == "learned" and config.loss.score_weight > 0

    @torch.no_grad()
    def uncertainty(self, images: Images) -> Tensor:
        """One number per image, larger is less certain: how different the nearest known images are, and how far away.

        In standard deviations of the known images, whose mean is 0; images far from all of them are above all others.
        Known are the images of the reference, or some training images that the encoder carries; none is its own
        neighbour. Without either it is `forecast_uncertainty`. `scores` says which it is.
        """
        if self.known.images is None:
            return self.forecast_uncertainty(images)
        features, contents = self._features_and_contents(open_images(images))
        return self.known.uncertainty(features.to(self.device), contents.to(self.device)).cpu()

    @torch.no_grad()
    def forecast_uncertainty(self, images: Images) -> Tensor:
        """What the forecast alone says, larger is less certain: mean log scale; without it, variance over views.

        The views have the same places and colours for all images, so that they can be compared.
        """
        given = open_images(images)
        found = [self._encode_summary(batch).log_scale for batch in self._batches(given)]
        scales = [part.cpu() for part in found if part is not None]
        if scales and bool(torch.cat(scales).isfinite().any()):
            return torch.cat(scales)
        return torch.cat([self._same_views_variance(batch).cpu() for batch in self._batches(given)])

    @torch.no_grad()
    def unexplained(self, images: Images) -> Tensor:
        """One minus the skill that each forecast expects of itself: 0 certain, 1 no better than the average image.

        Only where the average image's forecast is N(0, I): of a calibrated encoder, and with `target.whitening: whiten`
        (docs/scoring.md). Forecasts that know which view they forecast are of the typical view here; the unit is that
        of random views.
        """
        whitened = self._learned_scale and self.config.target.whitening == "whiten"
        if not isinstance(self.method, Calibrated) and not whitened:
            raise ProsminError(
                "unexplained needs an encoder of `prosmin calibrate`, or one that forecasts whitened targets with a "
                "scale (target.whitening whiten, heads.scale learned, loss.score_weight above 0), which "
                f"this {self.config.method.name} encoder does not. encoder.uncertainty works for every encoder."
            )
        batches = self._batches(open_images(images))
        scales = [self._encode(self._evaluation_view(batch)).scale for batch in batches]
        return torch.cat([unexplained(scale).float().cpu() for scale in scales if scale is not None])

    @torch.no_grad()
    def observe(self, images: Images) -> Tensor:
        """What a forecast is compared with: the embedding of the typical view, in the coordinates of mean (N, K).

        Nine in ten of the coordinates should be within 1.645 scales of the mean. The typical view is the middle of the
        image, without changes of colour.
        """
        if not isinstance(self.method, Observes):
            raise ProsminError(
                "observe needs an encoder that forecasts an embedding: one of `prosmin calibrate`, or one that was "
                "trained with method.name prosmin, which this one was not. encoder.features works for every encoder."
            )
        batches = self._batches(open_images(images))
        return torch.cat([self._observe(self._typical_view(batch)).float().cpu() for batch in batches])

    @torch.no_grad()
    def joint_radius(self, images: Images, *, level: float = 0.9) -> Tensor:
        """The radius of the region that contains the embedding of another view with probability `level`: (N,).

        That is where the root mean square of (embedding - mean) / scale is at most this (docs/scoring.md). The other
        view is a random one, or the typical view if forecasts know which view they forecast.
        """
        radius = getattr(self.method, "typical_radius", getattr(self.method, "radius", None))
        if radius is None:
            raise ProsminError(
                "joint_radius needs an encoder of `prosmin calibrate`, or one that was trained with heads.radius true, "
                "heads.scale learned and loss.score_weight above 0, which this one was not. mean and scale of "
                "encoder(images), if it has them, give an interval for each coordinate."
            )
        if not isinstance(level, float) or not 0.0 < level < 1.0:
            raise ProsminError(f"The level is {level!r}; allowed: a number between 0 and 1, such as 0.9.")
        found = []
        for batch in self._batches(open_images(images)):
            embedding = self._encode(self._evaluation_view(batch))
            centre, spread = radius(embedding.mean, embedding.scale)
            found.append(region_radius(centre, spread, level).float().cpu())
        return torch.cat(found)

    @torch.no_grad()
    def fit_reference(self, images: Images) -> "Encoder":
        """Store the features of images that belong; of a folder or SPEC a few unreadable ones are left out."""
        features, contents = self._features_and_contents(open_images(images), max_bad=self.config.data.max_bad)
        self.known.fit(features, contents, space=self.background.space)
        return self

    @torch.no_grad()
    def ood_score(self, images: Images) -> Tensor:
        """Mean distance to the nearest reference images, larger is more OOD; call `fit_reference` first.

        Features are half-whitened against the encoder's background (docs/use.md). The 10 nearest images count, of a
        small reference a third of it. An image of the reference, recognised by its pixels, is not its own neighbour;
        a reference saved by an early version has no pixels to compare.
        """
        if self.known.reference is None:
            other = f", and {self._other_reference} belongs to another encoder" if self._other_reference else ""
            raise ProsminError(
                f"ood_score needs a reference{other}: call encoder.fit_reference(images that belong) first."
            )
        features, contents = self._features_and_contents(open_images(images))
        return self.known.ood_score(features.to(self.device), contents.to(self.device)).cpu()

    def search(self, image: Images, k: int = 24, *, within: Path | str) -> list[Match]:
        """The k images most similar to one, nearest first: in a folder of `prosmin inspect` or a file of `embed`.

        An image that is in the file itself is found too, at a distance of about 0.
        """
        stored = open_stored(within)
        stored.check_encoder(self.card.get("hash"))
        features = self.features(image)
        if len(features) != 1:
            raise ProsminError(f"search was given {len(features)} images; allowed: 1. Call it once per image.")
        return stored.search(features, k)

    def save(self, folder: Path | str) -> Path:
        """Write the encoder with its background, and the reference if one was fitted, for `prosmin.load(folder)`.

        If none was fitted and the folder already has these weights, the reference in it stays.
        """
        folder = Path(folder).expanduser()
        untrained = {"step": 0, "steps": 0, "trained": 0, "config": configs.to_tree(self.config)}
        card = write_encoder(folder, self.method, self.card or untrained, replace=False)
        if self.known.background is not None:
            write_background(folder, self.known.background, encoder=card["hash"])
        if self.known.reference is not None:
            write_reference(folder, self.known.reference, encoder=card["hash"])
        return folder

    @torch.inference_mode()
    def summarise(self, batch: Batch, *, views: int = 0, seed: int = 0) -> Summary:
        """The summary of a batch on the encoder's device; with `views` of 2 or more, the variance over them.

        The random views depend on the images' numbers and the seed, not on the batch.
        """
        summary = self._encode_summary(batch)
        return summary._replace(view_variance=self._view_variance(batch, count=views, seed=seed)) if views else summary

    @torch.inference_mode()
    def batch_features(self, batch: Batch) -> Tensor:
        """Features (n, D) of a batch on the encoder's device; the heads are not run."""
        backbone = self.method.get_submodule("online.backbone")
        with self._arithmetic():
            return encode(backbone, self._evaluation_view(batch)).float()

    @torch.inference_mode()
    def batch_patches(self, batch: Batch) -> Tensor:
        """Patch features (n, h, w, D) of a batch on the encoder's device; only of a ViT."""
        with self._arithmetic():
            return patch_tokens(self.method.get_submodule("online.backbone"), self._evaluation_view(batch)).float()

    def _batches(self, given: Pictures | Source, *, max_bad: float = 0.0) -> Iterator[Batch]:
        return picture_batches(given, size=self.batch_size, device=self.device, max_bad=max_bad)

    def _features(self, given: Pictures | Source, *, max_bad: float = 0.0) -> Tensor:
        return torch.cat([self.batch_features(batch).cpu() for batch in self._batches(given, max_bad=max_bad)])

    def _features_and_contents(self, given: Pictures | Source, *, max_bad: float = 0.0) -> tuple[Tensor, Tensor]:
        """Features (N, D), and a hash of each image's pixels (N,), both on the CPU."""
        batches = self._batches(given, max_bad=max_bad)
        rows = [(self.batch_features(batch).cpu(), pixel_hash(batch.images, batch.sizes).cpu()) for batch in batches]
        features, contents = zip(*rows, strict=True)
        return torch.cat(features), torch.cat(contents)

    def _evaluation_view(self, batch: Batch) -> Tensor:
        return evaluation_view(batch.images, batch.sizes, self.config.views)

    def _typical_view(self, batch: Batch) -> Tensor:
        return typical_view(batch.images, batch.sizes, self.config.views)

    def _random_views(self, batch: Batch, *, count: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Global views (n, 3, h, h) and their parameters (n, P), one after the other; they are drawn in pairs."""
        config = dataclasses.replace(self.config.views, local=0)
        positions = batch.index.to(self.device, non_blocking=True)  # a plain copy would wait for all work in the queue
        for first in range(0, count, 2):
            draws = draws_of_step(config, seed=seed, step=first // 2, positions=positions)
            pair = render(batch.images, batch.sizes, config, draws)
            parameters = view_parameters(batch.sizes, config, draws)
            yield from itertools.islice(zip(pair.global_views, parameters, strict=True), count - first)

    def _encode_views(self, views: Iterable[tuple[Tensor, Tensor]], sizes: Tensor) -> Iterator[Embedding]:
        """What each of some views with their parameters forecasts of the typical view."""
        typical = typical_parameters(sizes, self.config.views)
        for view, parameters in views:
            yield self._encode(view, given=parameters, target=typical)

    def _encode(self, x: Tensor, *, given: Tensor | None = None, target: Tensor | None = None) -> Embedding:
        """Views (n, 3, h, h) with parameters `given` (n, P), and the parameters of those that they forecast.

        By default evaluation views, which forecast the typical view. Most methods forecast all views alike.
        """
        with self._arithmetic():
            if given is not None and target is not None and self.is_conditional:
                return self.method.encode(x, condition(given, target))  # type: ignore[operator]
            return self.method.encode(x)  # type: ignore[operator]

    def _observe(self, x: Tensor) -> Tensor:
        with self._arithmetic():
            return self.method.observe(x)  # type: ignore[operator]

    def _encode_summary(self, batch: Batch) -> Summary:
        embedding = self._encode(self._evaluation_view(batch))
        log_scale = None if embedding.scale is None else embedding.scale.float().log().mean(1)
        return Summary(embedding.features.float(), log_scale, None)

    def _same_views_variance(self, batch: Batch) -> Tensor:
        """The variance over the views that a first image has, for every image of a batch: (n,)."""
        first = batch._replace(index=torch.zeros_like(batch.index))
        return self._view_variance(first, count=UNCERTAINTY_VIEWS, seed=0)

    def _view_variance(self, batch: Batch, *, count: int, seed: int) -> Tensor:
        views = self._random_views(batch, count=count, seed=seed)
        means = [found.mean.float() for found in self._encode_views(views, batch.sizes)]
        return torch.stack(means).var(0).mean(1)  # (V, n, K) -> (n,)

    def _arithmetic(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16-mixed")


def _device(name: torch.device | str) -> torch.device:
    """The device of this name, if the machine and this torch have it."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except torch.OutOfMemoryError:  # the device exists and is full
        raise
    except (RuntimeError, AssertionError, TypeError) as error:  # an unknown name, or no such device
        usable = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        why = str(error).partition("\n")[0].rstrip(".")
        raise ProsminError(
            f"The device {str(name)!r} cannot be used here ({why}); allowed: {', '.join(usable)}."
        ) from error
    return device


def _received(part: Embedding) -> Embedding:
    """On the CPU in float32, batch by batch: the forecasts of all images need not fit a GPU."""
    scale = None if part.scale is None else part.scale.float().cpu()
    return Embedding(part.features.float().cpu(), part.mean.float().cpu(), scale)


def _joined(parts: list[Embedding]) -> Embedding:
    scales = [part.scale for part in parts if part.scale is not None]
    features, mean = torch.cat([part.features for part in parts]), torch.cat([part.mean for part in parts])
    return Embedding(features, mean, torch.cat(scales) if scales else None)


def _suitable_batch(values: int, device: torch.device) -> int:
    """A power of two for views of so many values.

    On a GPU a quarter of its memory at 64 floats per value, which leaves room for wide networks and heads; on a CPU so
    few that the output of a layer is still in the caches when the next layer reads it.
    """
    if device.type == "cuda":
        room = torch.cuda.get_device_properties(device).total_memory // 4 // (64 * 4 * values)
        return 2 ** (min(1024, max(16, room)).bit_length() - 1)
    return 2 ** (min(256, max(16, 2**19 // values)).bit_length() - 1)


def untrained(config: Config) -> Encoder:
    """The encoder a run starts from, before training."""
    return Encoder(build_method(config), config)
