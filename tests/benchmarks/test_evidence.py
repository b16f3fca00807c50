"""benchmarks/evidence.py: which runs it makes, which it takes from earlier files, and what it writes."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from prosmin import config as configs

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))  # scripts, not a package

import evidence

RESNET = evidence.RESNET


def test_a_file_of_evidence_names_no_folder_and_is_otherwise_as_it_was():
    """Also where the folder's name is a word that occurs elsewhere."""
    found = {"data": {"spec": "parquet:data/cifar10-train.parquet"}, "near": ["parquet:data/x.parquet"], "k": 20}
    told = evidence._sanitised(found, Path("data"))
    assert told == {"data": {"spec": "parquet:cifar10-train.parquet"}, "near": ["parquet:x.parquet"], "k": 20}


def test_a_training_of_the_same_configuration_is_not_repeated_under_another_name(tmp_path):
    plan = evidence.Run("cifar10-vit-dino-100", "cifar10-vit", {"method.name": "dino", "training.epochs": "100"})
    fields = {**plan.fields, "data.spec": "parquet:elsewhere.parquet", "training.seed": "0"}
    tree = configs.to_tree(configs.resolve(recipe=plan.recipe, overrides=fields))
    made = {
        "name": "x",
        "recipe": plan.recipe,
        "configuration": tree,
        "results": {key: {} for key in evidence.PROTOCOLS},
    }
    made |= {"seed": 0, "baselines_of": evidence.OWN, "l2_grid": list(evidence.L2_GRID), "code": 2}
    file = tmp_path / "cifar10-vit-dino-100-first-s0.json"
    for lacking in ({"code": 1}, {"l2_grid": [1.0]}):  # of earlier code, of other probes
        file.write_text(json.dumps(made | lacking))
        assert evidence.same_training(tmp_path, plan, 0) is None
    file.write_text(json.dumps(made))
    found = evidence.same_training(tmp_path, plan, 0)
    assert found["same_training_as"] == found["baselines_of"] == file.name
    assert (found["name"], found["overrides"]) == (plan.name, plan.fields)
    precision = tree["compute"]["precision"]
    older = tree | {"compute": {"devices": 1, "precision": precision}}  # before other fields were added
    file.write_text(json.dumps(made | {"configuration": older}))
    assert evidence.same_training(tmp_path, plan, 0)["same_training_as"] == file.name
    (tmp_path / "cifar10-vit-again-s0.json").write_text(json.dumps(found))
    assert evidence.same_training(tmp_path, plan, 0)["same_training_as"] == file.name
    assert evidence.same_training(tmp_path, plan, 1) is None
    for field, value in {"optimizer.lr": "1.0e-3", "compute.precision": "32-true"}.items():
        other = dataclasses.replace(plan, fields=plan.fields | {field: value})
        assert evidence.same_training(tmp_path, other, 0) is None
    assert evidence.same_training(tmp_path, dataclasses.replace(plan, protocols=("knn", "other")), 0) is None


@pytest.mark.parametrize("name", [f"{evidence.VIT}-{method}-100-first" for method in ("prosmin", "dino", "mocov3")])
def test_a_first_run_has_the_configuration_of_its_file_whatever_tuning_changed(name):
    run = next(run for run in evidence.STAGES["first"] if run.name == name)
    told = json.loads((evidence.RESULTS / f"{name}-s0.json").read_text())["configuration"]
    fields = run.fields | {"data.spec": told["data"]["spec"]}
    assert configs.resolve(recipe=run.recipe, overrides=fields) == configs.build(told)  # fields added since: defaults


def test_runs_of_code_that_is_gone_are_not_made_again_under_their_names(tmp_path, capsys, monkeypatch):
    words = ["--data", "d", "--runs", "r", "--out", str(tmp_path), "--only", f"{RESNET}-deterministic-100-first"]
    monkeypatch.setattr(sys, "argv", ["evidence.py", *words])
    evidence.main()
    assert "not run: the code" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    gone = [run.name for run in evidence.STAGES["first"] if evidence.is_gone(run)]
    assert gone == [
        *(f"{RESNET}-{method}-100-first" for method in ("prosmin", "deterministic", "dino", "mocov3")),
        *(f"{evidence.VIT}-{method}-100-first" for method in ("dino", "mocov3")),
    ]


def test_the_untrained_vit_of_mocov3_is_its_own():
    def untrained(method, recipe):
        return evidence._untrained(configs.to_tree(configs.resolve(recipe=recipe, overrides={"method.name": method})))

    assert untrained("dino", evidence.VIT) == untrained("prosmin", evidence.VIT) != untrained("mocov3", evidence.VIT)
    assert untrained("mocov3", RESNET) == untrained("prosmin", RESNET)


def test_baselines_are_those_of_an_earlier_run_with_the_same_untrained_network(tmp_path):
    def config(**fields):
        names = {name.replace("__", "."): value for name, value in fields.items()}
        return configs.resolve(recipe="cifar10-resnet18", overrides=names)

    rows = {name: {"baselines": {"raw pixels": {"top1": 0.4}}} for name in ("knn", "linear")}
    made = {"results": rows, "configuration": configs.to_tree(config()), "baselines_of": evidence.OWN}
    (tmp_path / "old-s0.json").write_text(json.dumps(made))  # of probes with other strengths
    made |= {"l2_grid": list(evidence.L2_GRID)}
    (tmp_path / "x-s0.json").write_text(json.dumps(made))
    (tmp_path / "borrowed-s0.json").write_text(json.dumps(made | {"baselines_of": "x-s0.json"}))
    asked = ("knn", "linear", "uncertainty")
    other = config(method__name="mocov3", training__epochs="25")
    found = evidence.known_baselines(tmp_path, other, asked)
    assert found == ("x-s0.json", {name: row["baselines"] for name, row in rows.items()})
    for unlike in (config(training__seed="1"), config(backbone__name="resnet8_cifar"), config(views__global_size="48")):
        assert evidence.known_baselines(tmp_path, unlike, asked) == ("", {})
    assert evidence.known_baselines(tmp_path, other, (*asked, "lowshot")) == ("", {})
