import dataclasses
import re

import pytest
import yaml

import prosmin
from prosmin import config as configs
from prosmin.errors import UsageError
from prosmin.scoring import ProprietyWarning


def test_a_dictionary_is_not_a_configuration(tmp_path):
    with pytest.raises(UsageError, match=r"dict.*prosmin\.config\.resolve"):
        prosmin.pretrain({"training": {"epochs": 3}}, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_the_saved_configuration_builds_the_same_tree():
    config = configs.resolve(recipe="demo", overrides={"training.seed": "7", "views.jitter": "0.1,0.2,0.3,0.1"})
    assert config.views.jitter == (0.1, 0.2, 0.3, 0.1)
    assert configs.build(yaml.safe_load(configs.to_yaml(config))) == config


def test_later_layers_win(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("training: {epochs: 3, seed: 5}\n")
    config = configs.resolve(file=file, overrides={"training.epochs": "4"})
    assert (config.training.epochs, config.training.seed) == (4, 5)
    assert configs.resolve(recipe="demo").heads.dim == 64  # the recipe's section for the method
    assert configs.resolve(recipe="demo", overrides={"heads.dim": "8"}).heads.dim == 8


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ({"training.epocs": "3"}, ["training.epocs", "Did you mean epochs?", "batch_size"]),
        ({"trainig.epochs": "3"}, ["'trainig'", "Did you mean training?"]),
        ({"training.epochs": "three"}, ["training.epochs", "'three'", "whole number"]),
        ({"training.epochs": "2.5"}, ["training.epochs", "whole number"]),
        ({"training.epochs": "0"}, ["training.epochs", "1 or more"]),
        ({"training.epochs": "true"}, ["training.epochs", "whole number"]),
        ({"optimizer.lr": "nan"}, ["optimizer.lr", "a number"]),
        ({"heads.batchnorm": "maybe"}, ["heads.batchnorm", "true or false"]),
        ({"compute.precision": "8"}, ["compute.precision", "bf16-mixed"]),
        ({"views.global_scale": "0.4"}, ["views.global_scale", "2 numbers"]),
        ({"views.global_scale": "0.9,0.4"}, ["views.global_scale", "rising"]),
        ({"method.name": "byol"}, ["method.name", "byol", "prosmin"]),
        ({"loss.patch_weight": "1"}, ["loss.patch_weight for prosmin", "lam"]),
        ({"seed": "1"}, ["--seed", "--group.field"]),
        ({"loss.lam": "1.5"}, ["lam", "1.5"]),
        ({"loss.lam": "0.3"}, ["0.3", "loss.force"]),
    ],
)
def test_wrong_fields_and_values_say_what_exists(overrides, parts):
    with pytest.raises(UsageError) as caught:
        configs.resolve(recipe="demo", overrides=overrides)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("text", ["- 1\n", "a: [\n", "training: 3\n"])
def test_broken_files_are_named(tmp_path, text):
    file = tmp_path / "broken.yaml"
    file.write_text(text)
    with pytest.raises(UsageError):
        configs.resolve(file=file)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (
            "training: {epochs: 3}\nviews: {local: 0}\ntraining: {seed: 1}\n",
            "training appears twice, in lines 1 and 3",
        ),
        ("training: {seed: 1, epochs: 3, seed: 2}\n", "seed appears twice"),
        ("training: 0\n", "training in {file} is 0"),
        ("method: false\n", "method in {file} is False"),
        ("methods: {dino: {heads: 0}}\n", "heads in the section dino of the recipe {file} is 0"),
    ],
)
def test_mistakes_that_yaml_would_ignore_are_refused(tmp_path, text, part):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=re.escape(part.replace("{file}", str(file)))):
        configs.resolve(recipe=str(file), overrides={"training.epochs": "4"})


def test_an_empty_group_has_the_defaults_and_parts_may_be_shared(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "loss:\nviews: {blur: &p [0.1, 0.2, 0.3], solarise: *p}\ntraining: {<<: {seed: 3, epochs: 5}, seed: 4}\n"
    )
    found = configs.resolve(file=file)
    assert (found.loss, found.views.solarise) == (configs.resolve().loss, (0.1, 0.2, 0.3))
    assert (found.training.seed, found.training.epochs) == (4, 5)


