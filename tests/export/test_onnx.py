"""ONNX: onnxruntime gives the outputs of the encoder, and the card describes the preprocessing."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as TF

from exporting import everything, noise_views, session
from optional import needs_onnx
from prosmin.cli import main
from prosmin.data.views import evaluation_view
from prosmin.encoder import Encoder, load
from prosmin.errors import ProsminError, UsageError
from prosmin.export import export, onnx_graph
from prosmin.export.card import check_agreement, deviation, outputs_of, random_views
from prosmin.methods import build_method
from prosmin.training.pretrain import pretrain
from published_layouts import timm_weights
from tiny_methods import tiny_method

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'prosmin[onnx]'")
pytestmark = needs_onnx

# The same sums in another order, in float32, relative to the outputs' size.
ROUNDINGS = 1e-5


@pytest.fixture(scope="module")
def resnet_onnx(resnet_run, folder) -> Path:
    export(resnet_run, folder / "resnet.onnx", format="onnx")
    return folder / "resnet.onnx"


class TestOnnx:
    @pytest.mark.parametrize(
        ("run", "names"),
        [
            ("resnet_run", ["features", "mean", "scale"]),
            ("vit_run", ["features", "mean", "scale"]),
            ("timm_resnet_run", ["features", "mean", "scale"]),  # an inner value of its graph is also called mean
            ("ibot_run", ["features", "mean"]),
        ],
    )
    def test_onnxruntime_gives_the_outputs_of_the_encoder_for_any_batch(self, run, names, request, tmp_path):
        run = request.getfixturevalue(run)
        lines = export(run, tmp_path / "encoder.onnx", format="onnx")
        onnx.checker.check_model(tmp_path / "encoder.onnx", full_check=True)
        graph, encoder = session(tmp_path / "encoder.onnx"), load(run).to("cpu")
        assert [output.name for output in graph.get_outputs()] == names
        assert ("no scale" in "\n".join(lines)) == ("scale" not in names)
        for count in (1, 2, 5):
            views = noise_views(encoder, count)
            wanted = encoder.method.encode(views)
            got = graph.run(names, {"views": views.numpy()})
            for value, name in zip(got, names, strict=True):
                assert value.dtype == np.float32
                assert deviation(torch.from_numpy(value), getattr(wanted, name)) < ROUNDINGS

    def test_the_preprocessing_of_the_card_gives_the_outputs_of_the_encoder(self, resnet_run, resnet_onnx):
        """With torchvision and only the numbers of the card."""
        how = json.loads(resnet_onnx.with_suffix(".json").read_text())["preprocessing"]
        picture = torch.randint(0, 256, (3, 57, 90), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        height, width = picture.shape[1:]
        side = round(how["crop_share"] * min(height, width))
        square = TF.crop(picture / 255, (height - side) // 2, (width - side) // 2, side, side)
        mode = InterpolationMode(how["interpolation"])
        view = TF.resize(square, [how["size"]] * 2, mode, antialias=how["antialias"]).clamp(0, 1)
        view = TF.normalize(view, how["mean"], how["std"])
        got = session(resnet_onnx).run(["features", "mean", "scale"], {"views": view[None].numpy()})
        wanted = load(resnet_run)(picture[None])
        for value, own in zip(got, wanted, strict=True):
            assert deviation(torch.from_numpy(value), own) < 1e-4  # torchvision rounds in another way

    @pytest.mark.parametrize("mode", ["RGBA", "LA", "I;16"])
    @pytest.mark.parametrize("sides", [(57, 90), (700, 1900)])
    def test_the_steps_of_the_card_describe_the_reading_of_files(self, resnet_run, resnet_onnx, tmp_path, mode, sides):
        """Rotated, transparent, 16 bits, large: with Pillow and numpy, following the steps."""
        how = json.loads(resnet_onnx.with_suffix(".json").read_text())["preprocessing"]
        values = np.random.default_rng(0).integers(0, 256, (*(side // 10 for side in sides), 4))
        values = values.repeat(10, 0).repeat(10, 1)
        exif = Image.Exif()
        exif[0x0112] = 6  # rotate by 90 degrees, clockwise
        if mode == "I;16":
            wide = (values[..., 0] * 257 - values[..., 1] // 2).clip(0).astype(np.uint16)
            picture, grey = Image.fromarray(wide), (wide.astype(np.int64) * 255 + 32767) // 65535
            rgb = np.stack([grey] * 3, -1)
        else:
            bands = values if mode == "RGBA" else values[..., :2]
            picture = Image.fromarray(bands.astype(np.uint8), mode)
            rgb = values[..., :3] if mode == "RGBA" else values[..., :1].repeat(3, -1)
        picture.save(tmp_path / "x.png", exif=exif)

        upright = Image.fromarray(np.rot90(rgb, -1).astype(np.uint8))
        shorter, longer = sorted(upright.size)
        factor = min(how["max_shorter"] / shorter, how["max_longer"] / longer)
        if factor < 1:
            upright = upright.resize([round(side * factor) for side in upright.size], Image.Resampling.BILINEAR)
        width, height = upright.size
        side = round(how["crop_share"] * min(height, width))
        square = TF.crop(TF.to_tensor(upright), (height - side) // 2, (width - side) // 2, side, side)
        view = TF.resize(square, [how["size"]] * 2, InterpolationMode(how["interpolation"]), antialias=True)
        view = TF.normalize(view.clamp(0, 1), how["mean"], how["std"])
        got = session(resnet_onnx).run(["features"], {"views": view[None].numpy()})[0]
        assert deviation(torch.from_numpy(got), load(resnet_run).features(tmp_path / "x.png")) < 1e-4
        assert all(word in " ".join(how["steps"]) for word in ("EXIF", "transparency", "16 bit", "reduce"))

    def test_the_graph_carries_its_card(self, resnet_run, resnet_onnx):
        card = json.loads(resnet_onnx.with_suffix(".json").read_text())
        inside = session(resnet_onnx).get_modelmeta().custom_metadata_map
        checked = card.pop("checked")
        assert {name: json.loads(text) for name, text in inside.items()} == card
        assert card["preprocessing"]["crop_share"] == 0.875
        assert card["made_of"]["hash"] == load(resnet_run).card["hash"]
        assert card["outputs"]["scale"]["shape"] == ["N", 24]
        assert card["absent"] == []
        assert max(checked["deviation"].values()) < ROUNDINGS

    def test_the_graph_has_no_paths_of_this_machine(self, resnet_onnx):
        content = resnet_onnx.read_bytes()
        for place in (Path(onnx.__file__).parents[1], Path(onnx_graph.__file__).parents[2]):
            assert str(place).encode() not in content

    def test_a_graph_that_differs_is_not_written(self, resnet_run, tmp_path, monkeypatch):
        def slightly_off(self: onnx_graph._Graph, views: Tensor) -> tuple[Tensor, ...]:
            return right(self, views * 1.002)

        right = onnx_graph._Graph.forward
        monkeypatch.setattr(onnx_graph._Graph, "forward", slightly_off)
        with pytest.raises(ProsminError, match=r"features .* allowed: 1e-04"):
            export(resnet_run, tmp_path / "new" / "encoder.onnx", format="onnx")
        assert everything(tmp_path) == []

    def test_a_network_that_cannot_be_traced(self, resnet_run, tmp_path, monkeypatch):
        def untraceable(self: onnx_graph._Graph, views: Tensor) -> tuple[Tensor, ...]:
            return (views if views.sum() > 0 else -views,)  # a branch that depends on the image

        monkeypatch.setattr(onnx_graph._Graph, "forward", untraceable)
        with pytest.raises(ProsminError, match=r"ONNX.*--format timm") as caught:
            export(resnet_run, tmp_path / "encoder.onnx", format="onnx")
        assert "\n" not in str(caught.value)
        assert everything(tmp_path) == []

    def test_weights_too_large_for_one_file(self, resnet_run, tmp_path, monkeypatch):
        monkeypatch.setattr("torch.onnx._internal.exporter._onnx_program._LARGE_MODEL_THRESHOLD", 0)
        lines = export(resnet_run, tmp_path / "encoder.onnx", format="onnx")
        assert everything(tmp_path) == ["encoder.json", "encoder.onnx", "encoder.onnx.data"]
        assert "encoder.onnx.data" in lines[-1]
        views = noise_views(load(resnet_run), 2)
        assert session(tmp_path / "encoder.onnx").run(["features"], {"views": views.numpy()})[0].shape == (2, 64)

    def test_missing_packages_are_named(self, resnet_run, tmp_path, monkeypatch):
        present = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if "onnx" in name else present(name))
        with pytest.raises(ProsminError, match=r"onnx and onnxscript and onnxruntime.*pip install 'prosmin\[onnx\]'"):
            export(resnet_run, tmp_path / "encoder.onnx", format="onnx")


class TestPatches:
    @pytest.mark.parametrize(
        ("run", "names"),
        [("vit_run", ["features", "mean", "scale", "patches"]), ("ibot_run", ["features", "mean", "patches"])],
    )
    def test_onnxruntime_gives_the_patches_of_the_encoder(self, run, names, request, tmp_path):
        run = request.getfixturevalue(run)
        lines = export(run, tmp_path / "encoder.onnx", format="onnx", patches=True)
        assert "patches" in "\n".join(lines)
        graph, encoder = session(tmp_path / "encoder.onnx"), load(run).to("cpu")
        assert [output.name for output in graph.get_outputs()] == names
        for count in (1, 3):
            views = noise_views(encoder, count)
            expected = outputs_of(encoder, views, patches=True)
            for value, name in zip(graph.run(names, {"views": views.numpy()}), names, strict=True):
                assert deviation(torch.from_numpy(value), expected[name]) < ROUNDINGS
        card = json.loads((tmp_path / "encoder.json").read_text())
        assert card["outputs"]["patches"]["shape"] == ["N", *expected["patches"].shape[1:]]
        assert "patches" in card["checked"]["deviation"]
        assert "patches" not in card["absent"]

    def test_one_pass_through_the_network(self, vit_run, tmp_path):
        counts = []
        for patches in (False, True):
            export(vit_run, tmp_path / f"{patches}.onnx", format="onnx", patches=patches)
            nodes = onnx.load(tmp_path / f"{patches}.onnx").graph.node
            counts.append(sum(node.op_type in ("MatMul", "Gemm") for node in nodes))
        assert counts[0] == counts[1] + 1  # alone, the class token has its query as a product of its own

    def test_a_network_of_timm(self, tmp_path):
        name = f"timm:test_vit@{timm_weights(tmp_path)}"
        export(name, tmp_path / "encoder.onnx", format="onnx", patches=True)
        views = noise_views(load(name), 2)
        (got,) = session(tmp_path / "encoder.onnx").run(["patches"], {"views": views.numpy()})
        assert deviation(torch.from_numpy(got), outputs_of(load(name), views, patches=True)["patches"]) < ROUNDINGS

    def test_patches_that_differ_are_not_written(self, vit_run, tmp_path, monkeypatch):
        def turned(backbone: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
            features, patches = right(backbone, x)
            return features, patches.transpose(1, 2)

        right = onnx_graph.features_and_patches
        monkeypatch.setattr(onnx_graph, "features_and_patches", turned)
        with pytest.raises(ProsminError, match=r"patches .* allowed: 1e-04"):
            export(vit_run, tmp_path / "encoder.onnx", format="onnx", patches=True)
        assert everything(tmp_path) == []

    def test_refusals(self, resnet_run, vit_run, tmp_path):
        with pytest.raises(UsageError, match=r"--patches needs a ViT"):
            export(resnet_run, tmp_path / "encoder.onnx", format="onnx", patches=True)
        with pytest.raises(UsageError, match=r"--patches is for --format onnx.*timm"):
            export(vit_run, tmp_path / "encoder.safetensors", format="timm", patches=True)
        with pytest.raises(UsageError, match=r"--half is for --format safetensors"):
            export(vit_run, tmp_path / "encoder.onnx", format="onnx", patches=True, half=True)
        assert everything(tmp_path) == []


class TestAgreement:
    def test_deviation_is_relative_to_the_largest_value(self):
        assert deviation(torch.tensor([[2.0, -9.0]]), torch.tensor([[2.0, -10.0]])) == pytest.approx(0.1)
        assert deviation(torch.zeros(2, 3), torch.zeros(2, 3)) == 0.0

    @pytest.mark.parametrize("wrong", [torch.full((5, 3), torch.nan), torch.ones(1, 3), torch.full((5, 3), torch.inf)])
    def test_nan_and_other_shapes_never_agree(self, wrong):
        assert deviation(wrong, torch.ones(5, 3)) == torch.inf

    def test_random_images_have_different_outputs(self, vit_run):
        """A graph that permutes its rows must not pass."""
        encoder = load(vit_run).to("cpu")
        with pytest.raises(ProsminError, match="5 random images"):
            check_agreement(encoder, lambda v: outputs_of(encoder, v.roll(1, 0)), tolerance=1e-3, remedy="")
        assert random_views(encoder.config.views, 5).std() > 0.5  # like a normalised image

    def test_a_deterministic_network_has_no_scale(self):
        config = tiny_method("prosmin", heads__scale="zero")
        encoder = Encoder(build_method(config), config)
        assert list(outputs_of(encoder, random_views(config.views, 2))) == ["features", "mean"]


def test_the_command_exports_a_trained_run(tmp_path, capsys):
    run = tmp_path / "run"
    pretrain(tiny_method("dino", vit=True), run)
    file = tmp_path / "dino.onnx"
    command = ["export", str(run), "--format", "onnx", "--out", str(file)]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert f"wrote {file}" in printed
    assert "no scale" in printed
    picture = torch.randint(0, 256, (3, 3, 32, 32), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    encoder = load(run).to("cpu")
    views = evaluation_view(picture, torch.tensor([[32, 32]] * 3), encoder.config.views)
    got = session(file).run(["features"], {"views": views.numpy()})[0]
    assert deviation(torch.from_numpy(got), encoder(picture).features) < ROUNDINGS
    assert main(command) == 2
    assert "already" in capsys.readouterr().err
    folder = ["export", str(run), "--format", "safetensors", "--out", str(tmp_path / "folder")]
    assert main([*folder, "--half"]) == 0
    assert load(tmp_path / "folder").card["precision"] == "float16"
    assert main([*folder, "--again"]) == 0
    assert "precision" not in load(tmp_path / "folder").card
