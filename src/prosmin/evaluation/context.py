"""The input of a protocol: an encoder, its baselines and the images, embedded once and cached."""

import dataclasses
import hashlib
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from prosmin.data.image_sets import MAX_BAD, Pictures, PictureSet, Streamed, in_memory, report_unread
from prosmin.data.stream import Batch
from prosmin.data.subsets import groups_of, held_out_mask
from prosmin.data.views import evaluation_view
from prosmin.encoder import Encoder, Summary, has_batchnorm, set_statistics
from prosmin.encoder.file import tensors_hash
from prosmin.errors import ProsminError
from prosmin.evaluation.batches import set_batches
from prosmin.evaluation.forecasts import view_scores, view_variance
from prosmin.evaluation.options import Options
from prosmin.evaluation.probes.linear import LinearProbe, linear_probe
from prosmin.evaluation.sets import check_classes
from prosmin.files import writing
from prosmin.randomness import generator

_COPIES = 16  # room for this many copies of the features: a probe needs a few in float64


def place(features: Tensor, device: torch.device) -> Tensor:
    """Features (N, D) or images on the GPU if it has room to work on them, else where they are."""
    if device.type != "cuda":
        return features
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    room = torch.cuda.mem_get_info(device)[0] + unused
    return features.to(device) if _COPIES * features.nbytes <= room else features


def sample(pictures: PictureSet, count: int, *, seed: int, purpose: str) -> Pictures:
    """At most `count` of the images, in their order, drawn by the seed and the purpose."""
    if len(pictures) <= count:
        return in_memory(pictures)
    order = torch.randperm(len(pictures), generator=generator(seed, 0, purpose))
    return in_memory(pictures.subset(order[:count].sort().values))


Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class FeatureCache:
    """The features of one encoder in one folder; those of another encoder are removed."""

    folder: Path
    encoder: str  # the hash of its weights
    _failures: list[str] = field(default_factory=list)  # nothing is written after the first

    def read(self, *content: object) -> Tensors | None:
        """The tensors stored for this content; None if there are none, or if they are damaged."""
        path = self._path(content)
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                whole = (file.metadata() or {}).get("hash") == tensors_hash(tensors)
        except (OSError, SafetensorError, ValueError):
            return None
        return tensors if whole else None

    def write(self, tensors: Tensors, *content: object) -> None:
        """Store tensors for this content; if that fails, print a warning."""
        if self._failures:
            return
        try:
            self._write(tensors, content)
        except (OSError, ProsminError) as error:
            self._failures.append(str(error))
            print(f"warning: features cannot be cached for the next command: {error}", file=sys.stderr)

    def _write(self, tensors: Tensors, content: tuple[object, ...]) -> None:
        for path in self.folder.glob("*.safetensors"):
            if not path.name.startswith(self._prefix):
                path.unlink(missing_ok=True)
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
        with writing(self._path(content)) as part:
            save_file(tensors, part, metadata={"hash": tensors_hash(tensors)})

    @property
    def _prefix(self) -> str:
        return f"{self.encoder[:16]}-"

    def _path(self, content: tuple[object, ...]) -> Path:
        text = json.dumps([self.encoder, *content], sort_keys=True)
        name = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
        return self.folder / f"{self._prefix}{name}.safetensors"


TRAINED, UNTRAINED, PIXELS = "trained", "untrained", "raw pixels"
UNTRAINED_SET = "untrained, BatchNorm set"
PIXEL_SIDE = 16  # raw pixels are compared at 16 x 16, 768 numbers, so that their probe is quick
STATISTICS = 2048  # images of a streamed set for the BatchNorm statistics of the untrained network


