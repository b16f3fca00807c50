"""What `view_parameters` says of the views that are made of the same numbers."""

import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as reference

from prosmin.config import ViewsConfig
from prosmin.data.augment import colour
from prosmin.data.views import (
    PARAMETERS,
    draws_of_step,
    evaluation_parameters,
    evaluation_view,
    normalise,
    render,
    typical_parameters,
    typical_view,
    view_parameters,
)

COUNT, SIDE = 64, 40
PLAIN = {"flip": 0.0, "jitter_p": 0.0, "grey": 0.0, "blur": (0.0, 0.0, 0.0), "solarise": (0.0, 0.0, 0.0), "local": 0}


def made(**options) -> tuple[ViewsConfig, Tensor, Tensor, dict[str, Tensor]]:
    """Images, their first views without normalisation, and the parameters of these by name."""
    config = ViewsConfig(**{**PLAIN, "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0), **options})
    random = torch.Generator().manual_seed(0)
    images = torch.randint(60, 200, (COUNT, 3, SIDE, SIDE), dtype=torch.uint8, generator=random)
    sizes = torch.tensor([[SIDE, SIDE]] * COUNT)
    draws = draws_of_step(config, seed=0, step=3, positions=torch.arange(COUNT))
    views = render(images, sizes, config, draws).global_views[0]
    parameters = view_parameters(sizes, config, draws)
    assert parameters.shape == (2, COUNT, len(PARAMETERS))
    return config, images, views, dict(zip(PARAMETERS, parameters[0].unbind(-1), strict=True))


def test_cutting_the_box_out_and_mirroring_it_gives_the_view():
    _, images, views, found = made(flip=0.5)
    for i in range(COUNT):
        box = [round(SIDE * found[name][i].item()) for name in ("top", "left", "height", "width")]
        cut = reference.crop(images[i].float() / 255, *box)
        cut = reference.resize(cut, [32, 32], reference.InterpolationMode.BICUBIC).clamp(0, 1)
        expected = cut.flip(-1) if found["flip"][i] == 1 else cut
        torch.testing.assert_close(views[i], expected, atol=2e-3, rtol=0)
    assert 10 < found["flip"].sum() < 54
    assert all((found[name] == 0).all() for name in PARAMETERS[5:])


@pytest.mark.parametrize("place", range(4))
def test_the_strengths_of_the_jitter_are_relative_to_their_reach(place):
    reach = tuple(0.3 if number == place else 0.0 for number in range(4))
    _, _, plain, _ = made(global_scale=(1.0, 1.0), ratio=(1.0, 1.0))
    _, _, views, found = made(global_scale=(1.0, 1.0), ratio=(1.0, 1.0), jitter=reach, jitter_p=0.7)
    strength = found.pop(colour.NAMES[place])
    assert ((strength >= -1) & (strength <= 1)).all()
    changed = (views - plain).abs().amax((1, 2, 3)) > 1e-6
    torch.testing.assert_close(changed, strength != 0)
    assert 25 < changed.sum() < 60
    if place == colour.BRIGHTNESS:
        expected = (plain * (1 + 0.3 * strength[:, None, None, None])).clamp(0, 1)
        torch.testing.assert_close(views, expected, atol=1e-5, rtol=0)
    assert all((values == 0).all() for name, values in found.items() if name in colour.NAMES)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"grey": 0.5}, "grey"),
        ({"solarise": (0.5, 0.0, 0.0)}, "solarise"),
        ({"blur": (0.5, 0.0, 0.0), "blur_sigma": (1.0, 2.0)}, "blur"),
    ],
)
def test_a_view_without_an_operation_has_its_parameter_0(options, name):
    _, _, plain, _ = made()
    _, _, views, found = made(**options)
    changed = (views - plain).abs().amax((1, 2, 3)) > 1e-3
    torch.testing.assert_close(changed, found[name] > 0.05)
    assert 15 < changed.sum() < 49
    assert ((found[name] >= 0) & (found[name] <= 1)).all()


def test_the_centred_views_are_where_their_parameters_say():
    config = ViewsConfig(global_scale=(0.4, 0.88))  # a mean area of .64: a side of .8
    image = torch.zeros(1, 3, 50, 100, dtype=torch.uint8)
    image[:, :, 5:45, 30:70] = 255
    sizes = torch.tensor([[50, 100]])
    top, left, height, width = typical_parameters(sizes, config)[0, :4].tolist()
    assert (50 * top, 100 * left, 50 * height, 100 * width) == pytest.approx((5, 30, 40, 40), abs=1e-4)
    white = normalise(torch.ones(1, 3, 32, 32), config)
    torch.testing.assert_close(typical_view(image, sizes, config), white, atol=1e-4, rtol=0)
    assert evaluation_parameters(sizes, config)[0, :4].tolist() == pytest.approx([0, 0.25, 1, 0.5])
    assert not torch.allclose(evaluation_view(image, sizes, config), white, atol=1e-2)
    assert not typical_parameters(sizes, config)[0, 4:].any()
