"""Views: their boxes, their operations, and their dependence on seed, step, position and view only."""

import math
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from scipy import stats
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as reference

from prosmin.config import ViewsConfig
from prosmin.data import views
from prosmin.data.augment import colour
from prosmin.data.augment.boxes import BOX_NUMBERS, centre_boxes, random_boxes
from prosmin.data.views import Draws, Views, draw, evaluation_view, make_views, render, render_told
from prosmin.methods.output import Draws as StepDraws

Interpolation = Literal["bilinear", "bicubic"]
RATIO = (3 / 4, 4 / 3)
MODES = {mode.value: mode for mode in v2.InterpolationMode}


def pictures(batch: int, size: tuple[int, int], seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    images = torch.randint(0, 256, (batch, 3, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return images, torch.tensor([size] * batch), torch.arange(batch)


# Boxes


def features(boxes: Tensor, size: tuple[int, int]) -> dict[str, Tensor]:
    """Statistics of a box: share of the area, ratio, and place among the possible ones."""
    top, left, height, width = boxes.double().unbind(-1)
    room = torch.tensor(size).double()[:, None] - torch.stack([height, width])
    return {
        "area": height * width / math.prod(size),
        "ratio": torch.log(width / height),
        "top": top / room[0].clamp(min=1),
        "left": left / room[1].clamp(min=1),
    }


def drawn_boxes(count: int, size: tuple[int, int], scale: tuple[float, float], seed: int = 0) -> Tensor:
    numbers = torch.rand(count, 1, BOX_NUMBERS, generator=torch.Generator().manual_seed(seed))
    return random_boxes(numbers, torch.tensor([size] * count), scale=scale, ratio=RATIO)[:, 0]


def reference_boxes(count: int, size: tuple[int, int], scale: tuple[float, float]) -> Tensor:
    torch.manual_seed(1)
    image = torch.zeros(3, *size)
    transform = v2.RandomResizedCrop(8, scale=scale, ratio=RATIO)
    params = [transform.make_params([image]) for _ in range(count)]
    return torch.tensor([[p["top"], p["left"], p["height"], p["width"]] for p in params])


@pytest.mark.parametrize(
    ("size", "scale"),
    [((300, 400), (0.4, 1.0)), ((300, 400), (0.05, 0.4)), ((32, 32), (0.4, 1.0)), ((300, 90), (0.8, 1.0))],
    ids=["global", "local", "small", "often without a fit"],
)
def test_boxes_follow_random_resized_crop(size: tuple[int, int], scale: tuple[float, float]) -> None:
    ours = features(drawn_boxes(6000, size, scale), size)
    theirs = features(reference_boxes(3000, size, scale), size)
    for name, values in ours.items():
        # Both sides are fixed draws; the p-value of two samples of one distribution is a uniform number.
        assert stats.ks_2samp(values.numpy(), theirs[name].numpy()).pvalue > 1e-3, name


def test_the_comparison_of_boxes_can_fail() -> None:
    size = (300, 400)
    theirs = features(reference_boxes(3000, size, (0.4, 1.0)), size)
    smaller = features(drawn_boxes(6000, size, (0.36, 1.0)), size)
    assert stats.ks_2samp(smaller["area"].numpy(), theirs["area"].numpy()).pvalue < 1e-3
    ours = features(drawn_boxes(6000, size, (0.4, 1.0)), size)
    assert stats.ks_2samp(ours["ratio"].numpy() + 0.03, theirs["ratio"].numpy()).pvalue < 1e-3
    assert stats.ks_2samp(ours["left"].numpy() ** 1.15, theirs["left"].numpy()).pvalue < 1e-3


def test_boxes_lie_inside_their_images() -> None:
    sizes = torch.tensor([[300, 400], [1, 1], [500, 3], [7, 900]]).repeat(500, 1)
    numbers = torch.rand(len(sizes), 3, BOX_NUMBERS, generator=torch.Generator().manual_seed(2))
    numbers[0] = 1 - 2**-24  # the largest uniform number
    numbers[1] = 0.0
    boxes = random_boxes(numbers, sizes, scale=(0.05, 1.0), ratio=RATIO)
    assert (boxes[..., :2] >= 0).all()
    assert (boxes[..., 2:] >= 1).all()
    assert (boxes[..., :2] + boxes[..., 2:] <= sizes[:, None]).all()


@pytest.mark.parametrize(
    ("size", "box"),
    [((400, 30), [180, 0, 40, 30]), ((30, 400), [0, 180, 30, 40]), ((2, 2), [0, 0, 2, 2])],
)
def test_without_a_fit_the_largest_centred_box_of_an_allowed_ratio(size: tuple[int, int], box: list[int]) -> None:
    """Areas of several images never fit, so all ten tries fail."""
    boxes = random_boxes(torch.full((1, 1, BOX_NUMBERS), 0.5), torch.tensor([size]), scale=(9.0, 9.0), ratio=RATIO)
    assert boxes[0, 0].tolist() == box


def test_the_first_try_that_fits_is_used() -> None:
    numbers = torch.full((1, 1, BOX_NUMBERS), 0.5)
    numbers[..., 0:2] = 1.0  # shares of 16: no fit
    numbers[..., 2], numbers[..., 3] = 0.0, 0.015  # 0.16 of the area, then another fit
    box = random_boxes(numbers, torch.tensor([[100, 100]]), scale=(0.16, 16.0), ratio=(0.5, 2.0))[0, 0]
    assert box.tolist() == [30, 30, 40, 40]


def test_centre_boxes() -> None:
    sizes = torch.tensor([[256, 320], [320, 256], [32, 32], [1, 9]])
    expected = [[16, 48, 224, 224], [48, 16, 224, 224], [2, 2, 28, 28], [0, 4, 1, 1]]
    assert centre_boxes(sizes, share=0.875).tolist() == expected


# What is done to a view


def by_torchvision(image: Tensor, size: Tensor, numbers: Tensor, config: ViewsConfig, view: str) -> Tensor:
    """One view of one image from its numbers, an operation after the other."""
    side, scale = config.global_size, config.global_scale
    if view == "local":
        side, scale = config.local_size, config.local_scale
    index = ("first", "second", "local").index(view)
    box, order, strength, choices = numbers.split(views._NUMBERS)
    flip, jitter, grey, blur, solarise, sigma = choices.tolist()
    height, width = size.tolist()
    boxes = random_boxes(box[None, None], size[None], scale=scale, ratio=config.ratio)
    top, left, h, w = boxes[0, 0].tolist()
    x, mode = image[:, :height, :width] / 255, MODES[config.interpolation]
    x = reference.resized_crop(x, top, left, h, w, [side, side], interpolation=mode, antialias=True).clamp(0, 1)
    x = x.flip(-1) if flip < config.flip else x
    if jitter < config.jitter_p:
        adjust = (
            reference.adjust_brightness,
            reference.adjust_contrast,
            reference.adjust_saturation,
            reference.adjust_hue,
        )
        for operation in order.argsort().tolist():
            middle = 0.0 if operation == colour.HUE else 1.0
            x = adjust[operation](x, middle + config.jitter[operation] * (2 * strength[operation].item() - 1))
    if grey < config.grey:
        x = reference.rgb_to_grayscale(x, 3)
    if blur < config.blur[index]:
        low, high = config.blur_sigma
        kernel = 2 * colour.blur_radius(high, side) + 1
        x = reference.gaussian_blur(x, [kernel] * 2, [low + (high - low) * sigma] * 2)
    if solarise < config.solarise[index]:
        x = reference.solarize(x, 0.5)
    return reference.normalize(x, list(config.mean), list(config.std))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_views_equal_the_operations_one_by_one(interpolation: Interpolation) -> None:
    """Every operation on half of the views, images of different sizes."""
    config = ViewsConfig(
        global_size=24, local_size=10, local=3, interpolation=interpolation, jitter_p=0.6, grey=0.5,
        blur=(0.3, 0.5, 0.7), solarise=(0.5, 0.2, 0.6),
    )  # fmt: skip
    images, sizes, positions = pictures(9, (40, 50))
    sizes[1:5] = torch.tensor([[13, 50], [40, 7], [33, 32], [1, 1]])
    draws = draw(config, StepDraws(5, 3, positions, 0.0).uniform)
    made = make_views(images, sizes, config, seed=5, step=3, positions=positions)
    assert made.global_views.shape == (2, 9, 3, 24, 24)
    assert made.local_views is not None
    assert made.local_views.shape == (3, 9, 3, 10, 10)
    assert made.global_views.dtype == torch.float32
    for b in range(9):
        pairs = [(made.global_views[v, b], draws.global_views[b, v], n) for v, n in enumerate(["first", "second"])]
        pairs += [(made.local_views[v, b], draws.local_views[b, v], "local") for v in range(3)]
        for view, numbers, name in pairs:
            true = by_torchvision(images[b], sizes[b], numbers, config, name)
            # 1e-5 in [0, 1], divided by the standard deviation of 0.22. A value a rounding error from 1/2 may
            # fall on either side of the threshold, where solarisation is continuous.
            assert (view - true).abs().max() < 1e-4


def test_probabilities_belong_to_their_views() -> None:
    """Solarisation turns a white image black: counted by view, with four standard errors."""
    config = ViewsConfig(
        local=2, jitter_p=0, grey=0, blur=(0, 0, 0), solarise=(0.0, 0.3, 0.8), mean=(0, 0, 0), std=(1, 1, 1)
    )
    images, sizes, positions = pictures(500, (8, 8))
    made = make_views(torch.full_like(images, 255), sizes, config, seed=0, step=0, positions=positions)
    assert made.local_views is not None
    shares = [(view.amax((1, 2, 3)) < 0.5).float().mean().item() for view in [*made.global_views, *made.local_views]]
    for share, p in zip(shares, (0.0, 0.3, 0.8, 0.8), strict=True):
        assert abs(share - p) <= 4 * math.sqrt(p * (1 - p) / 500)


def test_jitter_strengths_span_their_range() -> None:
    config = ViewsConfig(jitter=(0.4, 0.3, 0.2, 0.1))
    ends = views._jitter_factors(torch.tensor([[0.0] * 4, [0.5] * 4, [1.0] * 4]), config)
    expected = [[0.6, 0.7, 0.8, -0.1], [1.0, 1.0, 1.0, 0.0], [1.4, 1.3, 1.2, 0.1]]
    torch.testing.assert_close(ends, torch.tensor(expected))


def test_every_operation_may_be_off_or_always_on() -> None:
    images, sizes, positions = pictures(4, (12, 12))
    off = ViewsConfig(
        global_size=12, local=0, global_scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0, jitter_p=0, grey=0,
        blur=(0, 0, 0), solarise=(0, 0, 0),
    )  # fmt: skip
    made = make_views(images, sizes, off, seed=0, step=0, positions=positions)
    assert made.local_views is None
    plain = reference.normalize(images / 255, list(off.mean), list(off.std))
    assert torch.equal(made.global_views, plain.expand(2, *plain.shape))
    on = ViewsConfig(flip=1, jitter_p=1, grey=1, blur=(1, 1, 1), solarise=(1, 1, 1), mean=(0, 0, 0), std=(1, 1, 1))
    made = make_views(images, sizes, on, seed=0, step=0, positions=positions)
    assert made.global_views.amax() <= 0.5 + 1e-6  # solarised
    torch.testing.assert_close(made.global_views[:, :, 0], made.global_views[:, :, 2])  # grey


# What a view depends on


def test_a_view_depends_on_its_position_and_not_on_its_batch() -> None:
    config = ViewsConfig(local=2)
    images, sizes, positions = pictures(300, (32, 32))  # more than one block of the CPU
    assert views._cpu_blocks(images, config) > 1
    whole = make_views(images, sizes, config, seed=1, step=2, positions=positions)
    for some in ([299, 3, 150], *([i] for i in range(0, 300, 30))):
        part = make_views(images[some], sizes[some], config, seed=1, step=2, positions=positions[some])
        assert torch.equal(whole.global_views[:, some], part.global_views)
        assert whole.local_views is not None
        assert part.local_views is not None
        assert torch.equal(whole.local_views[:, some], part.local_views)


def test_draws_differ_by_seed_step_position_and_view() -> None:
    config, positions = ViewsConfig(local=3), torch.arange(3)
    numbers = [draw(config, StepDraws(s, t, positions, 0.0).uniform) for s, t in [(0, 0), (1, 0), (0, 1)]]
    rows = torch.cat([n.flatten(0, 1) for draws in numbers for n in draws])  # 3 x 3 images x 5 views
    assert len(rows) == 3 * 3 * 5
    assert len(rows.unique(dim=0)) == len(rows)
    assert len(rows[:, 0].unique()) == len(rows)


def test_more_local_views_do_not_change_the_others() -> None:
    images, sizes, positions = pictures(3, (20, 20))
    few = make_views(images, sizes, ViewsConfig(local=1), seed=0, step=0, positions=positions)
    many = make_views(images, sizes, ViewsConfig(local=4), seed=0, step=0, positions=positions)
    assert few.local_views is not None
    assert many.local_views is not None
    assert torch.equal(few.global_views, many.global_views)
    assert torch.equal(few.local_views, many.local_views[:1])


def test_the_images_are_not_changed() -> None:
    images, sizes, positions = pictures(6, (16, 16))
    before = images.clone()
    make_views(images, sizes, ViewsConfig(), seed=0, step=0, positions=positions)
    assert torch.equal(images, before)


@pytest.mark.parametrize("make", [render, render_told])
def test_one_graph_serves_every_step(make: Callable[..., Views]) -> None:
    """Traced without a break and not traced again, with the values the uncompiled function gives."""
    config = ViewsConfig(global_size=12, local_size=6, solarise=(0.3, 0.3, 0.3))
    images, sizes, positions = pictures(5, (20, 30))
    sizes[1] = torch.tensor([7, 30])
    graphs = []

    def keep(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(make, fullgraph=True, dynamic=False, backend=keep)
    for step in range(3):
        draws = draw(config, StepDraws(0, step, positions, 0.0).uniform)
        found, expected = compiled(images, sizes, config, draws), make(images, sizes, config, draws)
        torch.testing.assert_close(found.parameters, expected.parameters)
        for one, other in zip(found.groups, expected.groups, strict=True):
            # Products instead of taps: sums in another order, divided by a deviation of 0.22.
            assert one.is_contiguous()
            torch.testing.assert_close(one, other, rtol=0, atol=1e-4)
    assert len(graphs) == 1
    assert isinstance(draws, Draws)


# The view of an evaluation


def test_evaluation_view_is_exact_where_nothing_is_resized() -> None:
    images, sizes, _ = pictures(3, (32, 32))
    config = ViewsConfig(global_size=32)
    mean, std = (torch.tensor(v)[:, None, None] for v in (config.mean, config.std))
    assert torch.equal(evaluation_view(images, sizes, config), (images.float() / 255 - mean) / std)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_evaluation_view_is_the_centred_square(interpolation: Interpolation) -> None:
    images, sizes, _ = pictures(3, (60, 80))
    sizes[1], sizes[2] = torch.tensor([60, 40]), torch.tensor([8, 80])
    config = ViewsConfig(global_size=28, crop_share=0.875, interpolation=interpolation)
    made = evaluation_view(images, sizes, config)
    for image, (height, width), view in zip(images, sizes.tolist(), made, strict=True):
        side = round(0.875 * min(height, width))
        top, left = (height - side) // 2, (width - side) // 2
        square = image[:, top : top + side, left : left + side] / 255
        mode = MODES[interpolation]
        true = reference.resize(square, [28, 28], interpolation=mode, antialias=True).clamp(0, 1)
        true = reference.normalize(true, list(config.mean), list(config.std))
        assert (view - true).abs().max() < 1e-4
