"""The statistics of an encoder without training: of BatchNorm and of whitening, from given images."""

import pytest
import torch
from torch import Tensor

from coloured import coloured
from prosmin.encoder import Encoder, set_statistics, statistics, untrained
from prosmin.models.whitening import BatchWhitening
from tiny_methods import WHITENED_HEADS, tiny_method

BATCH = 32


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(statistics, "_BATCH", BATCH)


@pytest.fixture
def encoder() -> Encoder:
    return untrained(tiny_method("prosmin", **WHITENED_HEADS))


def whitening(encoder: Encoder) -> BatchWhitening:
    return encoder.method.get_submodule("online.projector.norm.1")


def averages(encoder: Encoder) -> list[Tensor]:
    found = whitening(encoder).averages
    return [tensor.clone() for tensor in (found.mean, found.covariance, found.matrix)]


def test_whitening_has_the_mean_over_all_batches(encoder):
    seen = []
    hook = whitening(encoder).register_forward_hook(lambda _, given, __: seen.append(given[0].double()))
    set_statistics(encoder, coloured(12 * BATCH))
    hook.remove()
    assert [len(batch) for batch in seen] == [BATCH] * 12
    mean, covariance, _ = averages(encoder)
    torch.testing.assert_close(mean, torch.stack([batch.mean(0) for batch in seen]).mean(0))
    each = torch.stack([batch.T.cov(correction=0) for batch in seen])
    torch.testing.assert_close(covariance, each.mean(0))


def test_whitening_leaves_out_a_last_batch_with_a_singular_covariance(encoder):
    dim = len(whitening(encoder).averages.mean)
    assert dim < BATCH
    expected = averages(set_statistics(encoder, coloured(BATCH)))
    set_statistics(encoder, coloured(BATCH, seed=1))  # what was there before does not count
    found = averages(set_statistics(encoder, coloured(BATCH + 2)))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    target = encoder.method.get_submodule("online.projector")(encoder.features(coloured(BATCH + 2)))
    assert 0.5 < target.var(0).mean() < 1.5
    for count in (BATCH + dim, 2):  # enough, and the only ones
        assert not torch.equal(averages(set_statistics(encoder, coloured(count)))[0], expected[0])


def test_batchnorm_leaves_out_a_last_batch_of_one_image():
    one, alone, two = (set_statistics(untrained(tiny_method("prosmin")), coloured(BATCH + n)) for n in (1, 0, 2))
    pictures = coloured(BATCH)
    assert torch.equal(one.features(pictures), alone.features(pictures))
    assert not torch.equal(two.features(pictures), alone.features(pictures))
