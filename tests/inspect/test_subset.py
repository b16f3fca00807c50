"""The images to label first cover the groups of a folder and leave copies and outliers for later."""

import itertools

import numpy as np
import pytest

from prosmin.inspect import subset
from prosmin.inspect.subset import facility_location, representative, similarities


@pytest.fixture
def groups():
    """Four groups of 40, 30, 20 and 10 rows in orthogonal directions, and two outliers."""
    rng = np.random.default_rng(0)
    centres = 5 * np.eye(8)
    sizes = (40, 30, 20, 10)
    rows = [centre + 0.5 * rng.normal(size=(size, 8)) for centre, size in zip(centres, sizes, strict=False)]
    outliers = 5 * np.eye(8)[6:]
    labels = np.repeat(np.arange(5), (*sizes, len(outliers)))
    return np.concatenate([*rows, outliers]).astype(np.float32) + 3, labels  # + 3: features have a common mean


def test_each_group_is_covered_before_any_outlier(groups):
    features, labels = groups
    assert sorted(labels[representative(features, 4)]) == [0, 1, 2, 3]


def test_fewer_are_the_first_of_more(groups):
    features, _ = groups
    assert representative(features, 3) == representative(features, 10)[:3]


def test_copies_come_last(groups):
    features, _ = groups
    originals = len(features)
    copied = np.concatenate([features, features[:25]])
    first = representative(copied, originals)
    pairs = {row if row < originals else row - originals for row in first}
    assert len(pairs) == originals


def test_the_greedy_choice_is_near_the_best_of_all(groups):
    similarity = similarities(groups[0][::6])

    def covered(rows):
        return np.maximum(similarity[list(rows)].max(axis=0), 0).sum()

    best = max(covered(rows) for rows in itertools.combinations(range(len(similarity)), 3))
    # Nemhauser, Wolsey and Fisher: at least 1 - 1/e of the best
    assert covered(facility_location(similarity, 3)) >= (1 - 1 / np.e) * best


@pytest.mark.parametrize("count", [20, 102, 500])
def test_a_large_folder_is_sampled(groups, monkeypatch, count):
    features, labels = groups
    monkeypatch.setattr(subset, "SAMPLE", 50)
    chosen = representative(features, count)
    assert len(chosen) == len(set(chosen)) == min(count, len(features))
    assert len(set(labels[chosen[:4]])) >= 3


@pytest.mark.parametrize(("rows", "count"), [(0, 5), (1, 5), (2, 5), (5, 5), (5, 0)])
def test_small_folders_and_counts(rows, count):
    features = np.random.default_rng(0).normal(size=(rows, 4)).astype(np.float32)
    assert sorted(representative(features, count)) == list(range(min(rows, count)))


def test_equal_features_give_as_many_rows_as_asked_for():
    assert len(set(representative(np.ones((6, 4), dtype=np.float32), 3))) == 3
