"""Patches of one block of a photograph overlap: nowhere may one of them give another away."""

import torch

from prosmin.data.image_sets import load_pictures
from prosmin.data.sources.photos import block_names
from prosmin.data.subsets import groups_of
from prosmin.encoder import untrained
from prosmin.evaluation.context import Context
from prosmin.evaluation.metrics.retrieval import right_neighbours
from prosmin.evaluation.options import Options
from prosmin.evaluation.probes.linear import linear_probe
from prosmin.evaluation.protocols import lowshot


def test_a_group_is_a_block_and_other_pictures_have_none():
    test = load_pictures("photos@test")
    groups, blocks = groups_of(test.keys, test.spec), block_names(test.keys)
    assert len(set(zip(groups.tolist(), blocks, strict=True))) == len(set(blocks)) == int(groups.max()) + 1
    assert groups_of(test.keys, "folder:x") is None


def test_a_patch_is_not_found_by_the_pixels_it_shares():
    test = load_pictures("photos@test")
    pixels = test.images.float().flatten(1)
    pixels -= pixels.mean(1, keepdim=True)
    groups = groups_of(test.keys, test.spec)
    found = right_neighbours(pixels, test.labels).double().mean()
    assert right_neighbours(pixels, test.labels, groups).double().mean() < found - 0.2


def test_a_probe_chosen_on_folds_of_groups_does_not_trust_what_only_the_group_tells():
    random = torch.Generator().manual_seed(0)
    groups = torch.arange(120) // 6
    labels = (torch.arange(20) % 2)[groups]  # of the group, whose features say nothing else
    features = torch.randn(20, 30, generator=random)[groups] + 0.1 * torch.randn(120, 30, generator=random)
    torn = linear_probe(features, labels, classes=2, seed=0, folds=5)
    whole = linear_probe(features, labels, classes=2, seed=0, folds=5, groups=groups)
    assert torn.l2 <= 1e-4
    assert whole.l2 >= 1


def test_low_shot_probes_are_chosen_so(tiny, monkeypatch):
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
