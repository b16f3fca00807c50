"""What a run starts from: backbone.weights as timm's own, a run, a shipped encoder or a file, and bad ones of each."""

from itertools import pairwise

import pytest
import timm
import torch
from safetensors.torch import load_file

from prosmin import config as configs
from prosmin.config import METHOD_GROUPS
from prosmin.encoder.shipped import shipped_folder
from prosmin.errors import MissingFileError, ProsminError, UsageError
from prosmin.methods import build_method
from prosmin.models.pretrained import PRETRAINED
from prosmin.training.schedules import Values, values
from prosmin.training.start import load_start
from prosmin.training.step import apply_values, make_optimizer

VIT = {"backbone.name": "timm:test_vit", "views.global_size": "32", "views.local_size": "16"}
NORMALISED = {"views.mean": "0.5,0.5,0.5", "views.std": "0.5,0.5,0.5"}  # as timm's card of test_vit says


@pytest.fixture
def own(monkeypatch):
    """timm's own weights of test_vit, as the hub would give them; a function changes them first."""
    create, asked = timm.create_model, []

    def change(edit=lambda state: None):
        def fake(name, *, pretrained=False, **options):
            network = create(name, **options)
            if pretrained:
                asked.append(name)
                with torch.no_grad():
                    state = {key: torch.full_like(value, 0.25) for key, value in network.state_dict().items()}
                    edit(state)
                    network.load_state_dict(state)
            return network

        monkeypatch.setattr(timm, "create_model", fake)
        return asked

    return change


class TestPretrained:
    @pytest.mark.filterwarnings("ignore:the recipe demo has no section for ibot")
    @pytest.mark.parametrize("method", METHOD_GROUPS)
    def test_every_method_starts_from_timms_weights(self, own, method):
        asked = own()
        fields = VIT | NORMALISED | {"method.name": method, "backbone.weights": PRETRAINED}
        config = configs.resolve(recipe="demo", overrides=fields)
        network = build_method(config)
        sentence, warning = load_start(network, config)
        assert asked == ["test_vit"]
        assert sentence == "timm's own weights, tag r160_in1k."
        assert warning == ""
        for part in ("online", "target"):
            backbone = network.get_submodule(f"{part}.backbone")
            assert all(bool((tensor == 0.25).all()) for tensor in backbone.state_dict().values())

    def test_other_normalisation_is_named(self, tiny, own):
        own()
        config = tiny(**VIT, **{"backbone.weights": PRETRAINED})
        _, warning = load_start(build_method(config), config)
        for name, value in NORMALISED.items():
            assert f"--{name} {value}" in warning

    def test_no_network(self, tiny, monkeypatch):
        config = tiny(**VIT, **{"backbone.weights": PRETRAINED})
        network = build_method(config)

        def refuse(*args, **options):
            raise OSError("the host is not known")

        monkeypatch.setattr(timm, "create_model", refuse)
        with pytest.raises(ProsminError, match=r"test_vit.*not known.*--backbone\.weights FILE"):
            load_start(network, config)

    def test_not_finite(self, tiny, own):
        own(lambda state: state["cls_token"].fill_(torch.nan))
        config = tiny(**VIT, **{"backbone.weights": PRETRAINED})
        with pytest.raises(ProsminError, match=r"not finite.*cls_token"):
            load_start(build_method(config), config)

    def test_a_network_that_timm_does_not_have(self, tiny):
        config = tiny(**{"backbone.weights": PRETRAINED})
        with pytest.raises(UsageError, match=r"pretrained.*resnet8_cifar"):
            load_start(build_method(config), config)


