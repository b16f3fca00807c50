"""Groups of duplicates: copies of every kind are found, different images are not grouped."""

import io
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from prosmin.data.decode import decode
from prosmin.errors import ProsminError
from prosmin.inspect.duplicates import DuplicateGroup, find_duplicates
from prosmin.inspect.fingerprint import LENGTH, fingerprint


def scene(seed: int, *, height: int = 96, width: int = 128) -> Image.Image:
    """A photograph of nothing: noise of many sizes, in colour."""
    values = np.random.default_rng(seed)
    sizes = (4, 8, 16, 32)
    layers = [
        Image.fromarray(values.integers(256, size=(n, n, 3), dtype=np.uint8)).resize(
            (width, height), Image.Resampling.BICUBIC
        )
        for n in sizes
    ]
    weights = np.array([4, 3, 2, 1]) / 10
    return Image.fromarray(sum(w * np.asarray(layer) for w, layer in zip(weights, layers, strict=True)).astype("uint8"))


def encoded(image: Image.Image, kind: str = "PNG", **options: int) -> bytes:
    """The bytes of a file."""
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


@dataclass
class Folder:
    """What `find_duplicates` is given for a list of files."""

    files: list[bytes]

    def groups(self, features: NDArray[np.float32] | None = None, **changed: object) -> list[DuplicateGroup]:
        """Without an encoder: all features are equal, so only sketches propose pairs."""
        pictures = [decode(data) for data in self.files]
        count = len(pictures)
        given: dict[str, object] = {
            "content": [data.hex() for data in self.files],
            "pixels": np.array([hash(p.numpy().tobytes()) for p in pictures], dtype=np.int64),
            "fingerprints": np.array([fingerprint(p) for p in pictures], dtype=np.uint8).reshape(count, LENGTH),
            "features": np.zeros((count, 4), dtype=np.float32) if features is None else features,
            "sizes": np.array([p.shape[1:] for p in pictures], dtype=np.int64).reshape(count, 2),
            "sharpness": np.zeros(count),
            "links": np.zeros(count, dtype=bool),
        }
        return find_duplicates(**(given | changed))  # type: ignore[arg-type]


OTHERS = [encoded(scene(seed)) for seed in range(100, 112)]
ORIGINAL = scene(0)


def cropped(share: float) -> Image.Image:
    width, height = round(128 * share), round(96 * share)
    left, top = (128 - width) // 3, (96 - height) // 2
    return ORIGINAL.crop((left, top, left + width, top + height))


