"""The nearest-neighbour search and the vote against a loop written from the definition."""

import math

import pytest
import torch

from coloured import coloured
from prosmin.encoder import neighbours as knn
from prosmin.encoder import untrained
from prosmin.errors import ProsminError
from prosmin.evaluation.context import Context
from prosmin.evaluation.metrics.calibration import classification_metrics
from prosmin.evaluation.options import Options
from prosmin.evaluation.protocols import knn as protocol


def features(size: int, dim: int, seed: int) -> torch.Tensor:
    return torch.randn(size, dim, generator=torch.Generator().manual_seed(seed))


def slow_probabilities(bank, labels, queries, *, classes: int, k: int, temperature: float) -> list[list[float]]:
    """Votes one by one in Python's floats; the extra neighbour is a neighbour like the others."""
    answers = []
    for query in queries.tolist():
        found = []
        for row, label in zip(bank.tolist(), labels.tolist(), strict=True):
            dot = sum(a * b for a, b in zip(query, row, strict=True))
            found.append((dot / (math.hypot(*query) * math.hypot(*row)), label))
        found = sorted(found, reverse=True)[:k]
        weights = [math.exp(s / temperature) for s, _ in found]
        votes = [sum(weights) / k / classes] * classes
        for weight, (_, label) in zip(weights, found, strict=True):
            votes[label] += weight
        answers.append([v / sum(votes) for v in votes])
    return answers


@pytest.mark.parametrize("k", [1, 5, 20])
def test_probabilities_agree_with_a_slow_loop(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knn, "_SIMILARITIES", 60 * 7)  # seven queries at a time; the last part is shorter
    bank, queries = features(60, 8, 0), 30 * features(25, 8, 1)
    labels = torch.arange(60) % 4
    fast = knn.knn_probabilities(bank, labels, queries, classes=5, k=k, temperature=0.1)
    slow = slow_probabilities(bank, labels, queries, classes=5, k=k, temperature=0.1)
    torch.testing.assert_close(fast, torch.tensor(slow), atol=1e-5, rtol=1e-4)  # float32 similarities over 0.1
    torch.testing.assert_close(fast.sum(1), torch.ones(25))


def test_several_k_come_from_one_search() -> None:
    bank, queries, labels = features(80, 6, 0), features(10, 6, 1), torch.arange(80) % 3
    similarities, indices = knn.nearest(bank, queries, 20)
    for k in (1, 7, 20):
        once = knn.vote(similarities[:, :k], labels[indices[:, :k]], classes=3)
        torch.testing.assert_close(once, knn.knn_probabilities(bank, labels, queries, classes=3, k=k))


@pytest.mark.parametrize("at_once", [1, 3, 4])
def test_an_image_is_never_its_own_neighbour_nor_one_of_its_group(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knn, "_SIMILARITIES", 4 * at_once)
    angles = torch.tensor([0.0, 0.1, 0.3, 0.7])
    points = torch.stack([angles.cos(), angles.sin()], 1) * torch.tensor([[1.0], [50.0], [0.1], [7.0]])
    similarities, indices = knn.nearest(points, points, 2, exclude_self=True)
    assert indices.tolist() == [[1, 2], [0, 2], [1, 0], [2, 1]]
    torch.testing.assert_close(similarities[0], torch.tensor([0.1, 0.3]).cos())
    assert knn.nearest(points, points, 1)[1][:, 0].tolist() == [0, 1, 2, 3]

    groups = torch.tensor([5, 5, 2, 2])
    _, indices = knn.nearest(points, points, 2, exclude_self=True, groups=groups)
    assert indices.tolist() == [[2, 3], [2, 3], [1, 0], [1, 0]]
    _, indices = knn.nearest(points, points[:3], 2, groups=groups, query_groups=torch.tensor([5, -1, 2]))
    assert indices.tolist() == [[2, 3], [1, 0], [1, 0]]  # the second query is in no group
    with pytest.raises(ProsminError, match=r"k is 3.*1 to 2"):
        knn.nearest(points, points, 3, exclude_self=True, groups=groups)


