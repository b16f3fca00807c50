"""What an inspection found: issues by image, and everything the page and the files show of a folder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray


class Kind(NamedTuple):
    """A kind of issue: its title, what it means in one sentence, and what to do about it."""

    title: str
    meaning: str
    action: str


KINDS: dict[str, Kind] = {
    "ood": Kind("Does not belong", "Unlike the reference images, or unlike the rest of the folder.", "look at it"),
    "exact_duplicate": Kind("Exact duplicates", "The same bytes or the same pixels as another image.", "remove"),
    "near_duplicate": Kind(
        "Near duplicates", "A resized, re-encoded, cropped or mirrored copy of another image.", "remove one of them"
    ),
    "leak": Kind("Leaks", "A copy of an image of another split or of the reference.", "remove from one of the two"),
    "unreadable": Kind("Unreadable", "The file cannot be decoded.", "repair or remove"),
    "dark": Kind("Dark", "Almost all of the image is close to black.", "look at it"),
    "bright": Kind("Bright", "Almost all of the image is close to white.", "look at it"),
    "blurry": Kind("Blurry", "Few sharp edges for its size.", "look at it"),
    "low_information": Kind("Low information", "Nearly one colour or one texture.", "look at it"),
    "odd_size": Kind("Odd size", "Far smaller or larger than most images of the folder.", "look at it"),
    "odd_aspect_ratio": Kind("Odd aspect ratio", "Far longer or taller than most images of the folder.", "look at it"),
    "greyscale": Kind("Greyscale", "Without colour, in a folder of colour images.", "look at it"),
    "uncertain": Kind(
        "Uncertain",
        "It may belong, but lies between kinds of images: those most similar to it differ.",
        "look at it, or label it first",
    ),
}
"""In the order of the page."""


class Issue(NamedTuple):
    """One issue of one image; the images of a group share its number."""

    image: int  # row of the image; -1 for a file that has no row because it cannot be read
    name: str  # path of the image below the folder
    kind: str  # one of KINDS
    score: float  # larger is worse
    group: int | None = None
    action: str = ""  # what to do, such as "keep" or "remove, keep cat.jpg"
    note: str = ""  # a few words on this one, such as the reason why a file cannot be read


@dataclass(frozen=True, kw_only=True)
class Findings:
    """A folder of N readable images and what was found in it."""

    folder: str
    encoder: str
    reference: str | None  # SPEC of the reference; None: the folder itself
    rate: float  # the share of images like the reference that may be flagged
    threshold: float  # an image with a higher ood_score is flagged
    keys: Sequence[str]  # (N,) paths below the folder
    labels: Sequence[str | None]  # (N,) names of classes
    columns: dict[str, NDArray[Any]]  # numbers by image (N,), such as width, height, ood_score, uncertainty
    points: NDArray[Any]  # (N, 2): the map
    neighbours: NDArray[Any]  # (N, k): rows of the nearest images, nearest first
    distances: NDArray[Any]  # (N, k)
    representative: Sequence[int]  # rows, the most useful first
    issues: Sequence[Issue]
    thumbnail: Callable[[int], bytes]  # row -> JPEG
    notes: Sequence[str] = ()  # sentences that the reader should know first

    def __len__(self) -> int:
        return len(self.keys)
