"""The half-whitened space: its covariance, its shrinkage, what it does not depend on, and few or odd images."""

import pytest
import torch
import torch.nn.functional as F
from sklearn.covariance import LedoitWolf
from torch import Tensor

from prosmin.encoder.space import Space, fit_space
from prosmin.errors import ProsminError


def uneven(count: int, dim: int, *, seed: int) -> Tensor:
    """Features as networks give them: a large common part, and directions that vary by a factor of 10."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim, generator=random) * torch.linspace(0.2, 2, dim) + 5


def cosines(space: Space, features: Tensor) -> Tensor:
    return space(features) @ space(features).T


def test_each_direction_is_divided_by_the_fourth_root_of_its_variance():
    """Four points with variances 16 and 1: the directions 4 and 1 long become 2 and 1 long, relatively."""
    points = torch.tensor([[4.0, 1.0], [4.0, -1.0], [-4.0, 1.0], [-4.0, -1.0]]).repeat(5000, 1) + 100
    space = fit_space(points)  # 20,000 points: the shrinkage is 32 / 20,000 / 112.5 = 1.4e-5
    torch.testing.assert_close(space.mean, torch.tensor([100.0, 100.0]))
    found = space(torch.tensor([[104.0, 101.0]]))
    torch.testing.assert_close(found.abs().sort().values, torch.tensor([[1.0, 2.0]]) / 5**0.5, rtol=1e-3, atol=0)


def test_the_covariance_becomes_its_square_root():
    """With 40,000 images the shrinkage is 2e-4 of the mean variance: 1 % of the smallest, 0.5 % of its root."""
    features = uneven(40_000, 6, seed=0).double()
    space = fit_space(features)
    covariance = torch.cov(features.T, correction=0)
    mixed = space.matrix.double()
    variance, axes = torch.linalg.eigh(covariance)
    root = axes @ torch.diag(variance.sqrt()) @ axes.T
    # matrix' C matrix has the eigenvalues of the square root of C, up to the unit, the mean variance
    unit = covariance.diagonal().mean().sqrt()
    found = torch.linalg.eigvalsh(mixed.T @ covariance @ mixed)
    torch.testing.assert_close(found, torch.linalg.eigvalsh(root) * unit, rtol=1e-2, atol=0)
    # and matrix matrix' is the inverse of that root, axes included
    torch.testing.assert_close(mixed @ mixed.T @ root, unit * torch.eye(6).double(), rtol=0, atol=1e-2)


@pytest.mark.parametrize(("count", "dim"), [(12, 30), (40, 30), (500, 8)])
def test_against_the_covariance_of_scikit_learn(count, dim):
    features, new = uneven(count, dim, seed=1), uneven(20, dim, seed=2).double()
    covariance = torch.from_numpy(LedoitWolf().fit(features.double().numpy()).covariance_)
    variance, axes = torch.linalg.eigh(covariance)
    centred = new - features.double().mean(0)
    slow = torch.stack(
        [sum(axes[:, i] * (row @ axes[:, i]) / variance[i] ** 0.25 for i in range(dim)) for row in centred]
    )
    slow = F.normalize(slow, dim=1)
    torch.testing.assert_close(cosines(fit_space(features), new).double(), slow @ slow.T, rtol=0, atol=1e-5)


def test_a_shift_and_a_rotation_of_all_features_change_no_distance():
    features, new = uneven(60, 12, seed=3), uneven(9, 12, seed=4)
    rotation = torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(5)))[0]
    expected = cosines(fit_space(features), new)
    plain = F.normalize(new, dim=1)
    for change in (lambda x: x + 7, lambda x: x @ rotation, lambda x: 30 * x):
        found = cosines(fit_space(change(features)), change(new))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)  # a shift by 7 costs a digit of float32
    assert (expected - plain @ plain.T).abs().max() > 0.5  # which the cosine of the features would not notice


@pytest.mark.parametrize("count", [2, 3, 10])
def test_few_images_do_little_but_centre(count):
    """Ten images say little about 384 directions."""
    features, new = uneven(count, 384, seed=6), uneven(100, 384, seed=7)
    centred = F.normalize(new - features.mean(0), dim=1)
    change = (cosines(fit_space(features), new) - centred @ centred.T).abs()
    assert change.max() < 0.1
    assert change.mean() < 0.02


def test_two_images_only_centre():
    """Their covariance has one direction; nothing says that the others do not vary."""
    features, new = uneven(2, 16, seed=8), uneven(5, 16, seed=9)
    centred = F.normalize(new - features.mean(0), dim=1)
    torch.testing.assert_close(cosines(fit_space(features), new), centred @ centred.T, rtol=0, atol=1e-5)


def test_one_image_changes_nothing():
    """Centring would leave it without a direction."""
    new = uneven(5, 16, seed=10)
    plain = F.normalize(new, dim=1)
    torch.testing.assert_close(cosines(fit_space(uneven(1, 16, seed=11)), new), plain @ plain.T, rtol=0, atol=1e-5)


@pytest.mark.parametrize("value", [0.0, 0.1, 3e4])
def test_constant_features(value):
    space = fit_space(torch.full((30, 8), value))
    for features in (torch.full((30, 8), value), uneven(4, 8, seed=12)):
        assert space(features).isfinite().all()
    assert (space(uneven(4, 8, seed=12)).norm(dim=1) - 1).abs().max() < 1e-5


def test_a_direction_that_never_varies_stays_finite_and_counts():
    features = uneven(200, 8, seed=13)
    features[:, 3] = 1
    found = fit_space(features)(features[:1] + F.one_hot(torch.tensor([3]), 8))
    assert found.isfinite().all()
    assert found @ fit_space(features)(features[:1]).T < 0.9  # unlike anything seen


@pytest.mark.parametrize(
    "features",
    [torch.empty(0, 8), torch.zeros(8), torch.full((4, 8), torch.nan), torch.eye(3) / torch.tensor([1.0, 1.0, 0.0])],
)
def test_features_without_a_space_are_refused(features):
    with pytest.raises(ProsminError, match=r"allowed: \(M, D\)|not finite"):
        fit_space(features)
