"""Which images an evaluation reads. If there is no test split, a fixed tenth of the images replaces it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prosmin.data.sources import open_source, place_of, split_spec
from prosmin.errors import ProsminError, UsageError


def common_classes(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...] | None:
    """The class names of two splits with the same numbering; None if the numberings differ.

    A split without an image of some class may name it by its number, or not at all if it is the last.
    """
    names = []
    for number in range(max(len(first), len(second))):
        known = {split[number] for split in (first, second) if number < len(split)} - {str(number)}
        if len(known) > 1:
            return None
        names.append(known.pop() if known else str(number))
    # Classes named by numbers: one that is missing in the middle shifts the others, so that a name occurs twice.
    return tuple(names) if len(set(names)) == len(names) else None


def check_classes(
    first: Sequence[str], second: Sequence[str], *, specs: tuple[str, str], advice: str
) -> tuple[str, ...]:
    """The common classes; an error with some differing names and the advice if the classes differ."""
    common = common_classes(first, second)
    if common is None:
        different = sorted(set(first) ^ set(second))[:5]
        raise ProsminError(
            f"{specs[0]} and {specs[1]} have different classes, such as {', '.join(different) or 'their order'}{advice}"
        )
    return common


UNLABELLED = "without_labels"
"""The setting of a result that says why labels were not used."""
LEAST, MOST = 10, 2000  # images of the tenth; the rest must have LEAST or more, too


@dataclass(frozen=True, kw_only=True)
class NamedSets:
    """The SPECs by name: train, test, then the out-of-distribution sets."""

    specs: dict[str, str]
    own_tenth: bool = False  # test is a tenth of the images that train names, and train is the rest
    learned: bool = False  # the encoder was trained on the images that train names
    heads_only: bool = False  # that is, `prosmin calibrate` trained its forecast heads on them

    @property
    def ood(self) -> tuple[str, ...]:
        """The names of the out-of-distribution sets."""
        return tuple(self.specs)[2:]

    @property
    def data(self) -> dict[str, str]:
        """The images as a result names them."""
        return self.specs | ({"test": tenth_of(self.specs["train"])} if self.own_tenth else {})

    @property
    def note(self) -> str | None:
        """A warning if the test images are not an independent test split; else None."""
        train = self.specs["train"]
        if self.own_tenth:
            who = "the encoder's forecast heads were" if self.heads_only else "the encoder was"
            what = " for its forecasts" if self.heads_only else ""
            seen = f"; {who} trained on these images, so this is not an unseen test set{what}"
            return (
                f"{train} has no test split: a tenth of it ({LEAST} to {MOST} images, chosen by their names) "
                f"is used instead{seen if self.learned else ''}"
            )
        if same_pictures(train, self.specs["test"]):
            return f"--data and --test both name {train}: this is not a test, since every image is also in train"
        return None

    @property
    def arguments(self) -> list[str]:
        """The same images on a command line."""
        return data_arguments(self.data) + (["--ood", ",".join(self.ood)] if self.ood else [])


def named_sets(
    data: str, test: str | None, ood: Sequence[str] | None, *, learned_from: str, heads_only: bool = False
) -> NamedSets:
    """The sets that --data, --test and --ood name; without --test, splits of --data or else a tenth of it."""
    if ood is None and data.partition("@")[0] == "photos":
        ood = ["photos@ood"]
    outside = {spec: spec for spec in ood or ()}
    if test is not None:
        return NamedSets(specs={"train": data, "test": test} | outside)
    try:
        found = {part: split_spec(data, part) for part in ("train", "test")}
    except UsageError:  # no splits; a SPEC that names nothing is refused where it is opened
        learned = same_pictures(data, learned_from)
        specs = {"train": data, "test": data} | outside
        return NamedSets(specs=specs, own_tenth=True, learned=learned, heads_only=heads_only)
    if data not in found.values() and "@" in data:
        open_source(data)  # an error if the split does not exist
    return NamedSets(specs=found | outside)


def same_pictures(first: str, second: str) -> bool:
    """Whether two SPECs name the same place, however its path is written."""
    return first == second or place_of(first) == place_of(second)


def tenth_of(spec: str) -> str:
    """How a result names the tenth of a set."""
    return f"a tenth of {spec}"


def data_arguments(data: dict[str, str]) -> list[str]:
    """--data and --test for the images that a result names."""
    own = data["test"] == tenth_of(data["train"])
    return ["--data", data["train"], *([] if own else ["--test", data["test"]])]


def tenth_by_name(keys: Sequence[str], *, spec: str) -> Tensor:
    """True for the tenth that replaces test, LEAST to MOST images: (N,) mask.

    A hash of the name decides, not the position: adding a few images to the folder changes the choice little.
    """
    if len(keys) < 2 * LEAST:
        raise ProsminError(
            f"{spec} has no test split and {len(keys)} images, too few to set a tenth apart; allowed: "
            f"{2 * LEAST} or more. Give test images with --test SPEC."
        )
    count = min(max(round(len(keys) / 10), LEAST), MOST)
    digests = [hashlib.blake2b(key.encode("utf-8", "replace"), digest_size=8).digest() for key in keys]
    first = sorted(range(len(keys)), key=lambda i: (digests[i], i))[:count]
    mask = torch.zeros(len(keys), dtype=torch.bool)
    mask[first] = True
    return mask
