"""benchmarks/tuning.py: every method has the same trials; finished ones are kept; failures are recorded."""

import json
import sys
from pathlib import Path

import pytest

from prosmin import config as configs
from prosmin.errors import Stopped

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))  # scripts, not a package

import tuning

CHANGED = "training.max_steps=2"


def test_every_method_and_backbone_has_the_same_trials_and_the_recipe_is_one_of_them():
    jobs = list(tuning.plan(tuning.RECIPES, tuple(configs.METHOD_GROUPS), trials=tuning.LEAST, epochs=25, changed=""))
    cells = {(job["recipe"], job["method"]) for job in jobs}
    assert len(cells) == 7  # iBOT needs a ViT
    assert len(jobs) == 7 * tuning.LEAST >= 7 * 8
    assert [job["trial"] for job in jobs] == sorted(job["trial"] for job in jobs)
    for trial in range(tuning.LEAST):
        fields = {cell: tuning.overrides(*cell, trial, {}) for cell in cells}
        searched = {tuple(name for name in found if name != "method.name") for found in fields.values()}
        assert searched == {tuple(tuning.SEARCHED) if trial else ()}
        others = {tuple(v for n, v in f.items() if n not in ("method.name", "optimizer.lr")) for f in fields.values()}
        assert len(others) == 1
        for (recipe, method), found in fields.items():
            config = configs.resolve(recipe=recipe, overrides=found)
            own = configs.resolve(recipe=recipe, overrides={"method.name": method}).optimizer.lr
            assert config.optimizer.lr == pytest.approx(own * tuning.drawn(trial).get("optimizer.lr", 1.0))
    assert len({json.dumps(tuning.drawn(trial)) for trial in range(tuning.LEAST)}) == tuning.LEAST


def start(monkeypatch, tmp_path, *more):
    words = ["--train", "photos", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "t.jsonl")]
    words += ["--recipes", "demo", "--methods", "prosmin", "dino", "--trials", "2", "--epochs", "3", *more]
    monkeypatch.setattr(sys, "argv", ["tuning.py", *words])
    tuning.main()
    return [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("field", tuning.SEARCHED)
def test_a_searched_field_cannot_be_set(monkeypatch, tmp_path, capsys, field):
    with pytest.raises(SystemExit) as ended:
        start(monkeypatch, tmp_path, "--set", CHANGED, f"{field}=0.5")
    assert ended.value.code == 2
    assert f"{field}=0.5" in capsys.readouterr().err


def test_the_health_numbers_of_a_run_are_kept_with_those_of_its_last_row():
    rows = [{"step": i, "skill": 1 / 3, "target_rank": 7.0, "whitened_variance": 1.0, "lr": 0.1} for i in range(1, 101)]
    kept = tuning.cifar.health_path(rows)
    assert 8 <= len(kept) <= 9
    assert kept[-1] == {"step": 100, "skill": 0.3333, "target_rank": 7.0, "whitened_variance": 1.0}
    assert tuning.cifar.health_path(rows[:1]) == [{**kept[-1], "step": 1}]


def test_a_stopped_search_continues_and_a_failed_trial_is_not_a_sound_one(monkeypatch, tmp_path, capsys):
    made = []

    def one(name, recipe, fields, train, folder, *, linear):
        made.append(name)
        if len(made) == 3:
            raise Stopped("Ctrl-C")
        if name == "demo-dino-3-0":
            raise ZeroDivisionError("no")
        return {"name": name, "overrides": fields, "knn20_top1": len(made) / 100}

    monkeypatch.setattr(tuning.cifar, "one", one)
    monkeypatch.setattr(tuning, "load_pictures", lambda spec: spec)
    with pytest.raises(Stopped):
        start(monkeypatch, tmp_path)
    lines = start(monkeypatch, tmp_path)
    assert made == [f"demo-{m}-3-{t}" for m, t in
                    (("prosmin", 0), ("dino", 0), ("prosmin", 1), ("prosmin", 1), ("dino", 1))]  # fmt: skip
    assert [line.get("failed") for line in lines] == [None, "ZeroDivisionError: no", None, None]
    chosen = {line["method"]: line for line in tuning.best(lines)}
    assert (chosen["prosmin"]["trial"], chosen["prosmin"]["sound_trials"]) == (1, 2)
    assert (chosen["dino"]["trial"], chosen["dino"]["sound_trials"], chosen["dino"]["trials"]) == (1, 1, 2)
    assert "too few" in capsys.readouterr().out
    assert len(start(monkeypatch, tmp_path, "--set", CHANGED)) == 8  # another setting is another search
