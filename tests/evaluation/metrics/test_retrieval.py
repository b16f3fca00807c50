"""Ranking against scikit-learn; retrieval and risk-coverage against hand-worked cases."""

import itertools
import math

import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from prosmin.errors import ProsminError
from prosmin.evaluation.metrics.ranking import auroc, average_precision
from prosmin.evaluation.metrics.retrieval import r_auroc, right_neighbours, risk_coverage


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("size", [1e-3, 1.0, 5000.0])
def test_areas_agree_with_scikit_learn_for_scores_of_any_size(size: float, ties: bool) -> None:
    random = torch.Generator().manual_seed(0)
    low, high = torch.randn(130, generator=random), torch.randn(70, generator=random) + 1
    if ties:
        low, high = low.round(), high.round()
    low, high = size * (low + 3), size * (high + 3)
    truth = torch.cat([torch.zeros(130), torch.ones(70)]).numpy()
    scores = torch.cat([low, high]).numpy()
    assert auroc(low, high) == pytest.approx(roc_auc_score(truth, scores), rel=1e-12)
    assert average_precision(low, high) == pytest.approx(average_precision_score(truth, scores), rel=1e-12)


def test_areas_by_hand() -> None:
    # Pairs won by the positives {2, 3}: over 1 both, over 2 one and a tie: 3.5 of 4.
    assert auroc(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0])) == 3.5 / 4
    # At 3: 1 of 1 is positive; at 2: 2 of 3.
    assert average_precision(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0])) == pytest.approx((1 + 2 / 3) / 2)


def test_recall_and_r_auroc_by_hand() -> None:
    # On the circle: two of class 0 side by side, then a 1 between a 0 and a 1: its nearest is the wrong one.
    angles = torch.tensor([0.0, 0.1, 1.0, 1.2, 1.6])
    features = torch.stack([angles.cos(), angles.sin()], 1)
    labels = torch.tensor([0, 0, 0, 1, 1])
    # Nearest: 0->1 right, 1->0 right, 2->3 wrong, 3->2 wrong, 4->3 right.
    right = right_neighbours(features, labels)
    assert right.tolist() == [True, True, False, False, True]
    # Wrong {5, 3} against right {1, 2, 4}: one pair of six is lost.
    assert r_auroc(right, torch.tensor([1.0, 2.0, 5.0, 3.0, 4.0])) == pytest.approx(5 / 6)


def test_r_auroc_has_no_value_where_nothing_is_wrong() -> None:
    features = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    right = right_neighbours(features, torch.tensor([0, 0, 1, 1]))
    assert right.all()
    assert math.isnan(r_auroc(right, torch.arange(4.0)))


def test_risk_coverage_by_hand() -> None:
    got = risk_coverage(torch.tensor([True, False, True, False]), torch.tensor([0.1, 0.2, 0.3, 0.4]))
    assert got["coverage"] == [0.25, 0.5, 0.75, 1.0]
    assert got["risk"] == pytest.approx([0, 1 / 2, 1 / 3, 1 / 2])
    assert got["aurc"] == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)
    assert got["aurc_optimal"] == pytest.approx((0 + 0 + 1 / 3 + 1 / 2) / 4)
    assert got["aurc_random"] == 0.5


def test_equal_uncertainties_give_the_mean_over_their_orders() -> None:
    correct = torch.tensor([1, 0, 0, 1, 1])
    uncertainty = torch.tensor([1.0, 2.0, 2.0, 2.0, 3.0])
    orders = [[0, *middle, 4] for middle in itertools.permutations([1, 2, 3])]
    strict = [risk_coverage(correct[order], torch.arange(5.0))["aurc"] for order in orders]
    assert risk_coverage(correct, uncertainty)["aurc"] == pytest.approx(sum(strict) / len(strict))
    flat = risk_coverage(correct, torch.zeros(5))
    assert flat["aurc"] == pytest.approx(flat["aurc_random"])


def test_a_long_curve_is_thinned_and_ends_at_the_error_rate() -> None:
    random = torch.Generator().manual_seed(0)
    correct = torch.rand(5000, generator=random) < 0.8
    got = risk_coverage(correct, -correct.float() + torch.rand(5000, generator=random) / 2)
    assert len(got["coverage"]) == len(got["risk"]) == 100
    assert got["coverage"][-1] == 1.0
    assert got["risk"][-1] == pytest.approx(got["aurc_random"])
    assert got["aurc"] == pytest.approx(got["aurc_optimal"])  # the uncertainty separates right from wrong


def test_bad_input_is_named() -> None:
    with pytest.raises(ProsminError, match="shape"):
        risk_coverage(torch.ones(3), torch.ones(4))
    with pytest.raises(ProsminError, match="not finite"):
        risk_coverage(torch.ones(2), torch.tensor([0.0, torch.nan]))
