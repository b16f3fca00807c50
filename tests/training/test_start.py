"""What a run starts from: backbone.weights as timm's own, a run, a shipped encoder or a file, and bad ones of each."""

import json
from itertools import pairwise

import pytest
import timm
import torch
from safetensors.torch import load_file

from prosmin import config as configs
from prosmin.config import METHOD_GROUPS
from prosmin.encoder import save_encoder
from prosmin.encoder.file import read_card
from prosmin.encoder.shipped import shipped_folder
from prosmin.errors import MissingFileError, ProsminError, UsageError
from prosmin.methods import build_method
from prosmin.models.pretrained import PRETRAINED
from prosmin.models.resnet import SmallResNet
from prosmin.training.schedules import Values, values
from prosmin.training.start import load_start
from prosmin.training.step import apply_values, make_optimizer
from published_layouts import dino_checkpoint

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
        sentence, cautions = load_start(network, config)
        assert asked == ["test_vit"]
        assert sentence == "timm's own weights, tag r160_in1k."
        assert cautions == []
        for part in ("online", "target"):
            backbone = network.get_submodule(f"{part}.backbone")
            assert all(bool((tensor == 0.25).all()) for tensor in backbone.state_dict().values())

    def test_other_normalisation_is_named(self, tiny, own):
        own()
        config = tiny(**VIT, **{"backbone.weights": PRETRAINED})
        _, (caution,) = load_start(build_method(config), config)
        for name, value in NORMALISED.items():
            assert f"--{name} {value}" in caution

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


SHIPPED = {
    "backbone.name": "vit_tiny_patch16_224",
    "backbone.patch_size": "4",
    "backbone.width": "192",
    "backbone.depth": "12",
    "backbone.weights": "cifar10-vit",
}


class TestHeads:
    """All numbers of attention heads fit the same weights, but only one gives the same features."""

    def started(self, tiny, weights, *, heads=None, **fields):
        """The warnings of a test_vit, which has two heads by its name."""
        fields = VIT | NORMALISED | ({"backbone.heads": heads} if heads else {}) | fields
        config = tiny(**fields, **{"backbone.weights": str(weights)})
        return load_start(build_method(config), config)[1]

    def refused(self, tiny, weights, *, has, heads=None, **fields):
        network = heads or "2"
        with pytest.raises(ProsminError, match=rf"has {has} .*network {network},.*backbone\.heads to {has}\.$"):
            self.started(tiny, weights, heads=heads, **fields)

    @pytest.fixture
    def vit_run(self, tiny, tmp_path):
        """A function that writes the encoder of a test_vit with so many heads, before its first step."""

        def write(heads=None):
            config = tiny(**VIT, **NORMALISED, **({"backbone.heads": heads} if heads else {}))
            folder = tmp_path / f"heads-{heads}"
            folder.mkdir()
            save_encoder(build_method(config), config, folder, step=0, steps=0, trained=0)
            return folder

        return write

    def test_of_a_run(self, tiny, vit_run):
        run = vit_run("4")
        for weights in (run, run / "encoder.safetensors"):
            self.refused(tiny, weights, has=4)
            assert self.started(tiny, weights, heads="4") == []
        named = vit_run()  # its card leaves them to the name
        self.refused(tiny, named, has=2, heads="4")
        assert self.started(tiny, named) == []

    def test_of_a_shipped_encoder(self, tiny):
        config = tiny(**SHIPPED, **{"backbone.heads": "6"})
        with pytest.raises(ProsminError, match=r"cifar10-vit.* has 3 .*network 6,.*backbone\.heads to 3\.$"):
            load_start(build_method(config), config)

    def test_of_a_calibrated_network_of_timm(self, tiny, vit_run):
        run = vit_run("4")
        card = read_card(run)
        backbone = {"name": "test_vit", "num_heads": 4}
        card |= {"encoder": "timm:test_vit", "backbone": backbone, "views": card.pop("config")["views"]}
        (run / "encoder.json").write_text(json.dumps(card))
        self.refused(tiny, run, has=4)
        assert self.started(tiny, run, heads="4") == []

    def test_of_timms_own_weights(self, tiny, own):
        own()
        self.refused(tiny, PRETRAINED, has=2, heads="4")
        assert self.started(tiny, PRETRAINED, heads="2") == []

    @pytest.mark.parametrize("layout", ["DINO", "plain"])
    def test_of_a_published_file(self, tiny, tmp_path, layout):
        tensors = timm.create_model("test_vit", num_classes=0, img_size=32).state_dict()
        torch.save(tensors if layout == "plain" else dino_checkpoint(tensors, student=tensors), tmp_path / "w.pth")
        self.refused(tiny, tmp_path / "w.pth", has=2, heads="4")
        assert self.started(tiny, tmp_path / "w.pth") == []

    def test_unknown_ones_are_a_warning(self, tiny, tmp_path, vit_run):
        sizes = {"embed_dim": 32, "num_heads": 2, "img_size": 32}  # of a network that has no name
        torch.save(timm.create_model("test_vit", num_classes=0, **sizes).state_dict(), tmp_path / "w.pth")
        (caution,) = self.started(tiny, tmp_path / "w.pth", **{"backbone.width": "32"})
        assert "w.pth" in caution
        assert "backbone.heads" in caution
        run = vit_run("4")
        (run / "encoder.json").unlink()
        (caution,) = self.started(tiny, run)
        assert "backbone.heads" in caution


class TestOthers:
    def test_a_shipped_encoder(self, tiny):
        config = tiny(**SHIPPED, **{"backbone.heads": "3"})
        network = build_method(config)
        _, (caution,) = load_start(network, config)
        assert "--views.mean 0.4914,0.4822,0.4465 --views.std 0.247,0.2435,0.2616" in caution
        stored = load_file(shipped_folder("cifar10-vit") / "encoder.safetensors")["online.backbone.cls_token"]
        assert torch.equal(network.get_submodule("online.backbone").cls_token, stored.float())

    def test_a_run_with_other_normalisation(self, tiny, finished):
        _, cautions = load_start(build_method(tiny()), tiny(**{"backbone.weights": str(finished)}))
        assert cautions == []
        config = tiny(**{"backbone.weights": str(finished), "views.std": "0.2,0.2,0.2"})
        _, (caution,) = load_start(build_method(config), config)
        assert "--views.std" in caution
        assert "--views.mean" not in caution

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

    def test_a_network_without_layers_is_refused_before_its_folder_is_made(self, train, tmp_path, monkeypatch):
        monkeypatch.delattr(SmallResNet, "group_matcher")
        with pytest.raises(UsageError, match=r"optimizer\.layer_decay.*resnet8_cifar"):
            train("run", **{"optimizer.layer_decay": "0.5"})
        assert not (tmp_path / "run").exists()

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
