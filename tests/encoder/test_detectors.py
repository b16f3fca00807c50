"""Detectors on Gaussian toy features with known answers; OOD metrics against scikit-learn."""

from dataclasses import replace

import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from prosmin.encoder import detectors as ood
from prosmin.errors import ProsminError
from prosmin.evaluation.metrics.ranking import ood_metrics


def gaussian(size: int, dim: int, seed: int) -> torch.Tensor:
    return torch.randn(size, dim, generator=torch.Generator().manual_seed(seed))


def about_a_direction(size: int, spread: list[float], seed: int) -> torch.Tensor:
    """Features around the first axis, with a standard deviation for each of the others, of any length."""
    features = gaussian(size, len(spread) + 1, seed) * torch.tensor([0.0, *spread])
    features[:, 0] = 1.0
    return features * (1 + torch.rand(size, 1, generator=torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize("name", ["knn_distance", "mahalanobis", "relative_mahalanobis"])
def test_other_directions_score_higher_at_any_length(name: str) -> None:
    train, same = about_a_direction(1000, [0.1] * 7, 0), about_a_direction(300, [0.1] * 7, 1)
    other = same.roll(1, dims=1)
    detector = ood.DETECTORS[name](train)
    # For a single Gaussian the relative distance is nearly 0; its own tests are below.
    assert name == "relative_mahalanobis" or ood_metrics(detector(same), detector(other))["auroc"] == 1.0
    torch.testing.assert_close(detector(same), detector(100 * same), atol=1e-3, rtol=1e-3)


def test_knn_distance_is_the_kth_distance_on_the_sphere() -> None:
    angles = torch.linspace(0, 0.9, 100)
    train = torch.stack([angles.cos(), angles.sin()], 1) * 3
    detector = ood.fit_knn_distance(train, k=4)
    query = torch.tensor([[7.0, 0.0]])
    # The fourth neighbour of angle 0 is 3 steps away: a chord of 2 sin(angle / 2).
    torch.testing.assert_close(detector(query), 2 * torch.sin(angles[3] / 2)[None], atol=1e-4, rtol=0)
    sizes = {2: 2, 100: 2, 2_400: 2, 2_600: 3, 10_000: 10, 60_000: 50}  # a thousandth of the bank, from 2 to 50
    assert {n: ood.fit_knn_distance(torch.ones(n, 2)).k for n in sizes} == sizes
    with pytest.raises(ProsminError, match=r"101.*1 to 100"):
        ood.fit_knn_distance(train, k=101)


def test_knn_distance_leaves_out_the_query_s_own_group() -> None:
    angles = torch.tensor([0.0, 0.1, 0.3, 0.7])
    train = torch.stack([angles.cos(), angles.sin()], 1)
    detector = replace(ood.fit_knn_distance(train, k=1), groups=torch.tensor([5, 5, 6, 7]))
    expected = 2 * torch.sin(torch.tensor([0.3, 0.2, 0.2, 0.4]) / 2)
    torch.testing.assert_close(detector(train, torch.tensor([5, 5, 6, 7])), expected)
    torch.testing.assert_close(detector(train), torch.zeros(4), atol=1e-3, rtol=0)  # no group: the image itself


def test_similarity_norm_is_the_nearest_cosine_times_the_length() -> None:
    train = torch.tensor([[2.0, 0.0], [0.0, 5.0]])
    queries = torch.tensor([[3.0, 0.0], [0.3, 0.0], [3.0, 4.0], [-1.0, 0.0]])
    # Cosines to the nearest of two axes: 1, 1, 4 / 5 and 0; lengths 3, 0.3, 5 and 1.
    torch.testing.assert_close(ood.fit_similarity_norm(train)(queries), torch.tensor([-3.0, -0.3, -4.0, 0.0]))


def test_distance_and_scale_is_in_standard_deviations_of_training() -> None:
    angles = torch.linspace(0, 0.9, 100)
    train = torch.stack([angles.cos(), angles.sin()], 1)
    log_scale = torch.tensor([1.0, 3.0]).repeat(50)  # mean 2, standard deviation 1
    joint = ood.fit_distance_and_scale(ood.fit_knn_distance(train, k=1), train, log_scale)
    # The nearest other image is a step away: chords of 0.9 / 99.
    mean, _ = joint.distances
    assert mean == pytest.approx(2 * torch.sin(angles[1] / 2).item(), rel=1e-2)
    assert joint.log_scales == pytest.approx((2.0, 1.0))
    known = ood.DistanceAndScale(distances=(0.5, 0.25), log_scales=(2.0, 1.0))
    score = known(torch.tensor([0.5, 1.0, 0.0]), torch.tensor([2.0, 3.0, 5.0]))
    torch.testing.assert_close(score, torch.tensor([0.0, 3.0, 1.0]))
    constant = ood.fit_distance_and_scale(ood.fit_knn_distance(train), train, torch.ones(100))
    assert torch.isfinite(constant(torch.zeros(1), torch.ones(1))).all()


def test_distance_and_scale_detects_more_than_either_if_they_are_independent() -> None:
    """Shifted by one standard deviation each: AUROC Phi(1 / sqrt 2) = 0.760 alone, Phi(1) = 0.841 together."""
    generator = torch.Generator().manual_seed(0)
    inside, outside = (torch.randn(2, 40_000, generator=generator) + shift for shift in (0.0, 1.0))
    joint = ood.DistanceAndScale(distances=(0.0, 1.0), log_scales=(0.0, 1.0))
    together = ood_metrics(joint(*inside), joint(*outside))["auroc"]
    alone = ood_metrics(inside[0], outside[0])["auroc"]
    # A standard error of 0.002 with 40,000 images on each side.
    assert together == pytest.approx(0.8413, abs=6e-3)
    assert alone == pytest.approx(0.7602, abs=6e-3)


def test_mahalanobis_is_the_textbook_form_and_chi_squared_on_training() -> None:
    train = about_a_direction(4000, [0.05, 0.01, 0.002], 0)
    detector = ood.fit_mahalanobis(train)
    normal = torch.nn.functional.normalize(train.double(), dim=1)
    centred = normal - normal.mean(0)
    inverse = torch.linalg.inv(centred.T @ centred / 4000 + 1e-6 * centred.square().sum(1).mean() / 4 * torch.eye(4))
    textbook = torch.einsum("ni,ij,nj->n", centred, inverse, centred)
    torch.testing.assert_close(detector(train).double(), textbook, atol=1e-3, rtol=1e-4)
    # The mean of x' covariance^-1 x over training is the number of dimensions; the ridge removes a little.
    assert detector(train).mean() == pytest.approx(4, abs=0.1)


def test_mahalanobis_detects_a_shift_in_a_narrow_direction_that_knn_misses() -> None:
    train, same = about_a_direction(3000, [0.3, 0.3, 0.01], 0), about_a_direction(500, [0.3, 0.3, 0.01], 1)
    shifted = same.clone()
    shifted[:, 3] += 0.06 * shifted[:, 0]
    mahalanobis, knn = ood.fit_mahalanobis(train), ood.fit_knn_distance(train, k=50)
    assert ood_metrics(mahalanobis(same), mahalanobis(shifted))["auroc"] > 0.97
    assert ood_metrics(knn(same), knn(shifted))["auroc"] < 0.9


def test_a_shift_in_a_direction_without_training_variance_is_detected() -> None:
    train, same = about_a_direction(500, [0.2, 0.2, 0.0], 0), about_a_direction(100, [0.2, 0.2, 0.0], 1)
    moved = same.clone()
    moved[:, 3] += 0.01 * moved[:, 0]
    for detector in (ood.fit_mahalanobis(train), ood.fit_residual(train, dim=3)):
        assert ood_metrics(detector(same), detector(moved))["auroc"] == 1.0


def test_relative_mahalanobis_detects_images_between_clusters() -> None:
    def around(centres: torch.Tensor, size: int, seed: int) -> torch.Tensor:
        return centres[torch.arange(size) % len(centres)] + 0.05 * gaussian(size, 3, seed)

    ends = torch.cat([torch.eye(3), -torch.eye(3)])  # six clusters on the axes; OOD images in the eight corners
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 3) / 3**0.5
    train, same, other = around(ends, 1200, 0), around(ends, 300, 1), around(corners, 300, 2)
    relative, whole = ood.fit_relative_mahalanobis(train, clusters=6), ood.fit_mahalanobis(train)
    assert ood_metrics(relative(same), relative(other))["auroc"] == 1.0
    # One Gaussian over all clusters is as wide in the corners as on the axes.
    assert 0.3 < ood_metrics(whole(same), whole(other))["auroc"] < 0.7


def test_relative_mahalanobis_is_the_difference_of_two_textbook_distances() -> None:
    train, queries = (
        about_a_direction(600, [0.5, 0.3, 0.1], 0).double(),
        about_a_direction(20, [0.9, 0.9, 0.9], 1).double(),
    )
    normal, query = (torch.nn.functional.normalize(x, dim=1) for x in (train, queries))
    found = KMeans(3, n_init=4, random_state=0).fit(normal.numpy())
    centres, assignment = torch.from_numpy(found.cluster_centers_), found.labels_

    def distance(points: torch.Tensor, residuals: torch.Tensor) -> torch.Tensor:
        covariance = residuals.T @ residuals / 600
        covariance += 1e-6 * covariance.diagonal().mean() * torch.eye(4)
        return torch.einsum("ni,ij,nj->n", points, torch.linalg.inv(covariance), points)

    within = torch.stack([distance(query - centre, normal - centres[assignment]) for centre in centres])
    whole = distance(query - normal.mean(0), normal - normal.mean(0))
    got = ood.fit_relative_mahalanobis(train, clusters=3)(queries)
    torch.testing.assert_close(got.double(), within.amin(0) - whole, atol=1e-2, rtol=1e-4)


def test_residual_is_the_length_beyond_the_principal_subspace() -> None:
    spread = torch.tensor([5.0, 4.0, 0.1, 0.1])
    basis = torch.linalg.qr(gaussian(4, 4, 3))[0]
    train = (gaussian(5000, 4, 0) * spread + 10) @ basis
    inside, outside = torch.tensor([30.0, -30.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, 2.0, -1.5])
    detector = ood.fit_residual(train)
    queries = (10 + torch.stack([inside, outside, inside + outside])) @ basis
    # The axes are estimated from 5000 images: far out along the subspace they err by parts in a thousand.
    torch.testing.assert_close(detector(queries), torch.tensor([0.0, 2.5, 2.5]), atol=0.1, rtol=0)


def test_metrics_agree_with_scikit_learn_on_scores_in_the_thousands() -> None:
    inside, outside = 5000 + 1000 * gaussian(400, 1, 0)[:, 0], 7000 + 1000 * gaussian(250, 1, 1)[:, 0]
    for a, b in ((inside, outside), ((inside / 500).round(), (outside / 500).round())):
        scores = torch.cat([a, b]).double().numpy()
        truth = torch.cat([torch.zeros(400), torch.ones(250)]).numpy()
        rising, reach, _ = roc_curve(truth, scores, drop_intermediate=False)
        falling, accepted, _ = roc_curve(1 - truth, -scores, drop_intermediate=False)
        assert ood_metrics(a, b) == pytest.approx(
            {
                "auroc": roc_auc_score(truth, scores),
                "aupr_in": average_precision_score(1 - truth, -scores),
                "aupr_out": average_precision_score(truth, scores),
                "fpr_at_95_tpr_in": falling[accepted >= 0.95].min(),
                "fpr_at_95_tpr_out": rising[reach >= 0.95].min(),
            },
            rel=1e-12,
        )


def test_the_two_readings_of_fpr95_by_hand() -> None:
    inside = torch.arange(1.0, 21.0)  # 95 % of these are accepted up to 19
    outside = torch.cat([torch.tensor([0.5, 19.0, 19.5]), torch.full((37,), 30.0)])  # 95 % are flagged from 19.5
    got = ood_metrics(inside, outside)
    assert got["fpr_at_95_tpr_in"] == 2 / 40
    assert got["fpr_at_95_tpr_out"] == 1 / 20


def test_a_constant_score_is_chance() -> None:
    got = ood_metrics(torch.ones(30), torch.ones(10))
    assert got == {
        "auroc": 0.5, "aupr_in": 0.75, "aupr_out": 0.25, "fpr_at_95_tpr_in": 1.0, "fpr_at_95_tpr_out": 1.0
    }  # fmt: skip


def test_relative_mahalanobis_with_fewer_distinct_images_than_clusters() -> None:
    """scikit-learn warns about it; a warning is an error here."""
    assert ood.fit_relative_mahalanobis(torch.eye(3)[:2].repeat(3, 1), clusters=4)(torch.ones(5, 3)).shape == (5,)


@pytest.mark.parametrize(
    ("inside", "outside", "message"),
    [
        (torch.ones(5), torch.ones(1), "OOD scores have shape"),
        (torch.ones(1), torch.ones(5), "in-distribution scores have shape"),
        (torch.ones(5), torch.tensor([1.0, torch.nan]), "not finite"),
    ],
)
def test_bad_scores_are_named(inside: torch.Tensor, outside: torch.Tensor, message: str) -> None:
    with pytest.raises(ProsminError, match=message):
        ood_metrics(inside, outside)


@pytest.mark.parametrize("name", list(ood.DETECTORS))
def test_bad_training_features_are_named(name: str) -> None:
    with pytest.raises(ProsminError, match="2 images"):
        ood.DETECTORS[name](torch.ones(1, 4))
    with pytest.raises(ProsminError, match="not finite"):
        ood.DETECTORS[name](torch.full((5, 4), torch.nan))
