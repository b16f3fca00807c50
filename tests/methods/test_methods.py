"""What all methods have in common: what is trained, how the target follows; the engine names no method."""

import ast
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import prosmin
from prosmin import config as configs
from prosmin import methods
from prosmin.errors import ProsminError, UsageError
from prosmin.methods import build_method
from prosmin.training.pretrain import pretrain
from tiny_methods import METHODS, tiny_draws, tiny_method, tiny_views

CASES = [(name, vit) for name in METHODS for vit in (False, True) if vit or name != "ibot"]
IDS = [f"{name}-{'vit' if vit else 'resnet'}" for name, vit in CASES]
every_case = pytest.mark.parametrize(("name", "vit"), CASES, ids=IDS)
every_method = pytest.mark.parametrize("name", METHODS)


def test_these_are_all_the_methods():
    assert set(METHODS) == set(methods.METHODS) == set(configs.METHOD_GROUPS)


@every_case
def test_gradients_reach_the_online_network_alone_and_all_of_it(name, vit):
    config = tiny_method(name, vit=vit)
    method = build_method(config)
    method(tiny_views(config), tiny_draws()).losses.mean().backward()
    fixed = {f"online.backbone.{part}" for part in ("patch_embed.proj.weight", "patch_embed.proj.bias", "pos_embed")}
    for key, parameter in method.named_parameters():
        if key.startswith("target.") or (name == "mocov3" and key in fixed):
            assert parameter.grad is None, key
        else:
            assert parameter.grad is not None, key
            assert parameter.grad.abs().sum() > 0, key


@every_case
def test_online_and_target_share_no_parameter_and_no_buffer(name, vit):
    method = build_method(tiny_method(name, vit=vit))

    def places(module: torch.nn.Module) -> set[int]:
        return {t.untyped_storage().data_ptr() for t in [*module.parameters(), *module.buffers()]}

    own = places(method) - places(method.target)
    assert places(method.online) <= own
    assert not any(p.requires_grad for p in method.target.parameters())
    assert any(p.requires_grad for p in method.online.backbone.parameters())


@every_case
def test_the_target_changes_by_ema_alone(name, vit):
    config = tiny_method(name, vit=vit, target__start="independent")
    method = build_method(config)
    online = {key: p.clone() for key, p in method.online.named_parameters()}
    before = {key: p.clone() for key, p in method.target.named_parameters()}
    assert any(not torch.equal(before[key], online[key]) for key in online)
    output = method(tiny_views(config), tiny_draws())
    for key, p in method.target.named_parameters():
        assert torch.equal(p, before[key]), key
    method.update(output.statistics, momentum=0.8)
    for key, p in method.target.named_parameters():
        torch.testing.assert_close(p, 0.8 * before[key] + 0.2 * online[key])
    for key, p in method.online.named_parameters():
        assert torch.equal(p, online[key]), key


@every_case
def test_one_loss_per_image_and_an_embedding_of_k_numbers(name, vit):
    config = tiny_method(name, vit=vit)
    method = build_method(config)
    output = method(tiny_views(config), tiny_draws())
    assert output.losses.shape == (4,)
    assert output.observed["features"].shape == (8, method.online.backbone.num_features)
    assert output.observed["target"].shape == (2, 4, 24)
    assert not any(tensor.requires_grad for tensor in [*output.observed.values(), *output.statistics.values()])
    features, mean, scale = method.eval().encode(tiny_views(config, pictures=3).global_views[0])
    assert features.shape == (3, method.online.backbone.num_features)
    assert mean.shape == (3, 24)
    assert (scale is not None) == (name == "prosmin")


@every_case
def test_a_loss_depends_on_other_images_only_if_the_method_spans_the_batch(name, vit):
    """With BatchNorm in evaluation mode."""
    config = tiny_method(name, vit=vit)
    method = build_method(config)
    for module in method.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.eval()
    views = tiny_views(config)
    half = type(views)(*(None if group is None else group[:, :2] for group in views))
    whole, part = method(views, tiny_draws()).losses[:2], method(half, tiny_draws(pictures=2)).losses
    alike = bool(torch.allclose(whole, part, rtol=1e-4, atol=1e-5))
    assert alike != method.spans_batch


@pytest.mark.parametrize(
    "recipe", ["demo", "demo-vit", "cifar10-resnet18", "cifar10-vit", "imagenet-vit-small", "imagenette-vit-small"]
)
@every_method
def test_the_common_recipes_have_a_section_for_every_method_that_can_use_them(recipe, name):
    without = name == "ibot" and recipe in ("demo", "cifar10-resnet18")  # ResNets
    with pytest.warns(UserWarning, match=f"no section for {name}") if without else nullcontext():
        config = configs.resolve(recipe=recipe, overrides={"method.name": name})
    assert without == ("resnet" in config.backbone.name and name == "ibot")
    assert (config.views.local == 0) == (name == "mocov3")
    assert configs.build(configs.to_tree(config)) == config


def _resolved(recipe, name):
    return configs.resolve(recipe=recipe, overrides={"method.name": name})


