"""SPEC `webdataset:PATTERN`: tar files such as `train-{000000..000099}.tar`, `{a,b}.tar` or `*.tar`.

Files of one sample share their name up to the first dot: `0001.jpg` and `0001.cls`. The image is the
member with an image suffix, the label is the number in `.cls`. The shards are indexed once by their headers;
images are then read in any order, so an epoch is shuffled as a whole and not through a buffer.
"""

import glob
import os
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from prosmin.data.sources import splits
from prosmin.data.sources.folder import SUFFIXES
from prosmin.data.sources.kind import SourceKind
from prosmin.data.sources.parquet import LARGEST_LABEL
from prosmin.errors import ProsminError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_LIST = re.compile(r"\{([^{}]*,[^{}]*)\}")


class Place(NamedTuple):
    """Where an image lies."""

    shard: str
    offset: int
    size: int
    name: str


@dataclass(frozen=True)
class WebdatasetSource:
    """Members of tar files, in the order of the shards."""

    spec: str
    places: list[Place]
    labels: "Tensor | None"
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.places)

    def key(self, i: int) -> str:
        """Shard and member."""
        place = self.places[i]
        return _printable(f"{os.path.basename(place.shard)}/{place.name}")

    def read(self, i: int) -> bytes:
        """The member's bytes."""
        place = self.places[i]
        with open(place.shard, "rb") as shard:
            shard.seek(place.offset)
            return shard.read(place.size)


def open_webdataset(rest: str) -> WebdatasetSource:
    """The images of all shards a pattern names."""
    import torch

    if "://" in rest or rest.startswith("pipe:"):
        raise UsageError(f"The data webdataset:{rest} is not on this machine; copy the shards and give their paths.")
    found = [item for shard in files(rest) for item in _index(shard)]
    places = [place for place, _ in found]
    if not places:
        raise UsageError(f"There are no images in the shards of webdataset:{rest}; allowed: members named *.jpg, ...")
    labels = [label for _, label in found if label is not None]
    if not labels:
        return WebdatasetSource(f"webdataset:{rest}", places, None, ())
    if len(labels) < len(places):
        raise ProsminError(
            f"{len(places) - len(labels)} of {len(places)} images in webdataset:{rest} have no .cls file; "
            "allowed: a .cls file for every image, or for none."
        )
    classes = tuple(str(i) for i in range(max(labels) + 1))
    return WebdatasetSource(f"webdataset:{rest}", places, torch.tensor(labels), classes)


def other_split(rest: str, split: str) -> str:
    """The pattern with the name of its split replaced."""
    for pattern in splits.renamed(rest, split):
        # Splits differ in their number of shards.
        for other in (pattern, _RANGE.sub("*", pattern)):
            paths = expand(os.path.expanduser(other))
            if paths and all(os.path.isfile(path) for path in paths):
                return other
    raise UsageError(
        f"The data webdataset:{rest} has no split {split!r}: there are no shards of that name beside it. "
        "Give the other images as a separate SPEC."
    )


def expand(pattern: str) -> list[str]:
    """The paths that a pattern with braces and stars names; without a star they need not exist.

    An existing file of exactly this name, in a folder `[x]` for example, comes first.
    """
    if os.path.isfile(pattern):
        return [pattern]
    if match := _RANGE.search(pattern):
        first, last = match.groups()
        middles = [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    elif match := _LIST.search(pattern):
        middles = match.group(1).split(",")
    else:
        return sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]
    head, tail = pattern[: match.start()], pattern[match.end() :]
    return [path for middle in middles for path in expand(head + middle + tail)]


def files(rest: str) -> list[str]:
    """The paths of its shards."""
    path = Path(rest).expanduser()
    paths = _inside(path) if rest and path.is_dir() else expand(str(path))
    missing = [p for p in paths if not os.path.isfile(p)]
    if not rest or not paths or missing:
        which = f"the shard {missing[0]} does not exist" if missing else "it names no files"
        raise UsageError(
            f"The data webdataset:{rest} cannot be opened: {which}. Write webdataset:name-{{000..009}}.tar."
        )
    return paths


KIND = SourceKind(
    name="webdataset", form="webdataset:PATTERN", open=open_webdataset, other_split=other_split, files=files
)  # fmt: skip


def _inside(folder: Path) -> list[str]:
    """The shards of a folder; only those of `train` where it has several splits."""
    paths = sorted(str(path) for path in folder.glob("*.tar"))
    groups: dict[str, list[str]] = {}
    for path in paths:
        if (name := splits.word(os.path.basename(path))) is not None:
            groups.setdefault(name, []).append(path)
    return splits.train_group(groups) or paths


def _index(shard: str) -> list[tuple[Place, int | None]]:
    """Each image of a shard with its label, from the headers alone."""
    pictures: dict[str, Place] = {}
    labels: dict[str, int] = {}
    dotted: dict[str, set[str]] = {}  # a sample's images with a second suffix
    try:
        with tarfile.open(shard, "r:") as archive:
            for member in archive:
                folder, slash, file = member.name.rpartition("/")
                stem, _, suffix = file.partition(".")
                sample = f"{folder}{slash}{stem}"
                if not member.isfile() or not stem or "__MACOSX" in folder.split("/"):
                    continue
                if f".{suffix}".lower().endswith(SUFFIXES):
                    place = Place(shard, member.offset_data, member.size, member.name)
                    if "." not in suffix:  # `0001.jpg`, and not `0001.depth.png` beside it
                        pictures[sample] = place
                    else:
                        pictures.setdefault(sample, place)
                        dotted.setdefault(sample, set()).add(member.name)
                elif suffix == "cls" and (content := archive.extractfile(member)) is not None:
                    labels[sample] = _number(content.read(), shard=shard, name=member.name)
    except (tarfile.TarError, OSError) as error:
        raise ProsminError(
            f"The shard {shard} cannot be read as an uncompressed tar file: {error}. Unpack it if it is compressed "
            "(gzip -d); if it is incomplete, copy it again, or leave it out of the pattern."
        ) from None
    for sample, names in dotted.items():
        if len(names) > 1 and pictures[sample].name in names:
            raise ProsminError(
                f"{len(names)} images of {shard} have the same name {sample!r} up to the first dot, so they count as "
                f"one sample; one of them is {min(names)!r}. Rename them so that the only dot is before the suffix."
            )
    return [(place, labels.get(sample)) for sample, place in pictures.items()]


def _number(text: bytes, *, shard: str, name: str) -> int:
    if not text.strip().isdigit() or int(text) > LARGEST_LABEL:
        raise ProsminError(
            f"The label {_printable(name)} in {shard} is {text[:20]!r}; allowed: the number of the class, "
            f"from 0 to {LARGEST_LABEL:,}."
        )
    return int(text)


def _printable(name: str) -> str:
    """The name with bytes that are not UTF-8 replaced."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
