"""kNN while training: how well the present features tell a held-out tenth of the labelled pictures."""

import torch
from torch import nn

from prosmin.config import Config
from prosmin.data.feed import Feed
from prosmin.data.views import evaluation_view
from prosmin.errors import UsageError
from prosmin.evaluation.held_out import held_out_mask, knn_top1
from prosmin.evaluation.subsets import balanced_subset

BATCH = 256
SEED = 0  # the same pictures in every run of a set, whatever the run's own seed


class OnlineKnn:
    """The pictures are chosen once: a balanced part of the set, of which a tenth is asked for by the rest."""

    def __init__(self, feed: Feed, config: Config) -> None:
        labels = feed.labels
        if labels is None:
            raise UsageError(
                f"training.knn_every is {config.training.knn_every}, but {config.data.spec} has no labels. "
                "Leave it out, or give labelled pictures."
            )
        share = min(1.0, config.training.knn_pictures / len(labels))
        self.chosen = balanced_subset(labels, share, seed=SEED)
        self.feed, self.config = feed, config

    @torch.no_grad()
    def __call__(self, method: nn.Module) -> float:
        """Top-1 of the held-out tenth; the method is left as it was."""
        modes = [(module, module.training) for module in method.modules()]
        method.eval()
        device = next(method.parameters()).device
        features, numbers = [], []
        # The networks are compiled for training alone: compiling them again for these few passes would take longer.
        with torch.compiler.set_stance("force_eager"):
            for batch in self.feed.batches(self.chosen.split(BATCH)):
                view = evaluation_view(batch.images, batch.sizes, self.config.views)
                with torch.autocast(device.type, torch.bfloat16, enabled=self._narrow):
                    features.append(method.encode(view).features.float())  # type: ignore[operator]
                numbers.append(batch.index)
        for module, mode in modes:
            module.training = mode
        number = torch.cat(numbers)
        assert self.feed.labels is not None
        labels = self.feed.labels[number]
        keys = [self.feed.key(int(i)) for i in number]
        held = held_out_mask(labels, keys, self.config.data.spec, seed=SEED)
        return knn_top1(torch.cat(features), labels, held)

    @property
    def _narrow(self) -> bool:
        return self.config.compute.precision == "bf16-mixed"
