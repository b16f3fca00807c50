"""Whitened outputs have mean 0 and covariance I, whatever invertible linear map the network applies before."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from prosmin.config import ProsminHeads, ProsminTarget
from prosmin.models.heads import GaussianPredictor
from prosmin.models.target import make_target, update_target
from prosmin.models.whitening import BatchWhitening, Whitening, inverse_root, make_centre, unit_variance
from prosmin.scoring import gaussian_energy_score
from prosmin.training.health import effective_rank

K = 24


def _raw(seed: int = 0, *, views: int = 2, images: int = 64) -> Tensor:
    """Correlated outputs (G, B, K) with a mean, in float64."""
    random = torch.Generator().manual_seed(seed)
    mixing = torch.randn(K, K, generator=random, dtype=torch.float64)
    return 3.0 + torch.randn(views, images, K, generator=random, dtype=torch.float64) @ mixing


def _fitted(raw: Tensor, *, eps: float = 1e-9, momentum: float = 0.0) -> Whitening:
    whitening = Whitening(K, momentum=momentum, eps=eps)
    whitening.update(whitening.batch_statistics(raw))
    return whitening


def _reference(covariance: Tensor, eps: float) -> Tensor:
    """The symmetric inverse root by eigenvalues, in float64."""
    shift = eps * covariance.trace() / len(covariance)
    values, vectors = torch.linalg.eigh(covariance + shift * torch.eye(len(covariance), dtype=torch.float64))
    return vectors @ torch.diag(values.rsqrt()) @ vectors.T


def test_a_new_whitening_changes_nothing():
    raw = _raw()
    assert torch.equal(Whitening(K, momentum=0.9, eps=1e-3)(raw), raw)


def test_whitened_batches_have_mean_zero_and_identity_covariance():
    raw = _raw()
    white = _fitted(raw)(raw).flatten(0, 1)
    torch.testing.assert_close(white.mean(0), torch.zeros(K, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(white.T.cov(correction=0), torch.eye(K, dtype=torch.float64), atol=1e-5, rtol=0)


def test_any_invertible_linear_map_of_the_outputs_leaves_the_same_target_up_to_a_rotation():
    """Distances between whitened outputs, all that the Euclidean score uses, do not change."""
    raw = _raw()
    random = torch.Generator().manual_seed(1)
    mapped = raw @ torch.randn(K, K, generator=random, dtype=torch.float64) - 7.0
    one, other = (_fitted(x)(x).flatten(0, 1) for x in (raw, mapped))
    torch.testing.assert_close(torch.cdist(other, other), torch.cdist(one, one), atol=1e-4, rtol=1e-4)
    turned = torch.linalg.svd(one.T @ other)[1] / len(one)  # singular values of the map between both
    torch.testing.assert_close(turned, torch.ones(K, dtype=torch.float64), atol=1e-3, rtol=0)


@pytest.mark.parametrize("eps", [1e-1, 1e-3, 1e-6])
@pytest.mark.parametrize("kind", ["random", "steep", "rank one"])
def test_the_inverse_root_agrees_with_eigenvalues(eps, kind):
    x = torch.randn(96, 48, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if kind == "steep":
        x = x * torch.arange(1, 49, dtype=torch.float64) ** -2
    covariance = torch.outer(x[0], x[0]) if kind == "rank one" else x.T @ x / len(x)
    expected = _reference(covariance, eps)
    assert (inverse_root(covariance, eps=eps) - expected).norm() < 1e-6 * expected.norm()


def test_the_averages_follow_the_batches():
    """Equal weights until 1 / (1 - momentum) batches, then a moving average, against a loop over batches."""
    whitening = Whitening(K, momentum=0.75, eps=1e-3)
    mean, covariance = torch.zeros(K, dtype=torch.float64), torch.zeros(K, K, dtype=torch.float64)
    for seed in range(6):
        raw = _raw(seed)
        whitening.update(whitening.batch_statistics(raw))
        weight = max(1 / (seed + 1), 0.25)
        flat = raw.flatten(0, 1)
        mean = (1 - weight) * mean + weight * flat.mean(0)
        covariance = (1 - weight) * covariance + weight * flat.T.cov(correction=0)
    torch.testing.assert_close(whitening.mean, mean)
    torch.testing.assert_close(whitening.covariance, covariance)
    torch.testing.assert_close(whitening.matrix, _reference(covariance, 1e-3), atol=1e-8, rtol=1e-8)


def test_parts_of_a_batch_average_to_the_whole():
    """As processes and accumulation average them."""
    whitening, raw = _fitted(_raw(1)), _raw()
    parts = torch.stack([whitening.batch_statistics(part) for part in raw.chunk(4, dim=1)])
    torch.testing.assert_close(parts.mean(0), whitening.batch_statistics(raw))


@pytest.mark.parametrize("rank", [0, 1, K // 2])
def test_a_singular_covariance_gives_finite_targets(rank):
    random = torch.Generator().manual_seed(0)
    raw = torch.randn(2, 64, rank, generator=random) @ torch.randn(rank, K, generator=random) + 1.0
    white = _fitted(raw, eps=1e-6)(raw).flatten(0, 1)
    assert white.isfinite().all()
    variances = torch.linalg.eigvalsh(white.double().T.cov(correction=0))
    assert int((variances > 0.5).sum()) == rank
    assert variances.max() < 1.01


def test_bf16_outputs_are_whitened_in_float32_or_wider():
    raw = _raw().bfloat16()
    whitening = _fitted(raw, eps=1e-6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        white = whitening(raw)
        statistics = whitening.batch_statistics(raw)
    assert white.dtype == torch.float32
    assert statistics.dtype == torch.float64
    covariance = white.double().flatten(0, 1).T.cov(correction=0)
    torch.testing.assert_close(covariance, torch.eye(K, dtype=torch.float64), atol=1e-2, rtol=0)


def test_statistics_and_matrix_are_saved():
    names = {"mean", "covariance", "matrix", "updates"}
    assert Whitening(K, momentum=0.9, eps=1e-3).state_dict().keys() == names
    one, other = _fitted(_raw()), Whitening(K, momentum=0.0, eps=1e-9)
    other.load_state_dict(one.state_dict())
    assert torch.equal(other(_raw(1)), one(_raw(1)))


def test_it_compiles():
    raw = _raw()
    whitening = _fitted(raw)
    compiled = torch.compile(whitening.forward, dynamic=False, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(raw), whitening(raw))


def _rank_after_training(whitening: str, *, steps: int = 400) -> float:
    """Effective rank of a linear target network whose online network forecasts one noisy view from another.

    4 of 32 directions of the inputs are shared by both views almost fully, the others weakly.
    """
    torch.manual_seed(0)
    shared = torch.cat([torch.full((4,), 0.9), torch.full((28,), 0.3)])
    online = nn.Linear(32, 16, bias=False)
    predictor = GaussianPredictor(ProsminHeads(dim=16, predictor=False, initial_scale=1.0))
    target, centre = make_target(online), make_centre(ProsminTarget(whitening=whitening), 16)
    optimizer = torch.optim.AdamW([*online.parameters(), *predictor.parameters()], lr=0.01)
    for _ in range(steps):
        signal = torch.randn(256, 32) * shared.sqrt()
        one, two = (signal + torch.randn(256, 32) * (1 - shared).sqrt() for _ in range(2))
        raw = target(two)
        gaussian_energy_score(*predictor(online(one)), centre(raw), validate=False).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        update_target(target, online, momentum=0.95)
        centre.update(centre.batch_statistics(raw))
    return float(effective_rank(target(two)))


def test_a_centred_target_loses_rank_and_a_whitened_one_keeps_it():
    """A random linear map of this kind has rank 14.8 of 16."""
    assert _rank_after_training("centre") < 10
    assert _rank_after_training("whiten") > 14


def _rows(seed: int = 0, *, count: int = 128) -> Tensor:
    return _raw(seed, views=1, images=count)[0]


def _identity() -> Tensor:
    return torch.eye(K, dtype=torch.float64)


def test_the_layer_whitens_every_batch_in_training():
    x = _rows()
    white = BatchWhitening(K, eps=1e-9)(x)
    torch.testing.assert_close(white.mean(0), torch.zeros(K, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(white.T.cov(correction=0), _identity(), atol=1e-5, rtol=0)
    expected = (x - x.mean(0)) @ _reference(x.T.cov(correction=0), 1e-9)
    torch.testing.assert_close(white, expected, atol=1e-6, rtol=0)


def test_training_computes_one_inverse_root_and_evaluation_that_of_the_averages(monkeypatch):
    counted = []
    monkeypatch.setattr(
        "prosmin.models.whitening.inverse_root", lambda x, *, eps: counted.append(x) or inverse_root(x, eps=eps)
    )
    layer = BatchWhitening(K, eps=1e-3)
    for seed in range(3):
        layer(_rows(seed))
    assert len(counted) == 3
    layer.eval()
    torch.testing.assert_close(layer.averages.matrix, _reference(layer.averages.covariance, 1e-3), atol=1e-8, rtol=1e-8)
    layer.eval()(_rows())
    assert len(counted) == 4


def test_a_state_saved_in_training_evaluates_as_the_layer_does():
    layer = BatchWhitening(K, eps=1e-3, momentum=0.5)
    for seed in range(3):
        layer(_rows(seed))
    state = copy.deepcopy(make_target(nn.Sequential(layer)).state_dict())
    before, after = (nn.Sequential(BatchWhitening(K, eps=1e-3)) for _ in range(2))
    before.load_state_dict(state)
    after.eval().load_state_dict(state)
    expected = layer.eval()(_rows(7))
    assert torch.equal(before.eval()(_rows(7)), expected)
    assert torch.equal(after(_rows(7)), expected)
    pickled = pickle.loads(pickle.dumps(layer))
    assert all(torch.equal(pickled.state_dict()[name], value) for name, value in layer.state_dict().items())


def test_the_layer_undoes_any_invertible_linear_map_up_to_a_rotation():
    x = _rows()
    mapped = x @ torch.randn(K, K, generator=torch.Generator().manual_seed(1), dtype=torch.float64) - 7.0
    one, other = (BatchWhitening(K, eps=1e-9)(rows) for rows in (x, mapped))
    torch.testing.assert_close(torch.cdist(other, other), torch.cdist(one, one), atol=1e-4, rtol=1e-4)


def test_the_gradient_of_the_layer_is_that_of_the_whole_function():
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    layer = BatchWhitening(3, eps=1e-3)
    assert torch.autograd.gradcheck(layer, (x,))


def _slopes_of_one_direction(layer: BatchWhitening) -> Tensor:
    """Slope of a loss in the size of each direction, (K,), relative to the largest it could be."""
    x = _rows()
    offset = x - x.mean(0)
    directions = torch.linalg.eigh(offset.T @ offset)[1]  # others, when they shrink, turn the symmetric root too
    aim = torch.randn(x.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    loss = (layer(x.requires_grad_()) * aim).sum().square()
    along, sizes = torch.autograd.grad(loss, x)[0] @ directions, offset @ directions  # (N, K)
    return (along * sizes).sum(0).abs() / along.norm(dim=0) / sizes.norm(dim=0)


def test_shrinking_a_direction_changes_nothing_and_so_has_no_gradient():
    """Without the statistics' gradient, as for moving averages, shrinking looks worthwhile."""
    layer = BatchWhitening(K, eps=1e-9)
    assert _slopes_of_one_direction(layer).max() < 1e-6
    assert _slopes_of_one_direction(layer.eval()).median() > 0.01


