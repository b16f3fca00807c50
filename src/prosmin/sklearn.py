"""An encoder as a transformer of scikit-learn: images in, an array of features or scores out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from prosmin.data.inputs import Images
from prosmin.encoder import Encoder, load
from prosmin.errors import ProsminError

OUTPUTS: dict[str, Callable[[Encoder, Images], Tensor]] = {
    "features": Encoder.features,
    "uncertainty": Encoder.uncertainty,
    "ood_score": Encoder.ood_score,
}
"""What `transform` computes, by name."""


class ImageEncoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Images -> features (N, D), or uncertainty or OOD score (N, 1), of an encoder that prosmin.load accepts.

    Images are what the encoder accepts: a list of paths, Pillow images or arrays, or one array (N, H, W, 3) of uint8.
    For uncertainty and ood_score the images given to `fit` are the reference: images that belong. For features `fit`
    only loads the encoder; nothing is trained, and labels are ignored.
    """

    def __init__(
        self,
        encoder: Path | str = "cifar10-vit",
        *,
        output: str = "features",
        device: torch.device | str | None = None,
        batch_size: int | None = None,
    ) -> None:
        self.encoder = encoder
        self.output = output
        self.device = device
        self.batch_size = batch_size

    def fit(self, X: Any, y: Any = None) -> Self:
        """Load the encoder; for a score, store the features of the images X as its reference."""
        if self.output not in OUTPUTS:
            raise ProsminError(f"The output is {self.output!r}; allowed: {', '.join(OUTPUTS)}.")
        encoder = load(self.encoder, device=self.device)
        if self.batch_size is not None:
            encoder.batch_size = self.batch_size
        if self.output != "features":
            encoder.fit_reference(_images(X))
        self.encoder_ = encoder
        return self

    def transform(self, X: Any) -> np.ndarray:
        """float32 (N, D) or (N, 1), a row per image."""
        check_is_fitted(self)
        found = OUTPUTS[self.output](self.encoder_, _images(X))
        return (found if found.ndim == 2 else found[:, None]).numpy()

    @property
    def _n_features_out(self) -> int:
        """Columns, which scikit-learn names imageencoder0, imageencoder1, ..."""
        if self.output != "features":
            return 1
        return cast(int, self.encoder_.method.get_submodule("online.backbone").num_features)


def _images(X: Any) -> Images:
    """X as an encoder takes it: an array of paths, or of images of different sizes, becomes a list."""
    return list(X) if isinstance(X, np.ndarray) and X.ndim == 1 else X