COPIES = {
    "half": (encoded(ORIGINAL.resize((64, 48)), "JPEG", quality=90), "resized or re-encoded"),
    "stretched": (encoded(ORIGINAL.resize((90, 90))), "resized or re-encoded"),
    "jpeg": (encoded(ORIGINAL, "JPEG", quality=30), "resized or re-encoded"),
    "webp": (encoded(ORIGINAL, "WEBP", quality=80), "resized or re-encoded"),
    "darker": (encoded(ORIGINAL.point(lambda value: value * 0.9)), "resized or re-encoded"),
    "mirrored": (encoded(ORIGINAL.transpose(Image.Transpose.FLIP_LEFT_RIGHT), "JPEG", quality=90), "mirrored"),
    "90 %": (encoded(cropped(0.9), "JPEG", quality=90), "cropped"),
    "80 %": (encoded(cropped(0.8), "JPEG", quality=90), "cropped"),
    "70 %": (encoded(cropped(0.7), "JPEG", quality=90), "cropped"),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_near_copy_is_found_and_named(name: str) -> None:
    data, note = COPIES[name]
    features = np.random.default_rng(0).normal(size=(len(OTHERS) + 2, 8)).astype(np.float32)
    features[-1] = features[0]  # an encoder that recognises the copy
    groups = Folder([encoded(ORIGINAL), *OTHERS, data]).groups(features)
    (group,) = groups
    assert group.kind == "near_duplicate"
    assert group.members == (0, len(OTHERS) + 1)
    assert group.notes == ("", note)
    assert 0.85 <= group.score <= 1.001  # rounding


@pytest.mark.parametrize("name", ["half", "jpeg", "mirrored", "90 %"])
def test_without_the_help_of_an_encoder(name: str) -> None:
    (group,) = Folder([encoded(ORIGINAL), *OTHERS, COPIES[name][0]]).groups()
    assert group.members == (0, len(OTHERS) + 1)


def test_different_images_are_not_grouped_whatever_the_encoder_says() -> None:
    assert Folder(OTHERS).groups(np.ones((len(OTHERS), 4), dtype=np.float32)) == []


def test_exact_copies() -> None:
    files = [encoded(ORIGINAL), *OTHERS, encoded(ORIGINAL), encoded(ORIGINAL, "WEBP", lossless=True)]
    (group,) = Folder(files).groups()
    assert group == DuplicateGroup("exact_duplicate", (0, 13, 14), 1.0, ("", "same bytes", "same pixels"))


def test_exact_and_near_copies_share_a_group() -> None:
    half = COPIES["half"][0]
    (group,) = Folder([half, *OTHERS, encoded(ORIGINAL), half, encoded(ORIGINAL)]).groups()
    assert group.kind == "near_duplicate"
    assert group.members == (13, 15, 0, 14)
    assert group.notes == ("", "same bytes", "resized or re-encoded", "resized or re-encoded")


def test_the_same_pixels_in_another_size_are_no_exact_copy() -> None:
    """The pixels are hashed after large images are reduced, so the sizes of the files count too."""
    files = [encoded(ORIGINAL), encoded(ORIGINAL, "WEBP", lossless=True)]
    (group,) = Folder(files).groups(sizes=np.array([[960, 1280], [1920, 2560]]))
    assert group.kind == "near_duplicate"
    assert group.members == (1, 0)


def test_the_sharpest_of_the_largest_is_kept() -> None:
    files = [COPIES["jpeg"][0], COPIES["webp"][0], COPIES["half"][0], *OTHERS]
    sharpness = np.zeros(len(files))
    sharpness[1:3] = 5, 9
    (group,) = Folder(files).groups(sharpness=sharpness)
    assert group.members == (1, 0, 2)


def test_images_of_one_colour_are_grouped_only_if_they_are_the_same() -> None:
    def plain(grey: int, seed: int) -> Image.Image:
        noise = np.random.default_rng(seed).integers(-1, 2, size=(48, 48, 3))
        return Image.fromarray((grey + noise).astype(np.uint8))

    files = [encoded(plain(10 + 20 * (seed % 2), seed)) for seed in range(20)]
    assert Folder(files).groups() == []
    (group,) = Folder([*files, files[3]]).groups()
    assert (group.kind, group.members) == ("exact_duplicate", (3, 20))


def test_a_chain_of_crops_is_cut_at_the_image_to_keep() -> None:
    """Each is a crop of the one before, but the last shows too little of the first to be its copy."""
    image = scene(1, height=240, width=320)
    chain = [encoded(image.crop((k * 36, k * 27, 320, 240))) for k in range(5)]
    (group,) = Folder(chain).groups()
    assert group.members == (0, 1, 2, 3)
    (last,) = Folder(chain[3:]).groups()
    assert last.members == (0, 1)


def test_many_copies_of_one_image_are_one_group() -> None:
    """More than the neighbours that are looked at."""
    rng = random.Random(0)
    files = [encoded(ORIGINAL, "JPEG", quality=60 + k) for k in range(25)] + OTHERS
    rng.shuffle(files)
    (group,) = Folder(files).groups()
    assert len(group.members) == 25


def test_groups_do_not_depend_on_the_order_of_the_images() -> None:
    files = [encoded(ORIGINAL), *(COPIES[name][0] for name in ("half", "jpeg", "mirrored", "80 %")), *OTHERS]
    shuffled = list(range(len(files)))
    random.Random(0).shuffle(shuffled)
    features = np.random.default_rng(0).normal(size=(len(files), 8)).astype(np.float32)
    features[:5] = features[0]
    here = {frozenset(group.members) for group in Folder(files).groups(features)}
    assert here == {frozenset(range(5))}
    there = Folder([files[row] for row in shuffled]).groups(features[shuffled])
    assert {frozenset(shuffled[row] for row in group.members) for group in there} == here


def test_among_images_that_all_look_alike_only_nearly_perfect_copies_are_grouped() -> None:
    """As digits and icons do: a large sign that all share, and small differences."""

    def sign(seed: int) -> Image.Image:
        picture = np.full((64, 64), 20, dtype=np.uint8)
        picture[8:56, 28:36] = picture[28:36, 8:56] = 240
        for top, left in np.random.default_rng(seed).integers(56, size=(4, 2)):
            picture[top : top + 7, left : left + 7] = 200
        return Image.fromarray(picture).convert("RGB")

    files = [encoded(sign(seed)) for seed in range(60)]
    features = np.random.default_rng(0).normal(size=(61, 4)).astype(np.float32)
    features[60] = features[7]
    groups = Folder([*files, encoded(sign(7), "WEBP", quality=90)]).groups(features)
    assert [group.members for group in groups if 60 in group.members] == [(7, 60)]
    assert len(groups) == 1


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_few_images(count: int) -> None:
    assert Folder(OTHERS[:count]).groups() == []


def test_features_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ProsminError):
        Folder(OTHERS).groups(np.full((len(OTHERS), 2), np.nan, dtype=np.float32))


def test_torch_is_left_as_it_was() -> None:
    before = torch.get_rng_state()
    Folder([encoded(ORIGINAL), *OTHERS]).groups()
    assert torch.equal(before, torch.get_rng_state())
