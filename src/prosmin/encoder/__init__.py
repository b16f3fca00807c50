"""The encoder that a user loads: features, forecast, uncertainty, out-of-distribution score."""

from prosmin.encoder.encoder import PRECISIONS, UNCERTAINTY_VIEWS, Encoder, Summary, untrained
from prosmin.encoder.file import save_encoder
from prosmin.encoder.known import LEAST_REFERENCE
from prosmin.encoder.loading import encoder_folder, load
from prosmin.encoder.statistics import has_batchnorm, set_statistics

__all__ = [
    "LEAST_REFERENCE", "PRECISIONS", "UNCERTAINTY_VIEWS", "Encoder", "Summary", "encoder_folder", "has_batchnorm",
    "load", "save_encoder", "set_statistics", "untrained",
]  # fmt: skip
