"""Spearman's correlation against scipy; sharpness by hand."""

import pytest
import torch
from scipy import stats

from coloured import coloured
from prosmin.config import ViewsConfig
from prosmin.data.corruptions.generate import corrupt
from prosmin.evaluation.metrics.ranking import spearman
from prosmin.evaluation.severity import laplacian_variance, sharpness


@pytest.mark.parametrize("ties", [False, True])
def test_spearman_agrees_with_scipy_row_by_row(ties: bool) -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(4, 60, generator=random)
    y = x.exp() + torch.randn(4, 60, generator=random)
    if ties:
        x, y = x.round(), y.round()
    expected = [stats.spearmanr(a.numpy(), b.numpy()).statistic for a, b in zip(x, y, strict=True)]
    assert spearman(x, y).tolist() == pytest.approx(expected, abs=1e-12)


def test_spearman_of_a_monotone_pair_and_of_a_constant() -> None:
    x = torch.tensor([3.0, 1.0, 2.0])
    assert spearman(x, x.exp()).item() == pytest.approx(1)
    assert spearman(x, -x).item() == pytest.approx(-1)
    assert spearman(x, torch.ones(3)).isnan()


def test_the_laplacian_s_variance_by_hand() -> None:
    flat, ramp = torch.full((4, 5), 0.3), torch.arange(5.0).expand(4, 5)
    point = torch.zeros(4, 5)
    point[1, 2] = 1.0  # of the six inner pixels: -4 there, 1 left, right and below
    got = laplacian_variance(torch.stack([flat, ramp, point]))
    values = torch.tensor([-4.0, 1.0, 1.0, 1.0, 0.0, 0.0])
    torch.testing.assert_close(got, torch.tensor([0.0, 0.0, values.var(correction=0).item()]))


def test_blur_takes_sharpness_away() -> None:
    views = ViewsConfig(global_size=32)
    pictures = coloured(6, side=32)
    clean, blurred = (
        sharpness(p, views, device=torch.device("cpu"))
        for p in (pictures, corrupt(pictures, "gaussian_blur", 2, seed=0))
    )
    assert clean.shape == (6,)
    assert bool((blurred < 0.1 * clean).all())