def test_a_recipe_is_not_a_configuration(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("training: {epochs: 7}\nmethods: {dino: {heads: {dim: 128}}}\n")
    with pytest.raises(UsageError, match=re.escape(f"--recipe {file}")):
        configs.resolve(file=file)


@pytest.mark.parametrize("value", ["9007199254740993", 9007199254740993])
def test_whole_numbers_are_kept_to_the_last_digit(value):
    assert configs.resolve(overrides={"training.seed": value}).training.seed == 9007199254740993
    assert configs.resolve(overrides={"training.epochs": "1e3"}).training.epochs == 1000
    for large in ("9" * 400, 10**400):
        with pytest.raises(UsageError, match=r"training\.seed"):
            configs.resolve(overrides={"training.seed": large})


def test_a_recipe_without_a_name_is_refused():
    with pytest.raises(UsageError, match=r"recipe ''.*demo"):
        configs.resolve(recipe="")


def test_a_recipe_may_be_your_own_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("training: {epochs: 7}\nmethods: {dino: {heads: {dim: 128}}, mocov3: {views: {local: 0}}}\n")
    found = configs.resolve(recipe=str(file), overrides={"method.name": "dino", "heads.hidden": "96"})
    assert (found.training.epochs, found.heads.dim, found.heads.hidden) == (7, 128, 96)
    with pytest.warns(UserWarning, match=r"mine.yaml has no section for ibot"):
        configs.resolve(recipe=str(file), overrides={"method.name": "ibot"})
    wrong = {
        "methods: {dnio: {}}": "Did you mean dino",
        "methods: [dino]": "['dino']",
        "methods: {dino: 3}": "dino of the recipe",
        "methods: {dino: {method: {name: ibot}}}": "dino of the recipe",
        "method: dino": "method in",
    }
    for text, part in wrong.items():
        file.write_text(text)
        with pytest.raises(UsageError, match=re.escape(part)):
            configs.resolve(recipe=str(file))
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"mine\.yaml"):
        configs.resolve(recipe=str(file))
    file.write_text("training: {epochs: 7}")  # no sections, and another method than it was written for
    with pytest.warns(UserWarning, match=r"no section for dino"):
        configs.resolve(recipe=str(file), overrides={"method.name": "dino"})
    with pytest.raises(UsageError, match=r"missing\.yaml"):
        configs.resolve(recipe=str(tmp_path / "missing.yaml"))


def test_every_recipe_builds_and_says_what_it_is():
    for name in configs.recipe_names():
        # Equation 2 of the paper pools the views; the published code has lam 0.4545.
        warned = {"paper": "reward views for being apart", "release": "1.6 times the true spread"}.get(name)
        if warned:
            with pytest.warns(ProprietyWarning, match=warned):
                configs.resolve(recipe=name)
        else:
            configs.resolve(recipe=name)
        assert configs.recipe_text(name).startswith(f"# {name}: ")


def test_every_field_has_its_line():
    for name, _, doc in configs.describe():
        assert doc, name


