"""The encoder that a user loads: features, forecast, uncertainty, out-of-distribution score."""

from prosmin.encoder.encoder import (
    LEAST_REFERENCE,
    PRECISIONS,
    UNCERTAINTY_VIEWS,
    Encoder,
    Summary,
    has_batchnorm,
    save_encoder,
    set_statistics,
    untrained,
)
from prosmin.encoder.loading import encoder_folder, load

__all__ = [
    "LEAST_REFERENCE", "PRECISIONS", "UNCERTAINTY_VIEWS", "Encoder", "Summary", "encoder_folder", "has_batchnorm",
    "load", "save_encoder", "set_statistics", "untrained",
]  # fmt: skip
