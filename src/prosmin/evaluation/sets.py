"""Which images an evaluation reads. Without splits, a fixed tenth of them takes the place of test."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prosmin.data.sources import open_source, place_of, split_spec
from prosmin.errors import ProsminError, UsageError


def common_classes(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...] | None:
    """The names of the classes of two splits that count them alike; None where they do not.

    A split that has no image of a class may know it by its number alone, or not at all where it is the last.
    """
    names = []
    for number in range(max(len(first), len(second))):
        known = {split[number] for split in (first, second) if number < len(split)} - {str(number)}
        if len(known) > 1:
            return None
        names.append(known.pop() if known else str(number))
    # Names that are numbers: a class that is missing in the middle has moved the others, who look like their places.
    return tuple(names) if len(set(names)) == len(names) else None


def check_classes(
    first: Sequence[str], second: Sequence[str], *, specs: tuple[str, str], advice: str
) -> tuple[str, ...]:
    """The common classes; an error that names some of the others, and what to do, where there are others."""
    common = common_classes(first, second)
    if common is None:
        different = sorted(set(first) ^ set(second))[:5]
        raise ProsminError(
            f"{specs[0]} and {specs[1]} have other classes, such as {', '.join(different) or 'their order'}{advice}"
        )
    return common


UNLABELLED = "without_labels"
"""The setting of a result that says why nothing in it was judged by labels."""
LEAST, MOST = 10, 2000  # images of a tenth, and the least that must remain beside it


@dataclass(frozen=True, kw_only=True)
class NamedSets:
    """The SPECs by name: train, test, then the out-of-distribution sets."""

    specs: dict[str, str]
    own_tenth: bool = False  # test is a tenth of the images that train names, train the rest
    learned: bool = False  # the encoder was trained on the images that train names

    @property
    def ood(self) -> tuple[str, ...]:
        """The names of the out-of-distribution sets."""
        return tuple(self.specs)[2:]

    @property
    def data(self) -> dict[str, str]:
        """The images as a result names them: a tenth of a set is not the set."""
        return self.specs | ({"test": tenth_of(self.specs["train"])} if self.own_tenth else {})

    @property
    def note(self) -> str | None:
        """What must be known about the test images before a number is believed; None where they are a split."""
        train = self.specs["train"]
        if self.own_tenth:
            seen = "; the encoder has learned from these images too, so they are no unseen test"
            return (
                f"{train} has no test split: a tenth of it ({LEAST} to {MOST} images, fixed by their names) takes "
                f"its place{seen if self.learned else ''}"
            )
        if same_pictures(train, self.specs["test"]):
            return f"--data and --test both name {train}: what is measured is no test, every image is found in train"
        return None

    @property
    def arguments(self) -> list[str]:
        """The same images on a command line."""
        return data_arguments(self.data) + (["--ood", ",".join(self.ood)] if self.ood else [])


def named_sets(data: str, test: str | None, ood: Sequence[str] | None, *, learned_from: str) -> NamedSets:
    """The sets that --data, --test and --ood name; without --test, splits of --data or else a tenth of it."""
    if ood is None and data.partition("@")[0] == "photos":
        ood = ["photos@ood"]
    outside = {spec: spec for spec in ood or ()}
    if test is not None:
        return NamedSets(specs={"train": data, "test": test} | outside)
    try:
        found = {part: split_spec(data, part) for part in ("train", "test")}
    except UsageError:  # a SPEC that names nothing at all is refused where it is opened, by a better sentence
        return NamedSets(
            specs={"train": data, "test": data} | outside, own_tenth=True, learned=same_pictures(data, learned_from)
        )
    if data not in found.values() and "@" in data:
        open_source(data)  # a split that there is not is refused, though others of the same set are read
    return NamedSets(specs=found | outside)


def same_pictures(first: str, second: str) -> bool:
    """Whether two SPECs name one place, however its path is written."""
    return first == second or place_of(first) == place_of(second)


def tenth_of(spec: str) -> str:
    """What a result calls the tenth of a set."""
    return f"a tenth of {spec}"


def data_arguments(data: dict[str, str]) -> list[str]:
    """--data and --test for the images that a result names."""
    own = data["test"] == tenth_of(data["train"])
    return ["--data", data["train"], *([] if own else ["--test", data["test"]])]


def tenth_by_name(keys: Sequence[str], *, spec: str) -> Tensor:
    """True for the tenth that takes the place of test, LEAST to MOST images: (N,) mask.

    A hash of its name decides about an image, not its place: with a few more images in the folder nearly the same
    ones are taken.
    """
    if len(keys) < 2 * LEAST:
        raise ProsminError(
            f"{spec} has no test split, and of its {len(keys)} images none can be set apart: allowed are "
            f"{2 * LEAST} or more. Name test images with --test SPEC."
        )
    count = min(max(round(len(keys) / 10), LEAST), MOST)
    digests = [hashlib.blake2b(key.encode("utf-8", "replace"), digest_size=8).digest() for key in keys]
    first = sorted(range(len(keys)), key=lambda i: (digests[i], i))[:count]
    mask = torch.zeros(len(keys), dtype=torch.bool)
    mask[first] = True
    return mask