@pytest.mark.parametrize(
    ("field", "value", "condition", "unmet"),
    [
        ("loss.bandwidth", "0.3", "loss.rule kernel", {"loss.rule": "energy"}),
        ("loss.temperature", "0.1", "loss.identification above 0", {"loss.identification": "0"}),
        ("loss.samples", "6", "loss.estimator paired or ustat", {"loss.estimator": "closed", "loss.beta": "1"}),
        ("loss.antithetic", "false", "loss.estimator paired", {"loss.estimator": "closed", "loss.beta": "1"}),
        ("heads.radius", "true", "heads.scale learned", {"heads.scale": "zero"}),
        (
            "heads.initial_scale",
            "0.5",
            "heads.predictor_form scaled",
            {"heads.predictor_form": "released", "heads.batchnorm": "false"},
        ),
        ("optimizer.clip_each", "true", "optimizer.clip", {"optimizer.clip": "null"}),
        ("heads.predictor_hidden", "64", "heads.predictor true", {"heads.predictor": "false"}),
        ("training.knn_pictures", "500", "training.knn_every", {"training.knn_every": "null"}),
        ("compute.nvjpeg", "true", "a GPU", {"compute.accelerator": "cpu"}),
        ("compute.graph", "true", "one GPU", {"compute.accelerator": "cpu"}),
    ],
)
def test_a_field_that_is_used_only_with_another_says_so(field, value, condition, unmet):
    """It is not refused where it is not used: a grid over the other field would fail in the cells without it."""
    lines = {name: doc for name, _, doc in configs.describe()}
    assert f"; only with {condition}" in lines[field]
    assert condition.split()[0] in (*unmet, "a", "one")  # an existing field, or the device
    group, name = field.split(".")
    built = configs.resolve(recipe="demo", overrides={field: value} | unmet)
    assert getattr(getattr(built, group), name) != getattr(getattr(configs.resolve(), group), name)


def test_differences_name_what_changes_the_result_only():
    one = configs.resolve(recipe="demo")
    other = configs.resolve(
        recipe="demo", overrides={"training.seed": "1", "training.max_steps": "3", "compute.devices": "2"}
    )
    assert configs.differences(one, other) == ["training.seed: 0 -> 1"]
    assert configs.fingerprint(one) == configs.fingerprint(
        configs.resolve(recipe="demo", overrides={"data.max_bad": "0.2"})
    )
    assert configs.fingerprint(one) != configs.fingerprint(other)
    same = dataclasses.replace(one, compute=other.compute)
    assert configs.fingerprint(one) == configs.fingerprint(same)


def test_the_file_of_one_method_is_not_taken_for_another(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("method: {name: dino}\nloss: {temperature: 0.2}\n")
    assert configs.resolve(file=file, overrides={"method.name": "dino"}).loss.temperature == 0.2
    with pytest.raises(UsageError, match=r"settings of dino.*--method\.name mocov3"):
        configs.resolve(file=file, overrides={"method.name": "mocov3"})


def test_a_wrong_scale_is_predicted():
    with pytest.warns(ProprietyWarning, match=r"0\.45.*1\.72"):
        configs.resolve(recipe="demo", overrides={"loss.lam": "0.45", "loss.beta": "1"})


def test_the_pooled_threshold_counts_the_views():
    pooled = {
        "loss.pairs": "pooled",
        "loss.same_view": "true",
        "loss.estimator": "ustat",
        "loss.antithetic": "false",
        "loss.lam": "0.48",
        "loss.beta": "1",
    }
    with pytest.raises(UsageError, match=r"0\.4969"):
        configs.resolve(recipe="demo", overrides=pooled | {"views.local": "16"})
    with pytest.warns(ProprietyWarning):
        configs.resolve(recipe="demo", overrides=pooled | {"views.local": "0"})


def test_no_method_carries_a_field_that_does_nothing():
    with pytest.raises(UsageError, match=r"target\.centre_momentum for mocov3"):
        configs.resolve(recipe="demo", overrides={"method.name": "mocov3", "target.centre_momentum": "0.5"})
    with pytest.raises(UsageError, match=r"heads\.predictor_lr for dino"):
        configs.resolve(recipe="demo", overrides={"method.name": "dino", "heads.predictor_lr": "0.5"})


def test_the_predictor_may_learn_at_its_own_rate():
    from prosmin.methods import build_method
    from prosmin.training.schedules import Values
    from prosmin.training.step import apply_values, make_optimizer

    config = configs.resolve(recipe="demo", overrides={"heads.predictor_lr": "0.25"})
    method = build_method(config)
    optimizer = make_optimizer(method, config, fused=False)
    apply_values(optimizer, Values(lr=0.8, weight_decay=0.0, momentum=0.9))
    own = {id(p) for p in method.predictor.parameters()}
    for group in optimizer.param_groups:
        assert {group["lr"]} == {0.2 if id(p) in own else 0.8 for p in group["params"]}