class TestOthers:
    def test_a_shipped_encoder(self, tiny):
        shape = {"patch_size": "4", "width": "192", "depth": "12", "heads": "3"}
        fields = {f"backbone.{name}": value for name, value in shape.items()}
        config = tiny(**fields, **{"backbone.name": "vit_tiny_patch16_224", "backbone.weights": "cifar10-vit"})
        network = build_method(config)
        load_start(network, config)
        stored = load_file(shipped_folder("cifar10-vit") / "encoder.safetensors")["online.backbone.cls_token"]
        assert torch.equal(network.get_submodule("online.backbone").cls_token, stored.float())

    def test_bad_weights_leave_no_folder(self, train, finished, tmp_path):
        broken = load_file(finished / "encoder.safetensors")
        broken["online.backbone.stem.0.weight"][0] = torch.nan
        torch.save(broken, tmp_path / "nan.pth")
        (tmp_path / "empty").mkdir()
        cases = {
            "missing.pth": (MissingFileError, "missing.pth"),
            "empty": (UsageError, "empty.* without encoder.safetensors"),
            "nan.pth": (ProsminError, "nan.pth.*not finite"),
        }
        for name, (kind, words) in cases.items():
            with pytest.raises(kind, match=words):
                train("run", **{"backbone.weights": str(tmp_path / name)})
        with pytest.raises(ProsminError, match=r"encoder\.safetensors.*the network"):  # of a ResNet
            train("run", **VIT, **{"backbone.weights": str(finished)})
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize("name", ["backbone.freeze_epochs", "training.guard", "training.guard_every"])
    def test_without_weights_there_is_no_start(self, tiny, name):
        with pytest.raises(UsageError, match=rf"{name}.*backbone\.weights"):
            tiny(**{name: "1"})

    @pytest.mark.parametrize("frozen", ["2", "3.5"])
    def test_a_backbone_that_is_frozen_to_the_end(self, tiny, frozen):
        start = {"backbone.weights": "x.pth", "training.epochs": "2"}
        with pytest.raises(UsageError, match=rf"freeze_epochs is {frozen} and training\.epochs is 2.*0 to below 2"):
            tiny(**start, **{"backbone.freeze_epochs": frozen})
        tiny(**start, **{"backbone.freeze_epochs": "1.9"})


class TestRates:
    def rates(self, config, step=10):
        """The learning rate of each parameter."""
        method = build_method(config)
        optimizer = make_optimizer(method, config, fused=False)
        apply_values(optimizer, values(config, step, steps=20, steps_per_epoch=5))
        rate = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
        return {name: rate[id(p)] for name, p in method.named_parameters() if id(p) in rate}

    @pytest.mark.parametrize(
        ("backbone", "layers"),
        [
            ({}, ["stem.0.weight", "blocks.0.conv1.weight", "blocks.1.conv1.weight", "blocks.2.conv1.weight"]),
            (VIT, ["patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.1.attn.qkv.weight"]),
        ],
    )
    def test_each_layer_has_a_share_of_the_next(self, tiny, backbone, layers):
        rates = self.rates(tiny(**backbone, **{"optimizer.layer_decay": "0.5"}))
        found = [rates[f"online.backbone.{name}"] for name in layers]
        shares = [below / above for below, above in pairwise(found)]
        assert shares == pytest.approx([0.5] * (len(layers) - 1))
        head = rates[next(name for name in rates if "projector" in name or "head" in name)]
        assert found[-1] < head
        plain = self.rates(tiny(**backbone))
        assert len(set(plain.values())) == 1
        assert head == plain["online.backbone." + layers[0]]

    def test_frozen_backbone_has_no_rate(self, tiny):
        config = tiny(
            **{"backbone.weights": "x.pth", "backbone.freeze_epochs": "2", "training.epochs": "4"}
        )  # ten steps
        before, after = self.rates(config, step=9), self.rates(config, step=10)
        for name in before:
            is_frozen = name.startswith("online.backbone.")
            assert (before[name] == 0) == is_frozen
            assert after[name] > 0

    def test_a_rate_of_zero_stops_weight_decay_too(self):
        parameter = torch.nn.Parameter(torch.ones(2, 2))
        optimizer = torch.optim.AdamW([{"params": [parameter], "decays": True, "speed": 1.0, "backbone": True}])
        parameter.grad = torch.ones(2, 2)
        apply_values(optimizer, Values(lr=1.0, weight_decay=0.5, momentum=0.9, backbone=0.0))
        optimizer.step()
        assert torch.equal(parameter, torch.ones(2, 2))
