"""The folder for timm and the Hugging Face Hub: timm opens it, and its page says what the encoder is."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import yaml
from PIL import Image
from timm.data import create_transform, resolve_data_config
from torch import Tensor

from exporting import everything, make_run
from prosmin.cli import main
from prosmin.encoder import load
from prosmin.errors import ProsminError, UsageError
from prosmin.export import export, timm_checkpoint
from prosmin.export.card import deviation
from published_layouts import moco_checkpoint, vit_tensors
from tiny_methods import tiny_method

FILES = ["README.md", "config.json", "model.safetensors"]


@pytest.fixture(scope="module")
def cropping_run(folder) -> Path:
    """Its evaluation view is the centred 7/8."""
    changes = {"views__crop_share": "0.875", "data__spec": "folder:/home/someone/my-images@train"}
    return make_run(tiny_method("dino", vit=True, **changes), folder / "cropping")


@pytest.fixture(scope="module")
def exported(cropping_run, folder) -> Path:
    export(cropping_run, folder / "hub", format="huggingface")
    return folder / "hub"


def opened(folder: Path, **options: object) -> torch.nn.Module:
    return timm.create_model(f"local-dir:{folder}", pretrained=True, **options).eval()


def noise(side: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8))


@torch.no_grad()
def features_by_timm(network: torch.nn.Module, image: Image.Image) -> Tensor:
    return network(create_transform(**resolve_data_config(model=network))(image)[None])


def page(folder: Path) -> tuple[dict[str, object], str]:
    """The front matter of README.md, and the rest."""
    _, head, text = (folder / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(head), text


class TestNetwork:
    @pytest.mark.parametrize(
        ("run", "side"),
        [
            ("vit_run", 32),
            ("timm_resnet_run", 32),
            ("ibot_run", 32),
            ("cropping_run", 36),  # 7/8 of it is rounded to 32 pixels
        ],
    )
    def test_timm_and_its_transform_give_the_features_of_the_encoder(self, run, side, request, tmp_path):
        """The image needs no resizing, which timm rounds to bytes."""
        run = request.getfixturevalue(run)
        export(run, tmp_path / "hub", format="huggingface")
        assert everything(tmp_path / "hub") == FILES
        image = noise(side)
        wanted = load(run, device="cpu").features(image)
        assert deviation(features_by_timm(opened(tmp_path / "hub", num_classes=0), image), wanted) < 1e-5
        assert deviation(features_by_timm(opened(tmp_path / "hub"), image), wanted) < 1e-5

    def test_a_new_classifier_keeps_the_backbone(self, exported):
        network, plain = opened(exported, num_classes=7), opened(exported, num_classes=0)
        views = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            assert network(views).shape == (2, 7)
            assert torch.equal(network.forward_features(views), plain.forward_features(views))

    def test_the_target_network(self, vit_run, tmp_path):
        for network in ("online", "target"):
            export(vit_run, tmp_path / network, format="huggingface", network=network)
        image, encoder = noise(32), load(vit_run, device="cpu")
        found = [features_by_timm(opened(tmp_path / network), image) for network in ("online", "target")]
        assert deviation(found[1], encoder.of_target().features(image)) < 1e-5
        assert deviation(found[0], found[1]) > 1e-3

    def test_the_configuration_is_of_these_weights(self, exported):
        config = json.loads((exported / "config.json").read_text())
        assert config["num_features"] == 24
        assert config["model_args"]["patch_size"] == 8
        known = config["pretrained_cfg"]
        assert (known["crop_pct"], known["crop_mode"], known["input_size"]) == (0.875, "center", [3, 32, 32])
        assert not {"tag", "url", "hf_hub_id", "license"} & known.keys()  # those of timm's weights of that name

    def test_a_published_checkpoint(self, tmp_path):
        """MoCo v3's ViT-S has twelve heads, timm's of that name has six."""
        tensors = vit_tensors(width=384, depth=12, patch=16, grid=14)
        torch.save(moco_checkpoint(tensors, momentum=tensors), tmp_path / "moco.pth.tar")
        run = f"timm:vit_small_patch16_224@{tmp_path / 'moco.pth.tar'}"
        export(run, tmp_path / "hub", format="huggingface")
        image = noise(256)
        found = features_by_timm(opened(tmp_path / "hub", num_classes=0), image)
        assert deviation(found, load(run, device="cpu").features(image)) < 1e-5
        written = [(tmp_path / "hub" / name).read_text() for name in ("README.md", "config.json")]
        assert not any(str(tmp_path) in text for text in written)


class TestPlaces:
    def test_networks_of_prosmin_are_refused(self, resnet_run, tmp_path):
        with pytest.raises(UsageError, match=r"resnet8_cifar.*--format onnx or --format safetensors"):
            export(resnet_run, tmp_path / "hub", format="huggingface")
        assert everything(tmp_path) == []

    def test_another_network_of_that_name_is_an_error(self, vit_run, tmp_path, monkeypatch):
        right = timm_checkpoint.vit_options
        for wrong in ({"num_heads": 4}, {"depth": 3}):  # the same shapes with other features; other shapes
            monkeypatch.setattr(timm_checkpoint, "vit_options", lambda *given, wrong=wrong: right(*given) | wrong)
            with pytest.raises(ProsminError, match="othing was written"):
                export(vit_run, tmp_path / "hub", format="huggingface")
        assert everything(tmp_path) == []

    def test_files_are_replaced_only_with_again(self, vit_run, tmp_path):
        (tmp_path / "README.md").write_text("mine")
        with pytest.raises(UsageError, match=r"README\.md.*--again"):
            export(vit_run, tmp_path, format="huggingface")
        assert (tmp_path / "README.md").read_text() == "mine"
        export(vit_run, tmp_path, format="huggingface", again=True)
        assert everything(tmp_path) == FILES


class TestPage:
    def test_its_head_is_for_the_hub(self, exported):
        head, _ = page(exported)
        assert (head["license"], head["library_name"]) == ("unknown", "timm")
        assert "image-feature-extraction" in head["tags"]

    def test_its_code_runs(self, exported, tmp_path, monkeypatch, capsys):
        noise(40).save(tmp_path / "image.jpg")
        monkeypatch.chdir(tmp_path)
        code = re.search(r"```python\n(.*?)```", page(exported)[1], re.DOTALL)[1]
        exec(code.replace("hf-hub:USER/NAME", f"local-dir:{exported}"), {})
        assert capsys.readouterr().out == "torch.Size([1, 24])\n"

    def test_it_says_how_the_encoder_was_trained_without_folders_of_this_machine(self, exported, cropping_run):
        _, text = page(exported)
        assert "| method | DINO" in text
        assert "| images | `folder:my-images@train` |" in text
        assert load(cropping_run).card["hash"] in text
        assert "/home" not in text

    def test_it_has_the_results_of_these_weights(self, cropping_run, tmp_path):
        own = load(cropping_run).card["hash"]
        (cropping_run / "results").mkdir()
        for protocol, metrics, weights in (("knn", {"top1": 0.8125}, own), ("linear", {"top1": 0.4375}, "others")):
            row = {"metrics": metrics, "data": {"test": "folder:/home/someone/labelled@test"}}
            file = cropping_run / "results" / f"{protocol}.json"
            file.write_text(json.dumps(row | {"checkpoint": {"step": 4, "hash": weights}}))
        export(cropping_run, tmp_path / "online", format="huggingface")
        export(cropping_run, tmp_path / "target", format="huggingface", network="target")
        _, text = page(tmp_path / "online")
        assert re.search(r"\| knn on `folder:labelled@test`: .* \| 81\.2 % \|", text)
        assert "linear" not in text.partition("## What was measured")[2]
        assert "81.2" not in page(tmp_path / "target")[1]

    def test_a_shipped_encoder_has_its_own_card(self, tmp_path):
        assert main(["export", "cifar10-vit", "--format", "huggingface", "--out", str(tmp_path / "hub")]) == 0
        head, text = page(tmp_path / "hub")
        assert head["license"] == "mit"
        assert all(f"## {heading}" in text for heading in ("How it was made", "What was measured", "Limits"))
        image = noise(32)
        wanted = load("cifar10-vit", device="cpu").features(image)
        assert deviation(features_by_timm(opened(tmp_path / "hub"), image), wanted) < 1e-5
