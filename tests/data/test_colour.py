"""Each colour operation against torchvision's, image by image."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as reference

from prosmin.data.augment import colour, separable
from prosmin.data.augment import sync_free as selection

# The requirement is 1e-3. Both compute in float32; the hue divides by the chroma and then multiplies by it.
TOLERANCE = 1e-5
N = 40


@pytest.fixture(scope="module")
def images() -> Tensor:
    """Noise, flat grey, equal channels, and few levels, so that ties between channels happen."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(N, 3, 16, 16, generator=generator)
    images[0] = 0.3
    images[1, 1], images[2, 2], images[3, 2] = images[1, 0], images[2, 0], images[3, 1]
    images[4:10] = (images[4:10] * 4).round() / 4
    images[10:14] = (images[10:14] * 255).round() / 255
    images[14], images[15] = 0.0, 1.0
    images[16] = images[16, :1] + 1e-7  # next to no chroma
    return images.clamp(0, 1)


@pytest.fixture(scope="module")
def factors() -> Tensor:
    """From 0 to 2, the ends included."""
    factors = 2 * torch.rand(N, generator=torch.Generator().manual_seed(1))
    factors[:3] = torch.tensor([0.0, 1.0, 2.0])
    return factors


def assert_each(result: Tensor, images: Tensor, operation: Callable[..., Tensor], *strengths: Tensor) -> None:
    rows = zip(images, *(s.tolist() for s in strengths), strict=True)
    true = torch.stack([operation(image, *row) for image, *row in rows])
    assert (result - true).abs().max() < TOLERANCE


def test_brightness(images: Tensor, factors: Tensor) -> None:
    zero = torch.zeros(N)
    assert_each(colour.blend(images, factors, zero, zero), images, reference.adjust_brightness, factors)


def test_contrast(images: Tensor, factors: Tensor) -> None:
    result = colour.blend(images, factors, 1 - factors, torch.zeros(N))
    assert_each(result, images, reference.adjust_contrast, factors)


def test_saturation(images: Tensor, factors: Tensor) -> None:
    result = colour.blend(images, factors, torch.zeros(N), 1 - factors)
    assert_each(result, images, reference.adjust_saturation, factors)


def test_hue(images: Tensor, factors: Tensor) -> None:
    shift = (factors - 1) / 2  # -1/2 to 1/2, the ends included
    assert_each(colour.shift_hue(images, shift), images, reference.adjust_hue, shift)


def test_a_third_of_a_turn_rotates_the_channels(images: Tensor) -> None:
    turned = colour.shift_hue(images, torch.full((N,), 1 / 3))
    torch.testing.assert_close(turned, images.roll(1, dims=1), rtol=0, atol=TOLERANCE)


def test_greyscale_and_solarise(images: Tensor) -> None:
    assert_each(colour.greyscale(images), images, lambda image: reference.rgb_to_grayscale(image, 3))
    assert_each(colour.solarise(images), images, lambda image: reference.solarize(image, 0.5))


@pytest.mark.parametrize("way", [separable.sum_taps, separable.multiply])
@pytest.mark.parametrize("radius", [0, 1, 6, 15])  # 15: reflection as far as sixteen pixels allow
def test_blur(
    images: Tensor, factors: Tensor, radius: int, way: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(colour, "combine", way)
    sigma = 0.1 + factors
    kernel = [2 * radius + 1] * 2
    result = colour.blur(images, sigma, radius=radius)
    assert_each(result, images, lambda image, s: reference.gaussian_blur(image, kernel, [s, s]), sigma)


def test_blur_radius_is_three_deviations_within_the_image() -> None:
    assert colour.blur_radius(2.0, 32) == 6
    assert colour.blur_radius(0.1, 32) == 1
    assert colour.blur_radius(2.0, 4) == 3
    assert colour.blur_radius(2.0, 1) == 0


ADJUST = (
    reference.adjust_brightness,
    reference.adjust_contrast,
    reference.adjust_saturation,
    reference.adjust_hue,
)


def test_jitter_in_all_24_orders() -> None:
    generator = torch.Generator().manual_seed(2)
    order = torch.tensor(list(itertools.permutations(range(4))))
    images = torch.rand(24, 3, 8, 8, generator=generator)
    factors = 0.4 + 1.2 * torch.rand(24, 4, generator=generator)
    factors[:, 3] = factors[:, 3] / 2 - 0.5
    result = colour.jitter(images, factors, order)
    for i in range(24):
        true = images[i]
        for operation in order[i].tolist():
            true = ADJUST[operation](true, factors[i, operation].item())
        assert (result[i] - true).abs().max() < TOLERANCE
    # The orders matter: the next image's order on this one gives something else.
    assert (result - colour.jitter(images, factors, order.roll(1, 0))).abs().amax((1, 2, 3)).median() > 0.01


@pytest.mark.parametrize("chosen", [[], [1, 4], list(range(6))])
@pytest.mark.parametrize("look", [True, False])
def test_an_operation_gets_its_images_and_their_strengths(
    chosen: list[int], look: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "host_may_look", lambda images: look)
    images = torch.rand(6, 3, 2, 2, generator=torch.Generator().manual_seed(3))
    strengths = torch.arange(6.0)
    mask = torch.zeros(6, dtype=torch.bool)
    mask[chosen] = True
    seen = []

    def operation(pictures: Tensor, strength: Tensor) -> Tensor:
        seen.append(len(pictures))
        return pictures + strength[:, None, None, None]

    result = selection.apply_to(mask, images.clone(), operation, strengths)
    assert torch.equal(result, images + (strengths * mask)[:, None, None, None])
    assert seen == ([6] if not look else [len(chosen)] if chosen else [])
