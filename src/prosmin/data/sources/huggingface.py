"""SPEC `hf:NAME[:CONFIG][@SPLIT]`: a data set of the Hugging Face hub, or one saved to a folder.

Needs the package `datasets`, which downloads what is not in its cache. Images are in the column of type
Image, labels in the one of type ClassLabel.
"""

import importlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from prosmin.data.sources import splits
from prosmin.data.sources.kind import SourceKind, resolved
from prosmin.errors import ProsminError, UsageError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class HuggingfaceSource:
    """Rows of one split."""

    spec: str
    rows: Any  # a datasets.Dataset of one column, images left encoded
    column: str
    name: str
    labels: "Tensor | None"
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def key(self, i: int) -> str:
        """Data set and row."""
        return f"{self.name}[{i}]"

    def read(self, i: int) -> bytes:
        """The encoded image of row i."""
        picture = self.rows[i][self.column] or {}
        if picture.get("bytes") is not None:
            return picture["bytes"]
        if picture.get("path"):
            return Path(picture["path"]).read_bytes()
        raise OSError("the row contains no image")


def open_huggingface(rest: str) -> HuggingfaceSource:
    """The images of one split of a Hugging Face data set."""
    datasets = _package()
    name, split = _name(rest)
    with _named_errors(rest):
        found = _load(datasets, name, split)
    features = found.features
    images = [c for c, kind in features.items() if isinstance(kind, datasets.Image)]
    if not images:
        raise ProsminError(f"The data hf:{rest} has no column of type Image; its columns: {', '.join(features)}.")
    column = "image" if "image" in images else images[0]
    label = next((c for c, kind in features.items() if isinstance(kind, datasets.ClassLabel)), None)
    labels = _labels(found[label], label, spec=f"hf:{rest}") if label else None
    return HuggingfaceSource(
        spec=f"hf:{rest}",
        rows=found.select_columns([column]).cast_column(column, datasets.Image(decode=False)),
        column=column,
        name=name,
        labels=labels,
        classes=() if labels is None else tuple(features[label].names),
    )


def other_split(rest: str, split: str) -> str:
    """The rest of another split's SPEC."""
    datasets = _package()
    name, _ = _name(rest)
    with _named_errors(rest):
        return f"{name}@{splits.choose(split, _splits(datasets, name), spec=f'hf:{name}')}"


def _place(rest: str) -> str:
    name, at, split = rest.partition("@")
    return f"{resolved(name)}@{split if at else 'train'}"


KIND = SourceKind(name="hf", form="hf:NAME[@SPLIT]", open=open_huggingface, other_split=other_split, place=_place)


def _labels(column: Iterable[int | None], name: str, *, spec: str) -> "Tensor | None":
    """The labels (N,); None for a split published without labels: every row is -1 or empty."""
    import torch

    values = list(column)
    if values and all(value is None or value == -1 for value in values):
        return None
    labels = [value for value in values if value is not None]
    if len(labels) < len(values):
        what = f"empty in {len(values) - len(labels)} rows of {len(values)}"
    elif negative := [value for value in labels if value < 0]:
        what = f"negative in {len(negative)} rows of {len(values)}, the first {negative[0]}"
    else:
        return torch.tensor(labels, dtype=torch.int64)
    raise ProsminError(
        f"The column {name!r} of the data {spec} is {what}; allowed: numbers from 0 in every row, or no labels at all. "
        "Label these rows, or remove them and save the rest with save_to_disk."
    )


def _package() -> ModuleType:
    try:
        return importlib.import_module("datasets")
    except ImportError:
        raise ProsminError(
            "The package datasets, which data hf:NAME needs, is not installed: pip install 'prosmin[datasets]'"
        ) from None


def _name(rest: str) -> tuple[str, str]:
    """The data set and the split, which may be empty."""
    name, _, split = rest.partition("@")
    if not name:
        raise UsageError("The data 'hf:' names no data set; write hf:NAME or hf:NAME@SPLIT.")
    return name, split


@contextmanager
def _named_errors(rest: str) -> Iterator[None]:
    """Every error of the package, the hub or the network becomes a ProsminError that names the data."""
    try:
        yield
    except ProsminError:
        raise
    except Exception as error:
        raise ProsminError(f"The data hf:{rest} cannot be loaded: {type(error).__name__}: {error}") from None


def _saved(datasets: ModuleType, name: str) -> Any:
    """A data set saved to a folder, or a dictionary of its splits; None if the name is not such a folder."""
    path = Path(name).expanduser()
    saved = any((path / file).is_file() for file in ("dataset_info.json", "dataset_dict.json"))
    return datasets.load_from_disk(str(path)) if saved else None


def _repository(name: str) -> tuple[str, str | None]:
    """Data files in a folder, or a name on the hub and its configuration."""
    path = Path(name).expanduser()
    if path.exists():
        return str(path), None
    repository, _, configuration = name.partition(":")
    return repository, configuration or None


def _splits(datasets: ModuleType, name: str) -> list[str]:
    """The names of the splits; empty where the set has none."""
    saved = _saved(datasets, name)
    if saved is not None:
        return list(saved) if isinstance(saved, dict) else []
    return list(datasets.get_dataset_split_names(*_repository(name)))


def _load(datasets: ModuleType, name: str, split: str) -> Any:
    """One split of a data set; without a name `train`, or the first."""
    saved = _saved(datasets, name)
    names = _splits(datasets, name)
    if split:
        split = splits.choose(split, names, spec=f"hf:{name}")
    elif names:
        split = "train" if "train" in names else names[0]
    if saved is not None:
        return saved[split] if split else saved
    return datasets.load_dataset(*_repository(name), split=split)
