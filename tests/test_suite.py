"""`prosmin evaluate`: what it writes, what it does not repeat, what it never looks at."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch

from conftest import TINY
from prosmin import config as configs
from prosmin.data.pictures import load_pictures
from prosmin.encoder import load, set_statistics, untrained
from prosmin.errors import ProsminError, UsageError
from prosmin.evaluation import suite
from prosmin.evaluation.suite import evaluate
from prosmin.training.pretrain import pretrain


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suite") / "run"
    return pretrain(configs.resolve(recipe="demo", overrides=TINY), folder)


def every_fourth(spec):
    """A quarter of a set, so that four protocols take seconds."""
    pictures = load_pictures(spec)
    return pictures.subset(torch.arange(0, len(pictures), 4))


@pytest.fixture(scope="module")
def results(run):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suite, "load_pictures", every_fourth)
        return evaluate(run)


def test_every_protocol_leaves_its_file(run, results):
    for name in ("knn", "linear", "ood", "uncertainty"):
        row = json.loads((run / f"results/{name}.json").read_text())
        assert row == json.loads(json.dumps(results[name]))
        assert row["protocol"] == name
        assert row["data"] == {"train": "photos@train", "test": "photos@test", "photos@ood": "photos@ood"}
        assert row["checkpoint"]["step"] == 6
        assert row["command"].startswith("prosmin evaluate")
    for name in ("raw pixels", "untrained", "untrained, BatchNorm set"):
        assert 0 < results["knn"]["baselines"][name]["top1"] < 1
    scores = np.load(run / "results/ood.npz")
    assert len(scores["in/knn_distance"]) == 210
    assert len(scores["out/photos@ood/mean_log_scale"]) == 300


def test_what_is_there_is_not_repeated_and_what_changed_is(run, results, monkeypatch):
    def refuse(context):
        raise AssertionError("measured again")

    monkeypatch.setattr(suite, "PROTOCOLS", dict.fromkeys(suite.PROTOCOLS, refuse))
    assert evaluate(run)["knn"] == results["knn"]
    with pytest.raises(AssertionError, match="measured again"):
        evaluate(run, again=True)
    with pytest.raises(AssertionError, match="measured again"):
        evaluate(run, protocols=["knn"], data="photos@train", test="photos@train")


def test_test_labels_move_no_choice(run, results, tmp_path, monkeypatch):
    """With shuffled test labels every setting and every score that is not a comparison with them stays the same."""

    def shuffled(spec):
        pictures = every_fourth(spec)
        if spec != "photos@test":
            return pictures
        order = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(0))
        return dataclasses.replace(pictures, labels=pictures.labels[order])

    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    monkeypatch.setattr(suite, "load_pictures", shuffled)
    blind = evaluate(copy, protocols=["linear", "ood"], again=True)
    assert blind["linear"]["settings"] == results["linear"]["settings"]
    assert blind["linear"]["metrics"]["temperature"] == results["linear"]["metrics"]["temperature"]
    assert blind["ood"]["sets"] == results["ood"]["sets"]
    assert blind["linear"]["metrics"]["top1"] < 0.2 < results["linear"]["metrics"]["top1"]


def test_statistics_are_set_and_weights_are_not(run, tiny):
    pictures = load_pictures("photos@train")
    fresh, calibrated = untrained(tiny()), set_statistics(untrained(tiny()), pictures)
    for (name, a), b in zip(fresh.method.named_parameters(), calibrated.method.parameters(), strict=True):
        assert torch.equal(a, b), name
    features = calibrated(pictures).features
    assert not torch.equal(fresh(pictures).features, features)
    assert torch.equal(calibrated(pictures).features, features)  # evaluation does not move them


def test_wrong_requests_are_sentences(run, tmp_path):
    with pytest.raises(UsageError, match=r"no protocol 'knnn'; there are: knn"):
        evaluate(run, protocols=["knnn"])
    (tmp_path / "unfinished").mkdir()
    with pytest.raises(ProsminError, match=r"holds no encoder\.json"):
        evaluate(tmp_path / "unfinished")


def test_uncertainty_without_a_scale_is_the_variance_between_views(tiny, tmp_path):
    run = pretrain(tiny(heads__scale="zero", training__max_steps="1"), tmp_path / "twin")
    encoder = load(run)
    pictures = load_pictures("photos@test").subset(torch.arange(8))
    views = torch.stack([view.mean for view in encoder.views(pictures)])
    torch.testing.assert_close(encoder.uncertainty(pictures), views.var(0).mean(1))
