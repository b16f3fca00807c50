"""Crop and resize against torchvision's antialiased resized_crop, by both ways of computing it."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2.functional import resized_crop as reference_crop

from prosmin.data.augment import colour, resize, separable
from prosmin.data.augment.resize import crop_views, resized_crop
from prosmin.errors import UsageError

MODES = {"bilinear": InterpolationMode.BILINEAR, "bicubic": InterpolationMode.BICUBIC}
WAYS = {"taps": separable.sum_taps, "products": separable.multiply}
# The requirement is 1/255. Both sides compute in float32: sums of up to 200 terms of size 1 round to 1e-6.
TOLERANCE = 1e-5


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways on the CPU, where the products would not be chosen."""
    monkeypatch.setattr(resize, "combine", WAYS[request.param])
    return request.param


def random_boxes(sizes: Tensor, generator: torch.Generator) -> Tensor:
    """Any box that fits: (N, 2) -> (N, 4)."""
    share = torch.rand(len(sizes), 4, generator=generator)
    extent = 1 + (share[:, :2] * sizes).long()  # 1..size
    corner = (share[:, 2:] * (sizes - extent + 1)).long()
    return torch.cat([corner, extent], 1)


def expected(image: Tensor, box: Tensor, size: int, interpolation: str, *, flip: bool) -> Tensor:
    top, left, height, width = box.tolist()
    mode = MODES[interpolation]
    crop = reference_crop(
        image.float() / 255, top, left, height, width, [size, size], interpolation=mode, antialias=True
    )
    return (crop.flip(-1) if flip else crop).clamp(0, 1)


@pytest.mark.parametrize("interpolation", MODES)
@pytest.mark.parametrize("size", [1, 7, 32, 96])
@pytest.mark.parametrize("shape", [(32, 32), (41, 90), (100, 23), (1, 5)])
def test_equals_torchvision_over_random_boxes(way: str, interpolation: str, size: int, shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(hash((size, shape)) % 1000)
    count = 12
    images = torch.randint(0, 256, (count, 3, *shape), dtype=torch.uint8, generator=generator)
    boxes = random_boxes(torch.tensor([shape] * count), generator)
    boxes[0] = torch.tensor([0, 0, *shape])
    flip = torch.rand(count, generator=generator) < 0.5
    crops = resized_crop(images, boxes, size, flip=flip, interpolation=interpolation)
    assert crops.shape == (count, 3, size, size)
    for image, box, flipped, crop in zip(images, boxes, flip, crops, strict=True):
        assert (crop - expected(image, box, size, interpolation, flip=bool(flipped))).abs().max() < TOLERANCE


def test_a_matrix_has_the_weight_of_each_tap_at_its_pixel() -> None:
    start, length = torch.tensor([[0, 3], [5, 0]]), torch.tensor([[20, 17], [1, 13]])
    taps = [
        resize.resize_taps(start, length, 20, 6, interpolation="bicubic", flip=torch.tensor([[True, False]] * 2)),
        colour._blur_taps(torch.tensor([0.1, 2.0]), 20, 6),
        colour._blur_taps(torch.tensor([0.5, 2.0]), 4, 3),  # both ends are within the radius of every pixel
    ]
    for places, weights in taps:
        pixels = int(places.amax()) + 4  # and padding
        expected = torch.zeros(*weights.shape[:-1], pixels).scatter_add_(-1, places, weights)
        assert torch.equal(separable.Taps(places, weights).matrix(pixels), expected)
        torch.testing.assert_close(expected.sum(-1), torch.ones(expected.shape[:-1]))


@pytest.mark.parametrize("radius", [1, 5, 6])
def test_a_blur_counts_mirror_images_of_pixels(radius: int) -> None:
    sigma, image = torch.tensor([0.7, 2.0]), torch.rand(2, 1, 7, 7, generator=torch.Generator().manual_seed(0))
    offset = torch.arange(-radius, radius + 1)
    kernel = torch.softmax(-0.5 * (offset / sigma[:, None]) ** 2, dim=1)
    wide = (
        functional.pad(image, (radius,) * 4, mode="reflect").unfold(2, 2 * radius + 1, 1).unfold(3, 2 * radius + 1, 1)
    )
    expected = torch.einsum("nchwij,ni,nj->nchw", wide, kernel, kernel)
    torch.testing.assert_close(colour.blur(image, sigma, radius=radius), expected)


def test_an_image_of_imagenet_size(way: str) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (1, 3, 375, 500), dtype=torch.uint8, generator=generator)
    box = torch.tensor([[3, 11, 371, 480]])
    crop = resized_crop(images, box, 224)
    assert (crop[0] - expected(images[0], box[0], 224, "bicubic", flip=False)).abs().max() < TOLERANCE