@pytest.mark.parametrize(
    ("recipe", "smallest"),
    [("cifar10-resnet18", 0.2), ("cifar10-vit", 0.08), ("imagenet-vit-small", 0.08), ("imagenette-vit-small", 0.08)],
)
def test_mocov3_has_the_published_crops(recipe, smallest):
    views = _resolved(recipe, "mocov3").views
    assert (views.local, views.global_scale) == (0, (smallest, 1.0))


@pytest.mark.parametrize("name", ["dino", "ibot"])
@pytest.mark.parametrize("recipe", ["cifar10-vit", "imagenet-vit-small", "imagenette-vit-small"])
def test_a_free_last_layer_comes_with_the_temperature_published_for_it(recipe, name):
    config = _resolved(recipe, name)
    assert not config.heads.normalise_last
    loss = config.loss
    ends = (loss.target_temperature_start, loss.target_temperature, loss.temperature_warmup_epochs)
    assert ends == (0.04, 0.07, 30)
    assert config.optimizer.clip_each == (recipe != "cifar10-vit")


def test_only_mocov3_has_twelve_attention_heads_in_a_vit_small():
    heads = {name: _resolved("imagenet-vit-small", name).backbone.heads for name in METHODS}
    assert heads == {name: 12 if name == "mocov3" else None for name in METHODS}


def test_imagenette_has_the_images_per_step_epochs_and_crops_of_the_published_benchmark():
    for name in METHODS:
        config = _resolved("imagenette-vit-small", name)
        assert config.backbone == configs.BackboneConfig(name="vit_small_patch16_224")
        assert (config.training.epochs, config.training.batch_size, config.optimizer.lr) == (200, 256, 5e-4)
        sizes = (config.views.global_size, config.views.local_size, config.views.local)
        assert sizes == (224, 96, 0 if name == "mocov3" else 6)


@pytest.mark.parametrize(
    ("name", "fields", "part"),
    [
        ("dino", {"heads.dim": "0"}, "heads.dim"),
        ("dino", {"heads.freeze_last_epochs": "-1"}, "heads.freeze_last_epochs"),
        ("dino", {"loss.target_temperature": "0"}, "loss.target_temperature"),
        ("dino", {"loss.temperature_warmup_epochs": "-1"}, "loss.temperature_warmup_epochs"),
        ("dino", {"loss.lam": "0.5"}, "loss.lam for dino"),
        ("ibot", {"loss.mask_ratio": "0.1,1.5"}, "loss.mask_ratio"),
        ("ibot", {"loss.mask_probability": "2"}, "loss.mask_probability"),
        ("ibot", {"loss.patch_temperature_start": "0"}, "loss.patch_temperature_start"),
        ("mocov3", {"loss.temperature": "0"}, "loss.temperature"),
        ("mocov3", {"heads.bottleneck": "8"}, "heads.bottleneck for mocov3"),
    ],
)
def test_wrong_fields_and_values_are_refused(name, fields, part):
    with pytest.raises(UsageError, match=part):
        configs.resolve(recipe="demo-vit", overrides={"method.name": name, **fields})


def test_every_field_of_every_method_has_its_line():
    for name in METHODS:
        assert all(doc for _, _, doc in configs.describe(name))


def _named(path: Path, names: set[str]) -> list[str]:
    """Where code (not comments, not docstrings) names a method."""
    tree = ast.parse(path.read_text())
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and isinstance(node.body[0], ast.Expr)
    }
    found = []
    for node in ast.walk(tree):
        words = [getattr(node, field, None) for field in ("id", "attr", "arg", "name")]
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            words.append(node.value)
        found += [f"{path.name}:{node.lineno} {word}" for word in words if isinstance(word, str) and word in names]
    return found


def test_the_engine_names_no_method():
    """Loop, checkpoints, encoder, evaluation and report work for any method."""
    package = Path(prosmin.__file__).parent
    classes = {cls.__name__ for cls in methods.METHODS.values()}
    files = []
    for folder in ("encoder", "training", "evaluation", "report"):
        files += sorted((package / folder).rglob("*.py"))
    # "prosmin" is the package's name too: look for its class only.
    names = (set(METHODS) - {"prosmin"}) | classes | {"iBOT", "MoCo v3"}
    assert [place for path in files for place in _named(path, names)] == []


class Careless(methods.ProSMIN):
    """Returns the mean of its losses, as many programs do."""

    def forward(self, views, draws):
        output = super().forward(views, draws)
        return output._replace(losses=output.losses.mean())


def test_a_method_that_lacks_something_or_returns_the_mean_loss_is_refused(monkeypatch, tmp_path):
    config = tiny_method("prosmin")
    monkeypatch.setitem(methods.METHODS, "prosmin", Careless)
    with pytest.raises(ProsminError, match=r"losses.*\(\).*\(\d+,\)"):
        pretrain(config, tmp_path / "run")
    monkeypatch.setitem(methods.METHODS, "prosmin", lambda config: torch.nn.Linear(1, 1))
    with pytest.raises(ProsminError, match="prosmin has no online, target, spans_batch, update, encode"):
        build_method(config)
