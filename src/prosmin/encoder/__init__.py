"""The trained encoder that a user loads: features, forecast, uncertainty, out-of-distribution score."""

from prosmin.encoder.encoder import (
    LEAST_REFERENCE,
    PRECISIONS,
    UNCERTAINTY_VIEWS,
    Encoder,
    Summary,
    encoder_folder,
    has_batchnorm,
    load,
    save_encoder,
    set_statistics,
    untrained,
)

__all__ = [
    "LEAST_REFERENCE", "PRECISIONS", "UNCERTAINTY_VIEWS", "Encoder", "Summary", "encoder_folder", "has_batchnorm",
    "load", "save_encoder", "set_statistics", "untrained",
]  # fmt: skip
