"""Calibration metrics against scikit-learn, slow loops, hand-worked cases and known simulations."""

import math
import time

import pytest
import torch
from sklearn.metrics import brier_score_loss, log_loss

from prosmin.errors import ProsminError
from prosmin.evaluation.metrics import calibration
from prosmin.evaluation.metrics.calibration import (
    FLOOR,
    TEMPERATURES,
    classification_metrics,
    fit_temperature,
    reliability,
    temperature_scale,
)
from prosmin.randomness import generator


def simulated(
    size: int, classes: int = 10, *, sharpness: float = 2.0, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and labels drawn from their softmax: the model that states these probabilities is calibrated."""
    random = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(size, classes, generator=random, dtype=torch.float64)
    labels = torch.multinomial(torch.softmax(logits, 1), 1, generator=random)[:, 0]
    return logits, labels


def test_top1_nll_and_brier_agree_with_scikit_learn() -> None:
    logits, labels = simulated(500)
    probabilities = torch.softmax(logits, 1)
    ours = classification_metrics(probabilities, labels, bootstrap=2)
    assert ours["nll"] == pytest.approx(log_loss(labels, probabilities.numpy(), labels=list(range(10))), rel=1e-10)
    theirs = brier_score_loss(labels, probabilities.numpy(), labels=list(range(10)), scale_by_half=False)
    assert ours["brier"] == pytest.approx(theirs, rel=1e-10)
    assert ours["top1"] == pytest.approx(sum(p.argmax() == y for p, y in zip(probabilities, labels, strict=True)) / 500)
    assert all(type(value) is float for value in ours.values())


def test_ece_against_a_slow_loop() -> None:
    logits, labels = simulated(2000, sharpness=3.0)
    probabilities = torch.softmax(1.7 * logits, 1)
    bins: dict[int, list[tuple[float, bool]]] = {}
    for row, label in zip(probabilities, labels, strict=True):
        confidence, answer = row.max(0)
        bins.setdefault(math.ceil(15 * float(confidence)), []).append((float(confidence), bool(answer == label)))
    gaps = [abs(sum(confidence - right for confidence, right in found)) for found in bins.values()]
    ours = classification_metrics(probabilities, labels, bootstrap=2)["ece"]
    assert ours == pytest.approx(sum(gaps) / 2000, abs=1e-9)
    assert ours > 0.02


def test_confidence_one_is_in_the_last_bin() -> None:
    # Bins are closed on the right. By hand: the gaps 0.95 - 1 and 1 - 0 partly cancel, |-.05 + 1| / 2 = .475. With
    # bins closed on the left, as torchmetrics has them, 1.0 has a bin of its own: (.05 + 1) / 2 = .525.
    probabilities = torch.tensor([[0.95, 0.05], [1.0, 0.0]])
    labels = torch.tensor([0, 1])
    assert classification_metrics(probabilities, labels, bootstrap=2)["ece"] == pytest.approx(0.475, abs=1e-6)


def test_hand_worked_case() -> None:
    probabilities = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]], dtype=torch.float64)
    labels = torch.tensor([0, 1, 1, 0])
    got = classification_metrics(probabilities, labels, bins=2, bootstrap=2)
    assert got["top1"] == 0.75
    assert got["nll"] == pytest.approx(-(math.log(0.9) + math.log(0.2) + math.log(0.7) + math.log(0.6)) / 4)
    assert got["brier"] == pytest.approx(2 * (0.1**2 + 0.8**2 + 0.3**2 + 0.4**2) / 4)
    assert got["ece"] == pytest.approx(0.0)  # one bin: mean confidence 0.75, three of four right
    # Two bins of two by confidence: (.6, .7) both right, (.8, .9) one right.
    assert got["adaptive_ece"] == pytest.approx((abs(1.3 - 2) + abs(1.7 - 1)) / 4)
    # Class 0, lower bin {.3: no}, upper bin {.9 yes, .8 no, .6 yes}; class 1 mirrors it.
    assert got["classwise_calibration_error"] == pytest.approx((abs(0.3 - 0) + abs(2.3 - 2)) / 4)


def test_the_class_wise_error_does_not_depend_on_how_many_classes_are_held_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logits, labels = simulated(100)
    probabilities = torch.softmax(logits, 1)
    whole = classification_metrics(probabilities, labels, bootstrap=2)["classwise_calibration_error"]
    monkeypatch.setattr(calibration, "_ENTRIES", 300)  # three classes at a time
    parts = classification_metrics(probabilities, labels, bootstrap=2)["classwise_calibration_error"]
    assert parts == pytest.approx(whole, rel=1e-12)


def test_bins_are_closed_on_the_right() -> None:
    probabilities = torch.tensor([[0.5, 0.25, 0.25], [0.75, 0.125, 0.125], [1.0, 0.0, 0.0]])
    assert reliability(probabilities, torch.tensor([0, 0, 1]), bins=4) == {
        "edges": [0.0, 0.25, 0.5, 0.75, 1.0],
        "confidence": [None, 0.5, 0.75, 1.0],
        "accuracy": [None, 1.0, 1.0, 0.0],
        "count": [0, 1, 1, 1],
    }


def test_nll_is_floored_where_a_probability_is_zero() -> None:
    got = classification_metrics(torch.tensor([[1.0, 0.0]]), torch.tensor([1]), bootstrap=2)
    assert got["nll"] == pytest.approx(-math.log(FLOOR))


def test_adaptive_bins_do_not_depend_on_the_order_of_ties() -> None:
    probabilities = torch.tensor([[0.75, 0.25]] * 40)
    labels = torch.tensor([0] * 30 + [1] * 10)
    assert classification_metrics(probabilities, labels, bootstrap=2)["adaptive_ece"] == pytest.approx(0.0, abs=1e-7)


def test_a_calibrated_model_lands_on_the_floor() -> None:
    found = []
    for seed in range(20):
        logits, labels = simulated(4000, seed=seed)
        found.append(classification_metrics(torch.softmax(logits, 1), labels, bootstrap=2))
    eces = torch.tensor([f["ece"] for f in found])
    floors = torch.tensor([f["ece_floor"] for f in found])
    # The mean of twenty must agree within three of its standard errors; the floors hardly vary.
    assert abs(eces.mean() - floors.mean()) < 3 * eces.std() / 20**0.5
    assert floors.std() < 0.1 * floors.mean()
    assert 0.005 < floors.mean() < 0.03


def test_overconfidence_is_far_above_the_floor() -> None:
    logits, labels = simulated(4000)
    got = classification_metrics(torch.softmax(2 * logits, 1), labels)
    assert got["ece_low"] > 5 * got["ece_floor"]


def test_the_products_equal_test_sets_drawn_and_answers_simulated_one_by_one() -> None:
    logits, labels = simulated(300)
    probabilities = torch.softmax(1.5 * logits, 1)
    got = classification_metrics(probabilities, labels, seed=5, bootstrap=40)

    def ece(probabilities: torch.Tensor, correct: torch.Tensor) -> float:
        confidence = probabilities.amax(1)
        bins = (confidence * 15).ceil()
        return sum(abs((confidence - correct)[bins == b].sum().item()) for b in range(1, 16)) / len(correct)

    correct = (probabilities.argmax(1) == labels).double()
    random = generator(5, 0, "ece bootstrap")
    draws = [torch.randint(300, (300,), generator=random) for _ in range(40)]
    drawn = torch.tensor([ece(probabilities[chosen], correct[chosen]) for chosen in draws], dtype=torch.float64)
    points = torch.tensor([0.025, 0.975], dtype=torch.float64)
    low, high = torch.quantile(drawn - drawn.mean() + ece(probabilities, correct), points)
    assert (got["ece_low"], got["ece_high"]) == pytest.approx((max(low.item(), 0.0), high.item()), rel=1e-10)
    random = generator(5, 0, "ece floor")
    chances = [torch.rand(300, generator=random, dtype=torch.float64) for _ in range(200)]
    floor = sum(ece(probabilities, (chance < probabilities.amax(1)).double()) for chance in chances) / 200
    assert got["ece_floor"] == pytest.approx(floor, rel=1e-10)


@pytest.mark.parametrize("sharpening", [1.0, 1.3])
def test_the_interval_covers_the_mean_ece_of_test_sets_of_this_size(sharpening: float) -> None:
    found = []
    for seed in range(100):
        logits, labels = simulated(500, seed=seed)
        found.append(classification_metrics(torch.softmax(sharpening * logits, 1), labels, seed=seed, bootstrap=100))
    truth = sum(f["ece"] for f in found) / len(found)
    covered = sum(f["ece_low"] <= truth <= f["ece_high"] for f in found)
    # 95 expected, 88 is three binomial standard deviations below. Unmoved draws cover 79 and 89 here.
    assert covered >= 88


def test_the_metrics_repeat_themselves_and_are_quick() -> None:
    logits, labels = simulated(10_000)
    probabilities = torch.softmax(logits, 1).float()
    start = time.process_time()
    first = classification_metrics(probabilities, labels, seed=3)
    assert time.process_time() - start < 3  # about 0.06 s on an idle core
    assert first == classification_metrics(probabilities, labels, seed=3)
    assert first["ece_low"] != classification_metrics(probabilities, labels, seed=4)["ece_low"]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_temperature_is_recovered_and_is_the_minimum(temperature: float) -> None:
    logits, labels = simulated(20_000)
    fitted = fit_temperature(temperature * logits, labels)
    assert fitted == pytest.approx(temperature, rel=0.03)  # its standard deviation at this size is 0.0066

    def nll(t: float) -> float:
        return torch.nn.functional.cross_entropy(temperature * logits / t, labels).item()

    assert nll(fitted) < min(nll(0.99 * fitted), nll(1.01 * fitted))


def test_temperature_stays_in_its_range() -> None:
    logits = torch.tensor([[4.0, 0.0], [0.0, 4.0]])
    assert fit_temperature(logits, torch.tensor([0, 1])) == pytest.approx(TEMPERATURES[0], rel=1e-6)
    assert fit_temperature(logits, torch.tensor([1, 0])) == pytest.approx(TEMPERATURES[1], rel=1e-6)


def test_temperature_scaling_keeps_the_answer() -> None:
    logits, _ = simulated(50)
    cold, hot = temperature_scale(logits, 0.5), temperature_scale(logits, 2.0)
    assert torch.equal(cold.argmax(1), hot.argmax(1))
    assert bool((cold.max(1).values > hot.max(1).values).all())
    with pytest.raises(ProsminError, match="above 0"):
        temperature_scale(logits, 0.0)


@pytest.mark.parametrize(
    ("probabilities", "labels", "message"),
    [
        (torch.ones(3, 2), torch.zeros(3, dtype=torch.long), "sum to 1"),
        (torch.tensor([[1.5, -0.5]]), torch.zeros(1, dtype=torch.long), "0 or more"),
        (torch.full((3, 2), 0.5), torch.tensor([0, 1, 2]), "same classes"),
        (torch.full((3, 2), 0.5), torch.tensor([0, 1]), r"\(N, C\)"),
        (torch.full((0, 2), 0.5), torch.zeros(0, dtype=torch.long), "at least one"),
        (torch.full((1, 2), torch.nan), torch.tensor([0]), "not finite"),
    ],
)
def test_bad_input_is_named(probabilities: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(ProsminError, match=message):
        classification_metrics(probabilities, labels)


def test_the_interval_of_the_nll_holds_the_mean_of_endless_pictures_as_often_as_it_says():
    """Labels drawn from the probabilities themselves: the mean of -ln p(label) is the entropy."""
    random = torch.Generator().manual_seed(0)
    probabilities = torch.softmax(2 * torch.randn(400, 4, generator=random), dim=1)
    entropy = -(probabilities * probabilities.log()).sum(1).mean().item()
    found = []
    for _ in range(300):
        labels = torch.multinomial(probabilities, 1, generator=random)[:, 0]
        found.append(classification_metrics(probabilities, labels, bootstrap=2))
    assert all(f["nll_low"] < f["nll"] < f["nll_high"] for f in found)
    covered = sum(f["nll_low"] <= entropy <= f["nll_high"] for f in found)
    # The images are the same in every draw, so that the spread of the labels alone is less than that of new images.
    assert 274 <= covered < 300  # 95 % are 285; three standard deviations less, whatever numbers torch draws
