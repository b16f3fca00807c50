"""Folds and subsets: balanced, disjoint, fixed by the seed; overlapping images stay together."""

import pytest
import torch

from prosmin.data.image_sets import load_pictures
from prosmin.data.sources.photos import block_names
from prosmin.data.subsets import balanced_subset, deal_folds, groups_of, held_out_tenth
from prosmin.encoder import untrained
from prosmin.errors import ProsminError
from prosmin.evaluation.context import Context
from prosmin.evaluation.metrics.retrieval import right_neighbours
from prosmin.evaluation.options import Options
from prosmin.evaluation.probes.linear import linear_probe
from prosmin.evaluation.protocols import lowshot


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
    for label in range(3):
        sizes = torch.bincount(fold[labels == label], minlength=5)
        assert sizes.max() - sizes.min() <= 1


def test_the_only_image_of_a_class_is_never_held_out() -> None:
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


def test_small_classes_are_used_whole_and_the_others_fill_up() -> None:
    labels = shuffled_labels([100, 100, 3])
    assert counts(labels, balanced_subset(labels, 21 / 203, seed=0), 3) == [9, 9, 3]


def test_an_incomplete_round_favours_no_class() -> None:
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
    with pytest.raises(ProsminError, match=r"0\.01 .*5 classes"):
        balanced_subset(labels, 0.01, seed=0)
    with pytest.raises(ProsminError, match=r"0\.0\b"):
        balanced_subset(labels, 0.0, seed=0)
    with pytest.raises(ProsminError, match=r"9 .*10 or more"):
        held_out_tenth(labels[:9], seed=0)


def test_folds_contain_whole_groups() -> None:
    labels = shuffled_labels([30] * 4)
    groups = labels * 10 + torch.arange(len(labels)) % 7  # seven groups per class, of four or five images
    fold = deal_folds(labels, 5, seed=0, groups=groups)
    for group in groups.unique():
        assert len(fold[groups == group].unique()) == 1
    sizes = [len(groups[fold == i].unique()) for i in range(5)]
    assert max(sizes) - min(sizes) <= 1
    assert torch.equal(deal_folds(labels, 5, seed=0, groups=torch.arange(len(labels))), deal_folds(labels, 5, seed=0))


def test_a_group_is_a_block_of_a_photograph_and_other_sources_have_none():
    test = load_pictures("photos@test")
    groups, blocks = groups_of(test.keys, test.spec), block_names(test.keys)
    assert len(set(zip(groups.tolist(), blocks, strict=True))) == len(set(blocks)) == int(groups.max()) + 1
    assert groups_of(test.keys, "folder:x") is None


def test_neighbours_exclude_overlapping_patches():
    test = load_pictures("photos@test")
    pixels = test.images.float().flatten(1)
    pixels -= pixels.mean(1, keepdim=True)
    groups = groups_of(test.keys, test.spec)
    found = right_neighbours(pixels, test.labels).double().mean()
    assert right_neighbours(pixels, test.labels, groups).double().mean() < found - 0.2


def test_a_probe_chosen_on_folds_of_groups_does_not_fit_the_groups():
    random = torch.Generator().manual_seed(0)
    groups = torch.arange(120) // 6
    labels = (torch.arange(20) % 2)[groups]  # of the group; the features say nothing else
    features = torch.randn(20, 30, generator=random)[groups] + 0.1 * torch.randn(120, 30, generator=random)
    torn = linear_probe(features, labels, classes=2, seed=0, folds=5)
    whole = linear_probe(features, labels, classes=2, seed=0, folds=5, groups=groups)
    assert torn.l2 <= 1e-4
    assert whole.l2 >= 1


def test_low_shot_probes_are_chosen_on_folds_of_groups(tiny, monkeypatch):
    pictures = {name: load_pictures(f"photos@{name}") for name in ("train", "test")}
    every_eighth = {name: some.subset(torch.arange(0, len(some), 8)) for name, some in pictures.items()}
    context = Context(untrained(tiny()), every_eighth, options=Options(draws=1, baselines="none"))
    given = []

    def probe(features, labels, *, groups, **others):
        given.append((groups, labels))
        return linear_probe(features, labels, groups=groups, **others)

    monkeypatch.setattr(lowshot, "linear_probe", probe)
    lowshot.run(context)
    train = every_eighth["train"]
    for groups, labels in given:
        of_group = dict(zip(groups_of(train.keys, train.spec).tolist(), train.labels.tolist(), strict=True))
        assert [of_group[group] for group in groups.tolist()] == labels.tolist()
