"""Folds and subsets: balanced, disjoint, fixed by the seed."""

import pytest
import torch

from prosmin.data.subsets import balanced_subset, deal_folds, held_out_tenth
from prosmin.errors import ProsminError


def shuffled_labels(sizes: list[int], seed: int = 0) -> torch.Tensor:
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]


def counts(labels: torch.Tensor, chosen: torch.Tensor, classes: int) -> list[int]:
    return torch.bincount(labels[chosen], minlength=classes).tolist()


def test_the_held_out_tenth_is_a_tenth_of_each_class_and_fixed() -> None:
    labels = shuffled_labels([240, 100, 50])
    mask = held_out_tenth(labels, seed=1)
    assert counts(labels, mask, 3) == [24, 10, 5]
    assert torch.equal(mask, held_out_tenth(labels, seed=1))
    assert not torch.equal(mask, held_out_tenth(labels, seed=2))


def test_folds_are_even_in_total_and_within_each_class() -> None:
    labels = shuffled_labels([13, 7, 2])
    fold = deal_folds(labels, 5, seed=0)
    assert sorted(torch.bincount(fold).tolist()) == [4, 4, 4, 5, 5]
    for wanted in range(3):
        dealt = torch.bincount(fold[labels == wanted], minlength=5)
        assert dealt.max() - dealt.min() <= 1


def test_a_class_with_one_picture_is_never_held_out() -> None:
    labels = torch.arange(40)
    labels[:20] = 0  # one class of twenty, twenty of one
    for seed in range(20):
        assert not bool(held_out_tenth(labels, seed=seed)[20:].any())


@pytest.mark.parametrize(("share", "each"), [(0.01, 2), (0.1, 20), (1.0, 200)])
def test_a_subset_has_equally_many_of_each_class(share: float, each: int) -> None:
    labels = shuffled_labels([200] * 7)
    chosen = balanced_subset(labels, share, seed=0)
    assert counts(labels, chosen, 7) == [each] * 7
    assert torch.equal(chosen, chosen.unique())


def test_small_classes_give_all_they_have_and_the_others_make_up_for_them() -> None:
    labels = shuffled_labels([100, 100, 3])
    assert counts(labels, balanced_subset(labels, 21 / 203, seed=0), 3) == [9, 9, 3]


def test_the_unfinished_round_favours_no_class() -> None:
    labels = shuffled_labels([50, 50, 50])
    extra = {tuple(counts(labels, balanced_subset(labels, 4 / 150, seed=seed), 3)) for seed in range(30)}
    assert extra == {(2, 1, 1), (1, 2, 1), (1, 1, 2)}


def test_a_smaller_share_lies_within_a_larger_one_and_seeds_differ() -> None:
    labels = shuffled_labels([300] * 4)
    few, many = balanced_subset(labels, 0.01, seed=5), balanced_subset(labels, 0.1, seed=5)
    assert set(few.tolist()) < set(many.tolist())
    assert not torch.equal(few, balanced_subset(labels, 0.01, seed=6))


def test_labels_need_not_be_consecutive() -> None:
    labels = shuffled_labels([30, 30]) * 40 + 7
    chosen = balanced_subset(labels, 0.2, seed=0)
    assert labels[chosen].unique(return_counts=True)[1].tolist() == [6, 6]


def test_too_few_labels_are_named() -> None:
    labels = shuffled_labels([20] * 5)
    with pytest.raises(ProsminError, match="fewer than the 5 classes"):
        balanced_subset(labels, 0.01, seed=0)
    with pytest.raises(ProsminError, match="above 0"):
        balanced_subset(labels, 0.0, seed=0)
    with pytest.raises(ProsminError, match="of 9 there is none"):
        held_out_tenth(labels[:9], seed=0)


def test_groups_are_dealt_whole() -> None:
    labels = shuffled_labels([30] * 4)
    groups = labels * 10 + torch.arange(len(labels)) % 7  # seven groups a class, of four or five images
    fold = deal_folds(labels, 5, seed=0, groups=groups)
    for group in groups.unique():
        assert len(fold[groups == group].unique()) == 1
    sizes = [len(groups[fold == i].unique()) for i in range(5)]
    assert max(sizes) - min(sizes) <= 1
    assert torch.equal(deal_folds(labels, 5, seed=0, groups=torch.arange(len(labels))), deal_folds(labels, 5, seed=0))
