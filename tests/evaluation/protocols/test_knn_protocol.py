"""The knn protocol: the published convention, and the same vote among half-whitened features."""

import torch

from coloured import coloured
from prosmin.encoder import Encoder
from prosmin.encoder.space import Space
from prosmin.evaluation.context import Context
from prosmin.evaluation.options import Options
from prosmin.evaluation.protocols import knn
from prosmin.methods import build_method
from tiny_methods import tiny_method


def measured(encoder: Encoder) -> dict[str, float]:
    sets = {"train": coloured(90), "test": coloured(45, seed=1)}
    return knn.run(Context(encoder, sets, options=Options(baselines="none"))).metrics


def test_half_whitened_features_are_compared_in_the_encoders_space():
    config = tiny_method("prosmin")
    encoder = Encoder(build_method(config), config)
    size = encoder.features(coloured(2)).shape[1]
    # A space that leaves the features alone gives the published convention.
    encoder.known.background = encoder.background._replace(space=Space(torch.zeros(size), torch.eye(size)))
    found = measured(encoder)
    assert found["top1_half_whitened"] == found["top1"]
    # One that keeps a single coordinate leaves the neighbours to chance, up to its sign.
    encoder.known.background = encoder.background._replace(space=Space(torch.zeros(size), torch.eye(size)[:, :1]))
    blind = measured(encoder)
    assert blind["top1"] == found["top1"]
    assert blind["top1_half_whitened"] < found["top1"]
