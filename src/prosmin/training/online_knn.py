"""kNN during training: the accuracy of the current features on a held-out tenth of the labelled images."""

import torch
from torch import Tensor, nn

from prosmin.config import Config
from prosmin.data.stream import Feed
from prosmin.data.subsets import balanced_subset, held_out_mask
from prosmin.data.views import evaluation_view
from prosmin.encoder.neighbours import knn_top1
from prosmin.errors import UsageError

BATCH = 256
SEED = 0  # the same images in all runs on a set, whatever their seeds


class OnlineKnn:
    """Chooses a balanced part of the images once; a tenth of it is classified by the rest."""

    def __init__(self, feed: Feed, config: Config) -> None:
        labels = feed.labels
        if labels is None:
            raise UsageError(
                f"training.knn_every is {config.training.knn_every}, but {config.data.spec} has no labels. "
                "Leave it out, or train on labelled images."
            )
        share = min(1.0, config.training.knn_pictures / len(labels))
        self.chosen = balanced_subset(labels, share, seed=SEED)
        self.feed, self.config = feed, config
        self._held_out(self.chosen)  # an error, if any, comes before the first step

    @torch.no_grad()
    def __call__(self, method: nn.Module) -> float:
        """Top-1 accuracy on the held-out tenth; the method does not change."""
        modes = [(module, module.training) for module in method.modules()]
        method.eval()
        weights = next(method.parameters())
        device = weights.device
        features, numbers = [], []
        # The networks are compiled for training only: compiling them for these few passes would take longer.
        with torch.compiler.set_stance("force_eager"):
            for batch in self.feed.batches(self.chosen.split(BATCH)):
                view = evaluation_view(batch.images, batch.sizes, self.config.views).to(weights.dtype)
                with torch.autocast(device.type, torch.bfloat16, enabled=self.config.compute.precision == "bf16-mixed"):
                    features.append(method.encode(view).features.float())  # type: ignore[operator]
                numbers.append(batch.index)
        for module, mode in modes:
            module.training = mode
        number = torch.cat(numbers)
        assert self.feed.labels is not None
        labels = self.feed.labels[number]
        return knn_top1(torch.cat(features), labels, self._held_out(number))

    def _held_out(self, numbers: Tensor) -> Tensor:
        """Which of the images with these numbers are held out, (N,) mask; an error if none would be."""
        assert self.feed.labels is not None
        keys = [self.feed.key(int(i)) for i in numbers]
        mask = held_out_mask(self.feed.labels[numbers], keys, self.config.data.spec, seed=SEED)
        if not bool(mask.any()):
            raise UsageError(
                f"training.knn_every is {self.config.training.knn_every}, but of the {len(numbers)} labelled images "
                f"of {self.config.data.spec} no tenth can be held out. Leave it out, or give more images per class."
            )
        return mask
