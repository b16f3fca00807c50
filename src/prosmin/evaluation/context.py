"""What a protocol works on: an encoder, its baselines and the pictures, embedded once and kept."""

import dataclasses
from dataclasses import dataclass, field

import torch
from torch import Tensor

from prosmin.data.pictures import Pictures
from prosmin.data.views import evaluation_view
from prosmin.encoder import Encoder, has_batchnorm, set_statistics
from prosmin.errors import ProsminError
from prosmin.evaluation.cache import FeatureCache, Tensors
from prosmin.evaluation.held_out import held_out_mask
from prosmin.evaluation.options import Options
from prosmin.methods.output import Embedding

TRAINED, UNTRAINED, PIXELS = "trained", "untrained", "raw pixels"
UNTRAINED_SET = "untrained, BatchNorm set"
PIXEL_SIDE = 16  # raw pixels are compared at 16 x 16: 768 numbers, so that their probe is quick


@dataclass(frozen=True)
class Context:
    """The pictures by name ("train", "test", and the out-of-distribution sets) and the encoder under test."""

    encoder: Encoder
    sets: dict[str, Pictures]
    ood: tuple[str, ...] = ()  # names in `sets`
    seed: int = 0
    options: Options = field(default_factory=Options)
    cache: FeatureCache | None = None  # where features outlast the command
    _kept: dict[tuple[str, str], Tensors] = field(default_factory=dict)
    _views: dict[str, list[Embedding]] = field(default_factory=dict)
    _hashes: dict[str, str] = field(default_factory=dict)
    _baselines: dict[str, Encoder] = field(default_factory=dict)

    @property
    def subjects(self) -> tuple[str, ...]:
        """Whose features are judged: the trained encoder first."""
        set_too = (UNTRAINED_SET,) if has_batchnorm(self.encoder) else ()
        return (TRAINED, *set_too, UNTRAINED, PIXELS)

    def features(self, name: str, subject: str = TRAINED) -> Tensor:
        """Features (N, D) of a set."""
        return self._tensors(name, subject)["features"]

    def uncertainty(self, name: str) -> Tensor:
        """The trained encoder's uncertainty about each picture of a set, (N,): Encoder.uncertainty, embedded once."""
        kept = self._tensors(name, TRAINED).get("log_scale")
        return self.encoder.uncertainty(self.sets[name]) if kept is None else kept

    def views(self, name: str) -> list[Embedding]:
        """Embeddings of several random views of a set by the trained encoder."""
        if name not in self._views:
            self._views[name] = self.encoder.views(self.sets[name], seed=self.seed)
        return self._views[name]

    def labels(self, name: str) -> Tensor:
        """Labels (N,) of a set."""
        labels = self.sets[name].labels
        if labels is None:
            raise ProsminError(f"{self.sets[name].spec} has no labels. Give labelled pictures with --data.")
        return labels

    @property
    def held_out(self) -> Tensor:
        """The tenth of train on which everything is chosen, (N,) mask."""
        train = self.sets["train"]
        return held_out_mask(self.labels("train").cpu(), train.keys, train.spec, seed=self.seed)

    @property
    def classes(self) -> int:
        """Number of classes; train and test must agree on their names."""
        train, test = self.sets["train"].classes, self.sets["test"].classes
        if train != test:
            different = sorted(set(train) ^ set(test))[:5]
            raise ProsminError(
                f"{self.sets['train'].spec} and {self.sets['test'].spec} have other classes, "
                f"such as {', '.join(different)}. "
                "Give splits of one set with --data and --test."
            )
        return len(train)

    def _tensors(self, name: str, subject: str) -> Tensors:
        """What is kept of a set's embedding: forecasts have up to a hundred times the size of the features."""
        key = (subject, name)
        if key not in self._kept:
            cache = self.cache if subject != PIXELS else None  # they are read as fast as they are made
            content = self._content(name, subject) if cache else ()
            kept = cache.read(*content) if cache else None
            if kept is None:
                kept = _summary(self._embed(self.sets[name], subject))
                if cache:
                    cache.write(kept, *content)
            self._kept[key] = kept
        return self._kept[key]

    def _content(self, name: str, subject: str) -> tuple[object, ...]:
        """All that decides the features beside the encoder's weights."""
        statistics = self._hash("train") if subject == UNTRAINED_SET else ""
        views = dataclasses.asdict(self.encoder.config.views)
        return (subject, self._hash(name), statistics, views, self.encoder.device.type)

    def _hash(self, name: str) -> str:
        if name not in self._hashes:
            self._hashes[name] = self.sets[name].content_hash()
        return self._hashes[name]

    def _embed(self, pictures: Pictures, subject: str) -> Embedding:
        if subject == PIXELS:
            return _pixels(pictures, self.encoder)
        if subject == TRAINED:
            return self.encoder(pictures)
        if subject not in self._baselines:
            fresh = self.encoder.untrained()
            self._baselines[subject] = set_statistics(fresh, self.sets["train"]) if subject == UNTRAINED_SET else fresh
        return self._baselines[subject](pictures)


def _summary(embedding: Embedding) -> Tensors:
    """Features, and the mean log scale where there is a scale."""
    scale = embedding.scale
    if scale is None or not bool((scale > 0).any()):
        return {"features": embedding.features}
    return {"features": embedding.features, "log_scale": scale.log().mean(1)}


@torch.inference_mode()
def _pixels(pictures: Pictures, encoder: Encoder) -> Embedding:
    """The evaluation view itself, reduced to 16 px, as features: what a trained encoder must beat."""
    parts = []
    for start in range(0, len(pictures), 1024):
        chunk = slice(start, start + 1024)
        x = evaluation_view(pictures.images[chunk], pictures.sizes[chunk], encoder.config.views)
        if x.shape[-1] > PIXEL_SIDE:
            x = torch.nn.functional.interpolate(x, size=PIXEL_SIDE, mode="bilinear", antialias=True)
        parts.append(x.flatten(1))
    features = torch.cat(parts)
    return Embedding(features, features, None)
