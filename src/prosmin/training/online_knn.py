"""kNN during training: the accuracy of the current features on a held-out tenth of the labelled images."""

from torch import Tensor, nn

from prosmin.config import Config
from prosmin.data.stream import Feed
from prosmin.data.subsets import balanced_subset, held_out_mask
from prosmin.encoder.neighbours import knn_top1
from prosmin.errors import UsageError
from prosmin.training.features import current_features

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

    def __call__(self, method: nn.Module) -> dict[str, float]:
        """Top-1 accuracy on the held-out tenth, as a column of metrics.jsonl; the method does not change."""
        features, numbers = current_features(method, self.feed, self.chosen, self.config)
        assert self.feed.labels is not None
        return {"knn_top1": knn_top1(features, self.feed.labels[numbers], self._held_out(numbers))}

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
