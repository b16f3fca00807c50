"""Images of known quality are found, and images that are merely unlike each other are not."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter

from prosmin.inspect.findings import KINDS
from prosmin.inspect.quality import find_quality_issues, measure


def scene(seed, *, height=64, width=64):
    """Coloured rectangles of many sizes: edges everywhere, all brightnesses."""
    rng = np.random.default_rng(seed)
    pixels = np.full((height, width, 3), rng.integers(60, 200, 3), dtype=np.uint8)
    for _ in range(60):
        top, left = rng.integers(0, height), rng.integers(0, width)
        pixels[top : top + rng.integers(2, 20), left : left + rng.integers(2, 20)] = rng.integers(0, 256, 3)
    return Image.fromarray(pixels)


def issues(images):
    """(row, kind) of every issue of a folder of these images."""
    measured = [measure(torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)) for image in images]
    columns = {name: np.array([row[name] for row in measured]) for name in measured[0]}
    found = find_quality_issues(columns, np.array([(image.height, image.width) for image in images], dtype=np.int64))
    assert all(kind in KINDS and score > 0 for _, kind, score in found)
    return [(row, kind) for row, kind, _ in found]


CLEAN = [scene(seed) for seed in range(40)]
FIRST = len(CLEAN)  # row of the image that is added to the clean ones


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        ("dark", lambda image: image.point(lambda level: level * 0.25)),
        ("dark", lambda image: image.crop((0, 0, 20, 20)).crop((-22, -22, 42, 42))),  # a window at night
        ("bright", lambda image: image.point(lambda level: 255 - (255 - level) * 0.25)),
        ("blurry", lambda image: image.filter(ImageFilter.GaussianBlur(1.5))),
        ("blurry", lambda image: image.filter(ImageFilter.GaussianBlur(4))),
        ("greyscale", lambda image: image.convert("L")),
        ("odd_size", lambda image: image.resize((20, 20))),
        ("odd_size", lambda image: image.resize((300, 300), Image.Resampling.NEAREST)),
        ("odd_aspect_ratio", lambda image: scene(1, height=40, width=100)),
        ("odd_aspect_ratio", lambda image: scene(1, height=100, width=40)),
    ],
)
def test_one_damaged_image_has_this_issue_and_no_other(kind, damage):
    assert issues([*CLEAN, damage(scene(99))]) == [(FIRST, kind)]


@pytest.mark.parametrize("noise", [0, 4])
def test_nearly_one_colour_is_low_information_and_not_blurry(noise):
    pixels = np.random.default_rng(0).normal((90, 140, 60), noise, (64, 64, 3))
    assert issues([*CLEAN, Image.fromarray(pixels.astype(np.uint8))]) == [(FIRST, "low_information")]


def test_a_page_of_text_is_neither_bright_nor_empty():
    page = np.full((300, 220, 3), 255, dtype=np.uint8)
    for top in range(30, 270, 12):
        page[top : top + 6, 20:200:2] = 0
    assert issues([Image.fromarray(page)] * 5) == []


def test_a_saturated_colour_is_neither_dark_nor_bright():
    red = np.array(scene(3))
    red[..., 0], red[..., 1:] = 230, red[..., 1:] // 8
    assert issues([*CLEAN, Image.fromarray(red)]) == []


def test_a_sharp_subject_before_a_blurred_background_is_sharp():
    image = scene(5).filter(ImageFilter.GaussianBlur(5))
    image.paste(scene(6).crop((0, 0, 20, 20)), (20, 20))
    assert issues([*CLEAN, image]) == []


def test_small_images_are_not_blurry():
    assert issues([scene(seed, height=32, width=32) for seed in range(20)]) == []


def test_where_all_images_are_soft_none_is_blurry():
    assert issues([image.filter(ImageFilter.GaussianBlur(2)) for image in CLEAN]) == []


def test_half_a_folder_can_be_blurry():
    blurred = [image.filter(ImageFilter.GaussianBlur(3)) for image in CLEAN]
    assert issues([*CLEAN, *blurred]) == [(FIRST + row, "blurry") for row in range(len(blurred))]


def test_in_a_folder_of_grey_images_grey_is_no_issue():
    assert issues([image.convert("L") for image in CLEAN[:30]] + CLEAN[:10]) == []


def test_portraits_among_landscapes_are_not_odd():
    landscapes = [scene(seed, height=48, width=64) for seed in range(20)]
    assert issues([*landscapes, scene(30, height=64, width=48)]) == []


def test_all_dark_images_are_dark():
    assert issues([image.point(lambda level: level * 0.2) for image in CLEAN]) == [
        (row, "dark") for row in range(FIRST)
    ]


def test_a_worse_image_has_a_larger_score():
    darkness = [measure(torch.full((3, 8, 8), level, dtype=torch.uint8)) for level in (40, 10)]
    columns = {name: np.array([row[name] for row in darkness]) for name in darkness[0]}
    scores = {row: score for row, kind, score in find_quality_issues(columns, np.full((2, 2), 8)) if kind == "dark"}
    assert 0 < scores[0] < scores[1] <= 1


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (2, 2), (3, 500), (512, 768)])
def test_any_size_gives_the_same_finite_measures(size):
    picture = torch.randint(256, (3, *size), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    measured = measure(picture)
    assert list(measured) == list(measure(torch.zeros(3, 4, 4, dtype=torch.uint8)))
    assert all(np.isfinite(value) for value in measured.values())


def test_layout_in_memory_does_not_matter():
    picture = torch.from_numpy(np.array(scene(0))).permute(2, 0, 1)
    assert measure(picture) == measure(picture.contiguous())


def test_a_sharper_copy_has_the_larger_sharpness():
    levels = [scene(0).filter(ImageFilter.GaussianBlur(radius)) for radius in (0, 0.7, 1.5, 3)]
    sharpness = [measure(torch.from_numpy(np.array(image)).permute(2, 0, 1))["sharpness"] for image in levels]
    assert sharpness == sorted(sharpness, reverse=True)
    assert len(set(sharpness)) == len(sharpness)


def test_no_images_and_one_image():
    nothing = {name: np.zeros(0) for name in measure(torch.zeros(3, 1, 1, dtype=torch.uint8))}
    assert find_quality_issues(nothing, np.zeros((0, 2), dtype=np.int64)) == []
    assert issues([scene(0)]) == []
    assert issues([scene(0).filter(ImageFilter.GaussianBlur(3)).convert("L")]) == []
