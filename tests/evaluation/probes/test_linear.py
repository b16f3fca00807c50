"""The probe against scikit-learn's optimum, and its choices against what it may see."""

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from prosmin.data.subsets import held_out_tenth
from prosmin.errors import ProsminError
from prosmin.evaluation.metrics.calibration import classification_metrics, fit_temperature, temperature_scale
from prosmin.evaluation.probes import linear, logistic
from prosmin.evaluation.probes.logistic import Problem, minimise, prepare


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A fit here is a thousand tiny products: on a busy machine, threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def toy(size: int, *, dim: int = 12, classes: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Correlated features of very different sizes, and labels drawn from a softmax of their plain form."""
    random = torch.Generator().manual_seed(100)
    mix = torch.randn(dim, dim, generator=random)
    weight = torch.randn(classes, dim, generator=random)
    random = torch.Generator().manual_seed(seed)
    features = torch.randn(size, dim, generator=random) @ mix
    features = (features + 3) * torch.logspace(-2, 2, dim)
    standard = features / torch.logspace(-2, 2, dim) - 3
    labels = torch.multinomial(torch.softmax(standard @ weight.T / 2, 1), 1, generator=random)[:, 0]
    return features, labels


def solve(problem: Problem, l2: float, start: tuple[torch.Tensor, torch.Tensor] | None = None) -> list[torch.Tensor]:
    """Weight (C, D) and bias (C,) of a fit to all images."""
    return [part[0] for part in logistic.solve(problem, l2, start=start)]


@pytest.mark.parametrize("l2", [1.0, 1e-2, 1e-4])
def test_the_optimum_is_scikit_learns(l2: float) -> None:
    features, labels = toy(400)
    problem = prepare(features, labels, classes=4)
    weight, bias = solve(problem, l2)
    standard = ((features.double() - problem.mean) / problem.std).numpy()
    theirs = LogisticRegression(C=1 / (l2 * 400), tol=1e-10, max_iter=10_000).fit(standard, labels.numpy())
    # Shifting all biases changes nothing; both are compared with mean 0. The gradient is solved to 1e-6.
    torch.testing.assert_close(weight, torch.from_numpy(theirs.coef_), atol=2e-4, rtol=1e-4)
    their_bias = torch.from_numpy(theirs.intercept_)
    torch.testing.assert_close(bias - bias.mean(), their_bias - their_bias.mean(), atol=2e-4, rtol=1e-4)


def test_axes_set_the_pace_and_not_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = toy(400)
    expected = solve(prepare(features, labels, classes=4), 1e-3)
    monkeypatch.setattr(logistic, "_RANK", 5)  # five axes told apart, seven together
    few = prepare(features, labels, classes=4)
    assert few.axes.directions.shape == (12, 5)
    other = dataclasses.replace(few, axes=prepare(features[:100], labels[:100], classes=4).axes)
    for problem in (few, other):
        for got, wanted in zip(solve(problem, 1e-3), expected, strict=True):
            torch.testing.assert_close(got, wanted, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("together", [3, 2, 1])
def test_parts_side_by_side_are_solved_as_if_alone(monkeypatch: pytest.MonkeyPatch, together: int) -> None:
    """Parts of different sizes, one with a feature that does not move in it; from no start, then from another l2."""
    features, labels = toy(300)
    features[:60, 3] = 7.0
    seen = torch.arange(300) < torch.tensor([[60], [200], [300]])
    problem = prepare(features, labels, classes=4)
    monkeypatch.setattr(logistic, "_LOGITS", together * 300 * 4)
    first = logistic.solve(problem, 1e-1, seen=seen)
    second = logistic.solve(problem, 1e-3, seen=seen, start=first)
    new, _ = toy(50, seed=1)
    new[:, 3] = 7.0  # where it moved, the part's weight has another unit
    for l2, (weights, biases) in ((1e-1, first), (1e-3, second)):
        for part, weight, bias in zip(seen, weights, biases, strict=True):
            alone = prepare(features[part], labels[part], classes=4)
            expected = torch.nn.functional.linear((new.double() - alone.mean) / alone.std, *solve(alone, l2))
            got = torch.nn.functional.linear((new.double() - problem.mean) / problem.std, weight, bias)
            # Both are solved to a gradient of 1e-6; shifting all logits changes nothing.
            torch.testing.assert_close(got.log_softmax(1), expected.log_softmax(1), atol=1e-3, rtol=1e-3)


def test_the_least_point_is_found_from_far_away_and_each_on_its_own() -> None:
    """sum of cosh(a (x - c)): steep where it starts, so that whole steps overshoot; the least value is at c."""
    centres = torch.tensor([[3.0, -2.0, 0.5], [0.0, 0.0, 0.0], [-1.0, 4.0, 2.0]], dtype=torch.float64)
    slopes = torch.tensor([1.0, 2.0, 0.3], dtype=torch.float64)
    asked = []

    def objective(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(len(x))
        inner = slopes * (x - centres)
        return inner.cosh().sum(1), slopes * inner.sinh()

    found = minimise(objective, torch.zeros(3, 3, dtype=torch.float64), tolerance=1e-8)
    torch.testing.assert_close(found, centres, atol=1e-6, rtol=0)  # curvature at the least point: 0.09 and more
    assert len(asked) < 60
    assert torch.equal(found[1], centres[1])  # it began where it should be and did not move


def test_a_probe_can_be_fitted_where_gradients_are_off() -> None:
    features, labels = toy(100)
    expected = linear.linear_probe(features, labels, classes=4, seed=0)
    with torch.inference_mode():
        got = linear.linear_probe(2 * features / 2, labels, classes=4, seed=0)
    assert torch.equal(got.weight, expected.weight)


def test_the_gradient_vanishes_with_more_features_than_pictures_from_any_start() -> None:
    features, labels = toy(40, dim=60)
    problem = prepare(features, labels, classes=4)
    standard = (features.double() - problem.mean) / problem.std
    for start in (None, logistic.solve(problem, 1.0)):
        weight, bias = solve(problem, 1e-3, start=start)
        error = torch.softmax(standard @ weight.T + bias, 1) - torch.nn.functional.one_hot(labels, 4)
        assert (error.T @ standard / 40 + 1e-3 * weight).abs().max() < 1e-5
        assert error.mean(0).abs().max() < 1e-5


def test_the_probe_equals_scikit_learn_on_new_pictures() -> None:
    features, labels = toy(600)
    new, _ = toy(200, seed=1)
    probe = linear.linear_probe(features, labels, classes=4, seed=0, l2_grid=[1e-2])
    mean, std = features.mean(0), features.std(0, correction=0)
    theirs = LogisticRegression(C=1 / (1e-2 * 600), tol=1e-10, max_iter=10_000).fit(
        ((features - mean) / std).numpy(), labels.numpy()
    )
    expected = torch.from_numpy(theirs.predict_proba(((new - mean) / std).numpy())).float()
    torch.testing.assert_close(probe.probabilities(new), expected, atol=1e-4, rtol=1e-3)


def test_the_strength_of_least_held_out_nll_is_chosen() -> None:
    features, labels = toy(500)
    probe = linear.linear_probe(features, labels, classes=4, seed=0)
    assert probe.l2 == min(probe.path, key=lambda l2: probe.path[l2])
    mask = held_out_tenth(labels, seed=0)
    problem = prepare(features[~mask], labels[~mask], classes=4)
    logits = torch.nn.functional.linear((features[mask] - problem.mean) / problem.std, *solve(problem, probe.l2))
    assert probe.path[probe.l2] == pytest.approx(
        torch.nn.functional.cross_entropy(logits, labels[mask]).item(), abs=1e-5
    )
    assert probe.temperature == pytest.approx(fit_temperature(logits, labels[mask]), rel=1e-3)


def test_pure_noise_gets_a_strong_penalty_and_clear_features_a_weak_one() -> None:
    noise = torch.randn(300, 40, generator=torch.Generator().manual_seed(0))
    clear, labels = toy(3000)
    assert linear.linear_probe(noise, labels[:300], classes=4, seed=0).l2 >= 0.1
    assert linear.linear_probe(clear, labels, classes=4, seed=0).l2 <= 1e-2


def test_the_temperature_mends_an_overfitted_probe() -> None:
    features, labels = toy(150, dim=60)
    new, new_labels = toy(2000, dim=60, seed=1)
    probe = linear.linear_probe(features, labels, classes=4, seed=0, l2_grid=[1e-3], folds=5)
    before = classification_metrics(probe.probabilities(new), new_labels)
    after = classification_metrics(temperature_scale(probe.logits(new), probe.temperature), new_labels)
    assert probe.temperature > 2
    assert after["nll"] < before["nll"]
    assert after["ece"] < before["ece"] / 2
    assert after["top1"] == before["top1"]


def test_folds_choose_on_every_label() -> None:
    features, labels = toy(40)
    probe = linear.linear_probe(features, labels, classes=4, seed=0, folds=5)
    total = 0.0
    fold = linear.deal_folds(labels, 5, seed=0)
    for i in range(5):
        problem = prepare(features[fold != i], labels[fold != i], classes=4)
        standard = (features[fold == i] - problem.mean) / problem.std
        logits = torch.nn.functional.linear(standard, *solve(problem, probe.l2))
        total += torch.nn.functional.cross_entropy(logits, labels[fold == i], reduction="sum").item()
    assert probe.path[probe.l2] == pytest.approx(total / 40, rel=1e-4)


def test_a_feature_that_never_moves_changes_nothing() -> None:
    features, labels = toy(300)
    still = torch.cat([features, torch.full((300, 1), 0.1)], 1)
    new, _ = toy(50, seed=1)
    plain = linear.linear_probe(features, labels, classes=4, seed=0, l2_grid=[0.1])
    other = linear.linear_probe(still, labels, classes=4, seed=0, l2_grid=[0.1])
    torch.testing.assert_close(
        other.logits(torch.cat([new, torch.linspace(0, 1, 50)[:, None]], 1)),
        plain.logits(new),
        atol=1e-4,
        rtol=1e-4,
    )


def test_the_probe_repeats_itself() -> None:
    features, labels = toy(200)
    first, second = (linear.linear_probe(features, labels, classes=4, seed=0) for _ in range(2))
    assert torch.equal(first.weight, second.weight)
    assert first.path == second.path


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (torch.ones(20, 2), torch.arange(20) % 3, "but 4 are expected"),
        (torch.ones(20, 2), torch.arange(20) % 5, "but 4 are expected"),
        (torch.ones(20, 2), torch.arange(19) % 4, r"\(N, D\)"),
        (torch.full((20, 2), torch.inf), torch.arange(20) % 4, "not finite"),
    ],
)
def test_bad_input_is_named(features: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(ProsminError, match=message):
        linear.linear_probe(features, labels, classes=4, seed=0)


def test_one_label_a_class_cannot_choose() -> None:
    with pytest.raises(ProsminError, match="two labels"):
        linear.linear_probe(torch.rand(12, 2), torch.arange(12), classes=12, seed=0)