def test_the_layer_uses_averages_in_evaluation():
    layer = BatchWhitening(K, eps=1e-6, momentum=0.5)
    for seed in range(12):
        layer(_rows(0) + 1e-3 * _rows(seed))
    white = layer.eval()(_rows(0))
    torch.testing.assert_close(white.T.cov(correction=0), _identity(), atol=0.02, rtol=0)
    torch.testing.assert_close(layer(_rows(0)[:1]), white[:1])  # whatever else is in the batch
    assert {name.split(".")[0] for name in layer.state_dict()} == {"averages"}


def test_evaluation_has_the_variance_of_training_in_small_batches_of_outputs_that_drift():
    """Averages of W instead of the covariance gave 2.6 times the variance."""
    layer = BatchWhitening(K, eps=1e-3)
    random = torch.Generator().manual_seed(0)
    start, end = (torch.randn(K, K, generator=random, dtype=torch.float64) for _ in range(2))
    trained = []
    for step in range(60):
        share = min(1.0, step / 50)
        x = torch.randn(2 * K, K, generator=random, dtype=torch.float64) @ ((1 - share) * start + share * end)
        trained.append(layer(x).var(0).mean().item())
    x = torch.randn(2000, K, generator=random, dtype=torch.float64) @ end
    # the averages are of about 10 batches, 480 rows for 24 dimensions: seen 0.99 and 0.95
    assert layer.eval()(x).var(0).mean().item() == pytest.approx(sum(trained[-10:]) / 10, rel=0.2)


@pytest.mark.parametrize("rank", [0, 1, K // 2])
def test_the_layer_stays_finite_when_directions_are_missing(rank):
    random = torch.Generator().manual_seed(0)
    x = torch.randn(64, rank, generator=random) @ torch.randn(rank, K, generator=random) + 1.0
    white = BatchWhitening(K, eps=1e-3)(x.requires_grad_())
    white.square().mean().backward()
    assert white.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_the_layer_works_in_float32_or_wider_and_compiles():
    layer, x = BatchWhitening(K, eps=1e-6), _rows().bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        white = layer(x)
    assert white.dtype == torch.float32
    torch.testing.assert_close(white.double().T.cov(correction=0), _identity(), atol=1e-2, rtol=0)
    compiled = torch.compile(layer.forward, dynamic=False, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(_rows()), layer(_rows()))


def test_targets_of_unit_variance_have_one_length_and_keep_their_direction():
    z = unit_variance(_rows())
    torch.testing.assert_close(z.norm(dim=1), torch.full((128,), K**0.5, dtype=torch.float64))
    torch.testing.assert_close(torch.cosine_similarity(z, _rows()), torch.ones(128, dtype=torch.float64))
