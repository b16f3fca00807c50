"""What forecasts are told of two views."""

import pytest
import torch

from prosmin.config import ViewsConfig
from prosmin.data.views import PARAMETERS, evaluation_parameters, typical_parameters
from prosmin.models.condition import CONDITION, GEOMETRY, condition, typical_condition

COLOURS = len(PARAMETERS) - 5


def view(top: float, left: float, height: float, width: float, *, flip: float = 0.0, grey: float = 0.0) -> torch.Tensor:
    """Parameters, (P,)."""
    given = {"top": top, "left": left, "height": height, "width": width, "flip": flip, "grey": grey}
    return torch.tensor([given.get(name, 0.0) for name in PARAMETERS])


def test_a_view_and_itself():
    one = view(0.1, 0.2, 0.5, 0.4, flip=1.0, grey=1.0)
    found = condition(one, one)
    assert found.shape == (CONDITION,)
    torch.testing.assert_close(found[:GEOMETRY], torch.tensor([0.0, 0, 0, 0, 1, 1, 1, 0]))
    torch.testing.assert_close(found[GEOMETRY:], torch.cat([one[5:], one[5:]]))


def test_by_hand():
    """A quarter beside the top left corner's half: shifts in units of the given view's sides, logarithms of ratios."""
    found = condition(view(0.0, 0.0, 0.5, 0.5), view(0.25, 0.25, 0.25, 0.5, flip=1.0, grey=1.0))
    # centres (.25, .25) and (.375, .5); common area .25 x .25; areas .25 and .125
    expected = [0.25, 0.5, -0.693147, 0.0, 0.25, 0.5, 0.0625 / 0.3125, 1.0]
    torch.testing.assert_close(found[:GEOMETRY], torch.tensor(expected))
    assert found[GEOMETRY:].tolist() == [0.0] * COLOURS + view(0, 0, 1, 1, grey=1.0)[5:].tolist()


def test_right_is_as_seen_in_a_mirrored_view():
    given, target = view(0.1, 0.1, 0.4, 0.4), view(0.2, 0.4, 0.4, 0.4)
    mirrored = condition(view(0.1, 0.1, 0.4, 0.4, flip=1.0), target)
    expected = condition(given, target)
    expected[1], expected[GEOMETRY - 1] = -expected[1], 1.0
    torch.testing.assert_close(mirrored, expected)


def test_only_the_places_relative_to_each_other_count():
    here = condition(view(0.1, 0.1, 0.2, 0.2), view(0.2, 0.15, 0.1, 0.2))
    there = condition(view(0.3, 0.5, 0.4, 0.4), view(0.5, 0.6, 0.2, 0.4))
    torch.testing.assert_close(here, there)


def test_views_that_do_not_meet_have_nothing_in_common():
    assert not condition(view(0, 0, 0.2, 0.2), view(0.5, 0.5, 0.2, 0.2))[4:7].any()


@pytest.mark.parametrize("size", [(32, 32), (480, 640), (1200, 300)])
def test_the_typical_condition_is_that_of_any_image(size):
    config = ViewsConfig(crop_share=0.875)
    sizes = torch.tensor([size])
    found = condition(evaluation_parameters(sizes, config), typical_parameters(sizes, config))[0]
    # Boxes are rounded to pixels: half a pixel of a side of 28.
    torch.testing.assert_close(found, typical_condition(config), atol=0.06, rtol=0)
    assert found[4] < 1  # of the evaluation view only the middle
    assert found[5] == pytest.approx(1)
