"""What is known of two views beside their pixels, for forecasts of one view's embedding from the other's.

Most of the error of such a forecast is which view will be drawn: a small corner of the image, a grey one. Told the
parameters of the view that is forecast, the scale says what is left, which is about the image. The forecast stays
proper: it is the law of the embedding given one thing more.

Shapes: (..., P) with P parameters of a view (prosmin.data.views.PARAMETERS), (..., CONDITION) for two views.
"""

import torch
from torch import Tensor

from prosmin.config import ViewsConfig
from prosmin.data.views import PARAMETERS, evaluation_parameters, typical_parameters

GEOMETRY = 8
CONDITION = GEOMETRY + 2 * (len(PARAMETERS) - 5)
"""Numbers that describe a given view and the one that is forecast: where they lie, and the colours of each."""
_SIDE = 1e-6  # the shortest side of a box, as a share of the image's


def condition(given: Tensor, target: Tensor) -> Tensor:
    """Two views' parameters (..., P) -> (..., CONDITION), relative to the given view's box and not to the image."""
    given, target = torch.broadcast_tensors(given, target)
    own, other = given[..., :4].double(), target[..., :4].double()  # top, left, height, width
    (side, further) = (box[..., 2:].clamp_min(_SIDE) for box in (own, other))
    offset = (other[..., :2] + further / 2 - own[..., :2] - side / 2) / side  # of the centres: down, right
    flip = given[..., 4].double()
    right = offset[..., 1] * (1 - 2 * flip)  # as seen in the given view, which may be mirrored
    ends = torch.minimum(own[..., :2] + side, other[..., :2] + further)
    common = (ends - torch.maximum(own[..., :2], other[..., :2])).clamp_min(0).prod(-1)
    area, area_of_other = side.prod(-1), further.prod(-1)
    mirrored = (flip - target[..., 4].double()).abs()
    larger = (further / side).log().unbind(-1)
    shares = (common / area, common / area_of_other, common / (area + area_of_other - common))
    geometry = torch.stack([offset[..., 0], right, *larger, *shares, mirrored], dim=-1)
    return torch.cat([geometry.to(given.dtype), given[..., 5:], target[..., 5:]], dim=-1)


def typical_condition(views: ViewsConfig) -> Tensor:
    """The condition of the typical view's forecast from the evaluation view: (CONDITION,), the same for all images.

    Apart from the rounding of boxes to pixels, which an image of this size does not show.
    """
    sizes = torch.tensor([[10_000, 10_000]])
    return condition(evaluation_parameters(sizes, views), typical_parameters(sizes, views))[0]