def test_images_of_different_sizes_in_one_batch(way: str) -> None:
    """The padding is noise here, so that a tap outside of the box would show."""
    generator = torch.Generator().manual_seed(1)
    sizes = torch.tensor([[40, 60], [64, 17], [9, 9], [23, 64], [1, 1]])
    images = torch.randint(0, 256, (len(sizes), 3, 64, 64), dtype=torch.uint8, generator=generator)
    boxes = random_boxes(sizes, generator)
    for interpolation in MODES:
        crops = resized_crop(images, boxes, 20, interpolation=interpolation)
        for image, (h, w), box, crop in zip(images, sizes, boxes, crops, strict=True):
            true = expected(image[:, :h, :w], box, 20, interpolation, flip=False)
            assert (crop - true).abs().max() < TOLERANCE


def test_each_view_has_its_own_box_and_flip(way: str) -> None:
    generator = torch.Generator().manual_seed(2)
    B, V = 3, 4
    images = torch.randint(0, 256, (B, 3, 30, 45), dtype=torch.uint8, generator=generator)
    boxes = random_boxes(torch.tensor([[30, 45]] * (B * V)), generator).view(B, V, 4)
    flip = torch.rand(B, V, generator=generator) < 0.5
    views = crop_views(images, boxes, 12, flip=flip)
    assert views.shape == (B, V, 3, 12, 12)
    assert views.is_contiguous()
    for b in range(B):
        for v in range(V):
            true = expected(images[b], boxes[b, v], 12, "bicubic", flip=bool(flip[b, v]))
            assert (views[b, v] - true).abs().max() < TOLERANCE


@pytest.mark.parametrize("interpolation", MODES)
def test_a_crop_without_a_resize_is_exact(way: str, interpolation: str) -> None:
    images = torch.arange(3 * 20 * 24).remainder(256).to(torch.uint8).view(1, 3, 20, 24)
    box, flip = torch.tensor([[2, 5, 16, 16]]), torch.tensor([True])
    inside = images[..., 2:18, 5:21].float() / 255
    assert torch.equal(resized_crop(images, box, 16, interpolation=interpolation), inside)
    assert torch.equal(resized_crop(images, box, 16, flip=flip, interpolation=interpolation), inside.flip(-1))


def test_overshoot_of_the_cubic_filter_is_clamped(way: str) -> None:
    edge = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    edge[..., 4:] = 255
    crop = resized_crop(edge, torch.tensor([[0, 0, 8, 8]]), 32)
    unclamped = reference_crop(
        edge.float() / 255, 0, 0, 8, 8, [32, 32], interpolation=InterpolationMode.BICUBIC, antialias=True
    )
    assert unclamped.max() > 1.01
    assert crop.min() == 0
    assert crop.max() == 1


def test_floats_are_not_scaled() -> None:
    images = torch.randint(0, 256, (2, 3, 9, 11), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    boxes = torch.tensor([[0, 1, 8, 9], [2, 2, 3, 5]])
    torch.testing.assert_close(resized_crop(images / 255, boxes, 6), resized_crop(images, boxes, 6), rtol=0, atol=1e-6)


def test_unknown_interpolation_is_refused() -> None:
    with pytest.raises(UsageError, match="'lanczos'; allowed: bilinear, bicubic"):
        resized_crop(torch.zeros(1, 3, 4, 4), torch.tensor([[0, 0, 4, 4]]), 4, interpolation="lanczos")


def test_a_view_does_not_depend_on_how_many_are_made_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit; padding changes the number of taps, and so the order of the sums."""
    generator = torch.Generator().manual_seed(3)
    sizes = torch.tensor([[40, 31], [25, 48], [33, 33], [48, 48], [20, 21]])
    images = torch.randint(0, 256, (5, 3, 48, 48), dtype=torch.uint8, generator=generator)
    boxes = random_boxes(sizes, generator)
    together = resized_crop(images, boxes, 16)
    padded = resized_crop(torch.nn.functional.pad(images, (0, 80, 0, 16)), boxes, 16)
    monkeypatch.setattr(separable, "FLOATS", 2 * 3 * 48 * 48)  # two images at a time
    assert torch.equal(resized_crop(images, boxes, 16), together)
    torch.testing.assert_close(padded, together, rtol=0, atol=1e-6)  # 16 terms of size 1 in float32
    assert resized_crop(images[:0], boxes[:0], 16).shape == (0, 3, 16, 16)
