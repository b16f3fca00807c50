"""benchmarks/evaluation.py in small: every section is written, and nothing of the package stays changed."""

import json
import sys
from pathlib import Path

import pytest
import torch

from prosmin import config as configs
from prosmin.data.corruptions.parameters import COMMON
from prosmin.data.image_sets import open_pictures
from prosmin.encoder import untrained
from prosmin.evaluation import run as suite
from prosmin.evaluation.protocols import PROTOCOLS
from tiny_run import TINY

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))  # scripts, not a package

import evaluation


@pytest.fixture
def document(tmp_path, monkeypatch):
    """What a trial on some of the embedded images writes, without scikit-learn and with two protocols."""

    def few(spec, **_):
        pictures = open_pictures(spec)
        return pictures.subset(torch.arange(0, len(pictures), 12))

    run = untrained(configs.resolve(recipe="demo", overrides=TINY)).save(tmp_path / "run")
    (run / "cache").mkdir()
    (run / "cache/old.safetensors").write_text("of another time")
    monkeypatch.setattr(evaluation, "MEASURED", ("knn", "ood", "pictures"))
    monkeypatch.setattr(evaluation, "TORCH", COMMON)  # the default: of the protocols here none reads another
    monkeypatch.setattr(evaluation, "BANK", 300)
    monkeypatch.setattr(evaluation, "QUERIES", 20)
    monkeypatch.setattr(evaluation, "find_spec", lambda name: None)
    monkeypatch.setattr(suite, "open_pictures", few)
    out = tmp_path / "evaluation.json"
    words = ["--run", str(run), "--out", str(out), "--test", "photos@test", "--data", "photos@train"]
    monkeypatch.setattr(
        sys, "argv", ["evaluation.py", *words, "--ood", "photos@ood", "--near", "photos@ood", "--pictures", "40"]
    )
    evaluation.main()
    return run, json.loads(out.read_text())


def test_a_trial_writes_every_section(document):
    run, written = document
    assert written["command"] == "python " + " ".join(sys.argv)
    assert written["hardware"]["torch"] == torch.__version__
    assert written["encoder"]["hash"] == json.loads((run / "encoder.json").read_text())["hash"]
    knn, cost, protocols = (written["sections"][name] for name in ("knn", "ood", "protocols"))
    assert not any("failed" in section for section in (knn, cost, protocols))
    assert (knn["bank"], knn["queries"], knn["limit_seconds"]) == (300, 20, evaluation.KNN_SECONDS["cpu"])
    assert cost["pictures"] == 40
    # Four passes, one more for the features, and the scores: more than the passes alone, but for a busy machine.
    assert cost["ratio"] == pytest.approx(cost["all_scores_seconds"] / cost["passes_seconds"], rel=0.1)
    assert protocols["left_out"] == {"pictures": "scikit-learn is not installed"}
    assert list(protocols["rows"]) == ["knn", "ood"]
    measured = json.loads((run / "results/knn.json").read_text())
    row = protocols["rows"]["knn"]
    assert row["metrics"]["top1"] == pytest.approx(measured["metrics"]["top1"], abs=1e-5)
    assert row["baselines"]["raw pixels"] == pytest.approx(measured["baselines"]["raw pixels"]["top1"], abs=1e-5)
    assert {"auroc", "near_auroc", "auroc_cross_view_energy"} < set(protocols["rows"]["ood"]["metrics"])
    assert protocols["in_all_seconds"] >= sum(row["seconds"] for row in protocols["rows"].values())
    assert not (run / "cache/old.safetensors").exists()
    assert PROTOCOLS["knn"].run.__module__ == "prosmin.evaluation.protocols.knn"


def test_the_headlines_are_metrics_of_their_protocols():
    text = (Path(__file__).resolve().parents[2] / "docs/evaluation.md").read_text()
    assert set(evaluation.HEADLINES) < set(evaluation.MEASURED) <= set(PROTOCOLS)
    for names in evaluation.HEADLINES.values():
        for name in names:
            plain = name.removesuffix("_sd").removesuffix("_1pct").removesuffix("_10pct").removesuffix("_calibrated")
            assert f"`{plain}`" in text or plain.startswith("coverage_"), name


def test_a_run_is_needed(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "argv", ["evaluation.py", "--out", str(tmp_path / "x.json")])
    with pytest.raises(SystemExit):
        evaluation.main()
    assert "--run RUN is needed" in capsys.readouterr().err
