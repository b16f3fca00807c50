"""Features of some training images while a run trains; the method does not change."""

from contextlib import closing

import torch
from torch import Tensor, nn

from prosmin.config import Config
from prosmin.data.stream import Feed
from prosmin.data.views import evaluation_view

BATCH = 256


@torch.no_grad()
def current_features(method: nn.Module, feed: Feed, chosen: Tensor, config: Config) -> tuple[Tensor, Tensor]:
    """Features (N, D) in float32 of the evaluation views of the chosen images (N,), and the images' numbers (N,).

    A number differs from the chosen one where that image is unreadable and another was taken.
    """
    modes = [(module, module.training) for module in method.modules()]
    method.eval()
    weights = next(method.parameters())
    kind = weights.device.type
    features, numbers = [], []
    # The networks are compiled for training only: compiling them for these few passes would take longer.
    with torch.compiler.set_stance("force_eager"), closing(feed.batches(chosen.split(BATCH))) as batches:
        for batch in batches:
            view = evaluation_view(batch.images, batch.sizes, config.views).to(weights.dtype)
            with torch.autocast(kind, torch.bfloat16, enabled=config.compute.precision == "bf16-mixed"):
                features.append(method.encode(view).features.float())  # type: ignore[operator]
            numbers.append(batch.index)
    for module, mode in modes:
        module.training = mode
    return torch.cat(features), torch.cat(numbers)