def test_the_hash_of_an_image_depends_on_its_pixels_and_not_on_its_padding() -> None:
    images = torch.randint(0, 256, (100, 3, 9, 7), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    sizes = torch.tensor([9, 7]).expand(100, 2)
    found = knn.pixel_hash(images, sizes)
    assert len(found.unique()) == 100
    padded = torch.nn.functional.pad(images, (0, 4, 0, 2))
    assert torch.equal(knn.pixel_hash(padded, sizes), found)
    changed = images.clone()
    changed[:, 2, 8, 6] ^= 1
    for other in (knn.pixel_hash(changed, sizes), knn.pixel_hash(images.flip(3), sizes)):
        assert not bool((other == found).any())
    black = torch.zeros(2, 3, 9, 9, dtype=torch.uint8)
    assert len(knn.pixel_hash(black, torch.tensor([[9, 7], [7, 9]])).unique()) == 2


def test_the_first_of_each_hash_stays() -> None:
    assert knn.first_of_each(torch.tensor([7, 9, 7, 8, 9, 7])).tolist() == [0, 1, 3]


def test_the_first_of_copies_stays_whatever_the_rounding() -> None:
    random = torch.Generator().manual_seed(0)
    features = 5 + torch.randn(300, 20, generator=random)
    order = torch.randperm(300, generator=random)
    bank = torch.cat([features, features[order], features[:10]])
    bank = bank + 1e-5 * torch.randn(bank.shape, generator=random)
    assert knn.first_of_copies(bank).tolist() == [*range(300), *order.tolist(), *range(10)]
    assert knn.first_of_copies(features).tolist() == list(range(300))
    assert knn.first_of_copies(torch.ones(500, 3)).tolist() == [0] * 500
    assert knn.first_of_copies(torch.ones(1, 3)).tolist() == [0]
    assert knn.first_of_copies(torch.ones(0, 3)).tolist() == []


def test_rows_connected_by_many_pairs_have_the_first_of_them() -> None:
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(0))  # two chains of 500
    chains = torch.cat([torch.stack([part[1:], part[:-1]]) for part in order.split(500)], 1)
    found = knn._first_connected(chains, 1001)
    assert all(bool((found[part] == part.min()).all()) for part in order.split(500))
    assert found[1000] == 1000


def test_a_class_without_a_vote_keeps_a_finite_likelihood() -> None:
    # Twenty equal neighbours for class 0: (20 + 1/4) / 21, and 1/84 for each of the others.
    got = knn.vote(torch.ones(1, 20), torch.zeros(1, 20, dtype=torch.long), classes=4)
    torch.testing.assert_close(got, torch.tensor([[20.25 / 21, 1 / 84, 1 / 84, 1 / 84]]))
    assert classification_metrics(got, torch.tensor([3]), bootstrap=2)["nll"] == pytest.approx(math.log(84), rel=1e-6)


def test_small_temperatures_do_not_overflow() -> None:
    got = knn.vote(torch.tensor([[1.0, 0.5]]), torch.tensor([[1, 0]]), classes=2, temperature=1e-4)
    torch.testing.assert_close(got, torch.tensor([[0.5 / 3, 2.5 / 3]]))


def test_separated_clusters_are_classified() -> None:
    centres = 5 * torch.eye(4)
    labels = torch.arange(200) % 4
    bank, queries = centres[labels] + features(200, 4, 0), centres[labels] + features(200, 4, 1)
    got = knn.knn_probabilities(bank, labels, queries, classes=4)
    assert (got.argmax(1) == labels).float().mean() > 0.98


@pytest.mark.parametrize(
    ("bank", "queries", "k", "exclude", "message"),
    [
        (torch.ones(5, 3), torch.ones(2, 4), 1, False, r"\(M, D\)"),
        (torch.ones(5, 3), torch.ones(2, 3), 6, False, "1 to 5"),
        (torch.ones(5, 3), torch.ones(5, 3), 5, True, "1 to 4"),
        (torch.ones(5, 3), torch.ones(2, 3), 0, False, "1 to 5"),
        (torch.ones(5, 3), torch.ones(2, 3), 1, True, "5 images of the bank and 2 queries"),
        (torch.ones(0, 3), torch.ones(0, 3), 1, True, "0 images can be neighbours"),
        (torch.full((5, 3), torch.nan), torch.ones(2, 3), 1, False, "not finite"),
    ],
)
def test_bad_input_is_named(bank, queries, k: int, exclude: bool, message: str) -> None:
    with pytest.raises(ProsminError, match=message):
        knn.nearest(bank, queries, k, exclude_self=exclude)


def test_the_settings_name_the_neighbours_that_voted(tiny) -> None:
    for pictures, voted in ((12, (12, 12)), (30, (20, 30))):
        sets = {"train": coloured(pictures), "test": coloured(3, seed=1)}
        result = protocol.run(Context(untrained(tiny()), sets, options=Options(baselines="none")))
        assert (result.settings["k"], result.settings["wide_k"]) == voted


def test_labels_outside_the_classes_are_named() -> None:
    with pytest.raises(ProsminError, match="0 to 1"):
        knn.knn_probabilities(torch.eye(3), torch.tensor([0, 1, 2]), torch.eye(3), classes=2, k=1)