@dataclass(frozen=True)
class Context:
    """The images by name ("train", "test", and the out-of-distribution sets) and the encoder under test."""

    encoder: Encoder
    sets: dict[str, PictureSet]
    ood: tuple[str, ...] = ()  # names in `sets`
    own_tenth: bool = False  # test is a tenth of the images and train is the rest
    seed: int = 0
    options: Options = field(default_factory=Options)
    max_bad: float = MAX_BAD  # share of images that may be unreadable
    cache: FeatureCache | None = None  # features for the next command
    _kept: dict[tuple[str, str], Tensors] = field(default_factory=dict)
    _view_scores: dict[str, Tensors] = field(default_factory=dict)
    _view_variances: dict[str, Tensor] = field(default_factory=dict)
    _hashes: dict[str, str] = field(default_factory=dict)
    _baselines: dict[str, Encoder] = field(default_factory=dict)
    _probes: dict[str, LinearProbe] = field(default_factory=dict)

    @property
    def subjects(self) -> tuple[str, ...]:
        """Whose features are measured: the trained encoder first."""
        if self.options.baselines == "none":
            return (TRAINED,)
        calibrated = (UNTRAINED_SET,) if has_batchnorm(self.encoder) else ()
        return (TRAINED, *calibrated, UNTRAINED, PIXELS)

    def settle(self) -> None:
        """Embed the streamed sets and drop the images that turn out unreadable."""
        for name, pictures in self.sets.items():
            if isinstance(pictures, Streamed):
                readable = self._tensors(name, TRAINED)["numbers"]
                report_unread(pictures, readable)
                self.sets[name] = pictures.subset(readable)

    def features(self, name: str, subject: str = TRAINED) -> Tensor:
        """Features (N, D) of a set, in main memory."""
        return self._tensors(name, subject)["features"]

    def placed(self, name: str, subject: str = TRAINED) -> Tensor:
        """The same features on the encoder's device, if it has room."""
        return place(self.features(name, subject), self.encoder.device)

    def probe(self, subject: str = TRAINED) -> LinearProbe:
        """The linear probe on a subject's features of train, chosen on the held-out tenth; fitted once."""
        if subject not in self._probes:
            features, labels = self.placed("train", subject), self.labels("train")
            self._probes[subject] = linear_probe(
                features, labels, classes=self.classes, seed=self.seed, held_out=self.held_out
            )
        return self._probes[subject]

    @property
    def has_scale(self) -> bool:
        """Whether the trained encoder's forecasts have a scale."""
        return "log_scale" in self._tensors("test", TRAINED)

    def uncertainty(self, name: str) -> Tensor:
        """The trained encoder's uncertainty about each image of a set, (N,): Encoder.uncertainty, embedded once."""
        if (known := self.encoder.known).images is not None:
            return known.uncertainty(self.placed(name)).cpu()
        if self.has_scale:
            return self.log_scale(name)
        if name not in self._view_variances:
            self._view_variances[name] = view_variance(self.encoder, self.sets[name])
        return self._view_variances[name]

    def log_scale(self, name: str) -> Tensor:
        """The mean log scale of the forecast of each image of a set, (N,)."""
        return self._tensors(name, TRAINED)["log_scale"]

    def view_scores(self, name: str) -> Tensors:
        """Scores of each image from several random views, by the trained encoder, (N,) each."""
        if name not in self._view_scores:
            self._view_scores[name] = view_scores(self.encoder, self.sets[name], seed=self.seed)
        return self._view_scores[name]

    def labels(self, name: str) -> Tensor:
        """Labels (N,) of a set."""
        labels = self.sets[name].labels
        if labels is None:
            raise ProsminError(f"{self.sets[name].spec} has no labels. Give labelled images with --data.")
        return labels

    def groups(self, name: str) -> Tensor | None:
        """The group of overlapping images that each image belongs to, (N,); None if no images overlap."""
        return groups_of(self.sets[name].keys, self.sets[name].spec)

    @property
    def unlabelled(self) -> str | None:
        """Why labels cannot be used; None if they can.

        A tenth of images without splits is not a test set, even if it has labels.
        """
        for part in ("train", "test"):
            if self.sets[part].labels is None:
                return f"{self.sets[part].spec} has no labels"
        return f"{self.sets['test'].spec} has no test split" if self.own_tenth else None

    @property
    def held_out(self) -> Tensor:
        """The tenth of train on which choices are made, balanced over the classes if labels are used, (N,) mask."""
        train = self.sets["train"]
        # Folders that are not classes may contain one image each, of which none would be held out.
        labels = torch.zeros(len(train), dtype=torch.int64) if self.unlabelled else self.labels("train").cpu()
        return held_out_mask(labels, train.keys, train.spec, seed=self.seed)

    @property
    def classes(self) -> int:
        """Number of classes; train and test must agree on their names."""
        train, test = self.sets["train"], self.sets["test"]
        advice = ". Give splits of one set with --data and --test."
        return len(check_classes(train.classes, test.classes, specs=(train.spec, test.spec), advice=advice))

    def _tensors(self, name: str, subject: str) -> Tensors:
        """The features and log scales of a set, from the cache if they are there."""
        key = (subject, name)
        if key not in self._kept:
            cache = self.cache if subject != PIXELS else None  # pixels are computed as fast as they are read
            content = self._content(name, subject) if cache else ()
            kept = cache.read(*content) if cache else None
            if kept is None:
                kept = self._embed(name, subject)
                if cache:
                    cache.write(kept, *content)
            self._kept[key] = kept
        return self._kept[key]

    def _content(self, name: str, subject: str) -> tuple[object, ...]:
        """All that the features depend on besides the encoder's weights."""
        statistics = self._hash("train") if subject == UNTRAINED_SET else ""
        views = dataclasses.asdict(self.encoder.config.views)
        arithmetic = (self.encoder.device.type, self.encoder.precision, torch.get_float32_matmul_precision())
        return (subject, self._hash(name), statistics, views, *arithmetic)

    def _hash(self, name: str) -> str:
        if name not in self._hashes:
            self._hashes[name] = self.sets[name].content_hash()
        return self._hashes[name]

    @torch.inference_mode()
    def _embed(self, name: str, subject: str) -> Tensors:
        """Embed a set batch by batch. Forecasts, up to a hundred times as large as features, are not stored."""
        pictures, encoder = self.sets[name], self._subject(subject)
        index, features, scales = [], [], []
        for batch in set_batches(pictures, encoder, title=f"{subject}: {name}"):
            summary = _pixels(batch, encoder) if subject == PIXELS else encoder.summarise(batch)
            index.append(batch.index)
            features.append(summary.features.cpu())
            scales += [] if summary.log_scale is None else [summary.log_scale.cpu()]
        kept = {"features": torch.cat(features)}
        if scales and bool(torch.cat(scales).isfinite().any()):
            kept["log_scale"] = torch.cat(scales)
        return kept | {"numbers": torch.cat(index)} if isinstance(pictures, Streamed) else kept

    def _subject(self, subject: str) -> Encoder:
        """The encoder of a subject; that of a baseline is built once."""
        if subject in (TRAINED, PIXELS):
            return self.encoder
        if subject not in self._baselines:
            fresh = self.encoder.untrained()
            set_too = subject == UNTRAINED_SET
            self._baselines[subject] = set_statistics(fresh, self._statistics_images()) if set_too else fresh
        return self._baselines[subject]

    def _statistics_images(self) -> Pictures:
        """Training images for the BatchNorm statistics: all if they are in memory, else a sample."""
        train = self.sets["train"]
        return train if isinstance(train, Pictures) else sample(train, STATISTICS, seed=self.seed, purpose="statistics")


def _pixels(batch: Batch, encoder: Encoder) -> Summary:
    """The evaluation view, reduced to 16 px, as features: the baseline that a trained encoder must beat."""
    x = evaluation_view(batch.images, batch.sizes, encoder.config.views)
    if x.shape[-1] > PIXEL_SIDE:
        x = torch.nn.functional.interpolate(x, size=PIXEL_SIDE, mode="bilinear", antialias=True)
    return Summary(x.flatten(1), None, None)
