"""Export: other programs get the encoder's own numbers from what is written, or nothing is written."""

import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import timm
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from timm.data import resolve_model_data_config
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as TF

from prosmin import config as configs
from prosmin.cli import main
from prosmin.data.views import evaluation_view
from prosmin.encoder import Encoder, load, save_encoder
from prosmin.encoder import file as encoder_file
from prosmin.errors import ProsminError, UsageError
from prosmin.export import export, onnx_graph, timm_checkpoint
from prosmin.export.card import check_agreement, deviation, outputs_of, random_views
from prosmin.files import staged
from prosmin.methods import build_method
from prosmin.training.pretrain import pretrain
from published_layouts import dino_checkpoint, moco_checkpoint, vit_tensors
from tiny_methods import tiny_method

# A graph computes the same sums in another order: some roundings of float32, relative to the outputs' size.
ROUNDINGS = 1e-5


def make_run(config: configs.Config, folder: Path) -> Path:
    """A run folder's encoder with weights and statistics that are not those of a fresh network."""
    method = build_method(config)
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in method.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=random))
        for norm in method.modules():
            if isinstance(norm, _BatchNorm):
                norm.running_mean.normal_(std=0.2, generator=random)
                norm.running_var.uniform_(0.5, 2.0, generator=random)
    folder.mkdir()
    (folder / "config.yaml").write_text("# of a run\n")
    save_encoder(method, config, folder, step=4, steps=8, trained=4)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("export")


@pytest.fixture(scope="module")
def resnet_run(folder) -> Path:
    return make_run(tiny_method("prosmin", views__crop_share="0.875"), folder / "resnet")


@pytest.fixture(scope="module")
def vit_run(folder) -> Path:
    return make_run(tiny_method("prosmin", vit=True), folder / "vit")


@pytest.fixture(scope="module")
def timm_resnet_run(folder) -> Path:
    config = tiny_method("prosmin", backbone__name="test_resnet", views__interpolation="bilinear")
    return make_run(config, folder / "timm_resnet")


@pytest.fixture(scope="module")
def ibot_run(folder) -> Path:
    return make_run(tiny_method("ibot"), folder / "ibot")


@pytest.fixture(scope="module")
def resnet_onnx(resnet_run, folder) -> Path:
    export(resnet_run, folder / "resnet.onnx", format="onnx")
    return folder / "resnet.onnx"


def noise_views(encoder: Encoder, count: int) -> Tensor:
    side = encoder.config.views.global_size
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(count))


def session(file: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def everything(folder: Path) -> list[str]:
    """All below a folder, hidden files included."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


class TestOnnx:
    @pytest.mark.parametrize(
        ("run", "names"),
        [
            ("resnet_run", ["features", "mean", "scale"]),
            ("vit_run", ["features", "mean", "scale"]),
            ("timm_resnet_run", ["features", "mean", "scale"]),  # a value inside its graph is called mean as well
            ("ibot_run", ["features", "mean"]),
        ],
    )
    def test_onnxruntime_gives_the_encoders_outputs_for_any_batch(self, run, names, request, tmp_path):
        run = request.getfixturevalue(run)
        said = export(run, tmp_path / "encoder.onnx", format="onnx")
        onnx.checker.check_model(tmp_path / "encoder.onnx", full_check=True)
        graph, encoder = session(tmp_path / "encoder.onnx"), load(run).to("cpu")
        assert [output.name for output in graph.get_outputs()] == names
        assert ("has no scale" in "\n".join(said)) == ("scale" not in names)
        for count in (1, 2, 5):
            views = noise_views(encoder, count)
            wanted = encoder.method.encode(views)
            got = graph.run(names, {"views": views.numpy()})
            for value, name in zip(got, names, strict=True):
                assert value.dtype == np.float32
                assert deviation(torch.from_numpy(value), getattr(wanted, name)) < ROUNDINGS

    def test_the_cards_preprocessing_gives_the_encoders_own_outputs(self, resnet_run, resnet_onnx):
        """An image by torchvision alone, from nothing but the card's numbers."""
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
            assert deviation(torch.from_numpy(value), own) < 1e-4  # torchvision's filters round otherwise

    @pytest.mark.parametrize("mode", ["RGBA", "LA", "I;16"])
    @pytest.mark.parametrize("sides", [(57, 90), (700, 1900)])
    def test_the_cards_steps_are_those_of_a_file(self, resnet_run, resnet_onnx, tmp_path, mode, sides):
        """Turned, transparent, of 16 bits, large: by Pillow and numpy, from what the steps say."""
        how = json.loads(resnet_onnx.with_suffix(".json").read_text())["preprocessing"]
        values = np.random.default_rng(0).integers(0, 256, (*(side // 10 for side in sides), 4))
        values = values.repeat(10, 0).repeat(10, 1)
        exif = Image.Exif()
        exif[0x0112] = 6  # to be turned by a quarter, clockwise
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
        assert [word for word in ("EXIF", "transparency", "16 bit", "reduce") if word in " ".join(how["steps"])] == [
            "EXIF",
            "transparency",
            "16 bit",
            "reduce",
        ]

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

    def test_the_graph_holds_no_place_of_this_machine(self, resnet_onnx):
        content = resnet_onnx.read_bytes()
        for place in (Path(onnx.__file__).parents[1], Path(onnx_graph.__file__).parents[2]):
            assert str(place).encode() not in content

    def test_a_graph_that_differs_is_not_written(self, resnet_run, tmp_path, monkeypatch):
        def slightly_off(self: onnx_graph._Graph, views: Tensor) -> tuple[Tensor, ...]:
            return right(self, views * 1.002)

        right = onnx_graph._Graph.forward
        monkeypatch.setattr(onnx_graph._Graph, "forward", slightly_off)
        with pytest.raises(ProsminError, match=r"features differ .* allowed: 1e-04. Nothing was written"):
            export(resnet_run, tmp_path / "new" / "encoder.onnx", format="onnx")
        assert everything(tmp_path) == []

    def test_a_network_that_cannot_be_traced_is_told(self, resnet_run, tmp_path, monkeypatch):
        def untraceable(self: onnx_graph._Graph, views: Tensor) -> tuple[Tensor, ...]:
            return (views if views.sum() > 0 else -views,)  # a branch that depends on the image

        monkeypatch.setattr(onnx_graph._Graph, "forward", untraceable)
        with pytest.raises(ProsminError, match=r"cannot be written as ONNX.*--format timm") as caught:
            export(resnet_run, tmp_path / "encoder.onnx", format="onnx")
        assert "\n" not in str(caught.value)
        assert everything(tmp_path) == []

    def test_weights_too_large_for_one_file_lie_beside(self, resnet_run, tmp_path, monkeypatch):
        monkeypatch.setattr("torch.onnx._internal.exporter._onnx_program._LARGE_MODEL_THRESHOLD", 0)
        said = export(resnet_run, tmp_path / "encoder.onnx", format="onnx")
        assert everything(tmp_path) == ["encoder.json", "encoder.onnx", "encoder.onnx.data"]
        assert "encoder.onnx.data" in said[-1]
        views = noise_views(load(resnet_run), 2)
        assert session(tmp_path / "encoder.onnx").run(["features"], {"views": views.numpy()})[0].shape == (2, 64)

    def test_missing_packages_are_named_with_the_way_to_get_them(self, resnet_run, tmp_path, monkeypatch):
        present = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if "onnx" in name else present(name))
        with pytest.raises(ProsminError, match=r"onnx and onnxscript and onnxruntime, .*pip install 'prosmin\[onnx\]'"):
            export(resnet_run, tmp_path / "encoder.onnx", format="onnx")


class TestTimm:
    @pytest.mark.parametrize("run", ["vit_run", "timm_resnet_run", "ibot_run"])
    def test_timms_features_are_the_encoders(self, run, request, tmp_path, monkeypatch):
        run = request.getfixturevalue(run)
        export(run, tmp_path / "backbone.safetensors", format="timm")
        card = json.loads((tmp_path / "backbone.json").read_text())
        encoder = load(run).to("cpu")
        views = noise_views(encoder, 5)
        file = str(tmp_path / "backbone.safetensors")
        wanted = encoder.method.encode(views).features
        monkeypatch.chdir(tmp_path)  # the call names the file without its folder
        for network in (
            timm.create_model(card["name"], checkpoint_path=file, **card["kwargs"]),
            eval(card["call"], {"timm": timm}),
        ):
            assert deviation(network.eval()(views).detach(), wanted) < 1e-6

    def test_timms_own_transforms_prepare_pictures_as_the_encoder_does(self, timm_resnet_run, tmp_path):
        export(timm_resnet_run, tmp_path / "backbone.safetensors", format="timm")
        card = json.loads((tmp_path / "backbone.json").read_text())
        file = str(tmp_path / "backbone.safetensors")
        how = resolve_model_data_config(timm.create_model(card["name"], checkpoint_path=file, **card["kwargs"]))
        views = load(timm_resnet_run).config.views
        assert tuple(how["input_size"]) == (3, 32, 32)
        assert (how["crop_pct"], how["interpolation"]) == (views.crop_share, "bilinear")
        assert (tuple(how["mean"]), tuple(how["std"])) == (views.mean, views.std)

    def test_our_own_networks_are_not_in_timm(self, resnet_run, tmp_path):
        with pytest.raises(UsageError, match=r"resnet8_cifar .*--format onnx or --format safetensors"):
            export(resnet_run, tmp_path / "new" / "backbone.safetensors", format="timm")
        assert everything(tmp_path) == []

    def test_a_call_that_builds_another_network_is_noticed(self, vit_run, tmp_path, monkeypatch):
        def other_heads(*_: object) -> dict[str, object]:
            return right(*_) | {"num_heads": 4}  # fits every shape and gives other features

        right = timm_checkpoint.vit_options
        monkeypatch.setattr(timm_checkpoint, "vit_options", other_heads)
        with pytest.raises(ProsminError, match=r"features differ"):
            export(vit_run, tmp_path / "backbone.safetensors", format="timm")
        monkeypatch.setattr(timm_checkpoint, "vit_options", lambda *_: right(*_) | {"depth": 3})
        with pytest.raises(ProsminError, match=r"timm cannot load .* Nothing was written"):
            export(vit_run, tmp_path / "backbone.safetensors", format="timm")
        assert everything(tmp_path) == []


class TestForeign:
    @pytest.fixture
    def run(self, tmp_path) -> str:
        """MoCo v3's ViT-S has twelve heads, which timm's of that name has not: the call must say so."""
        tensors = vit_tensors(width=384, depth=12, patch=16, grid=14)
        file = tmp_path / "moco.pth.tar"
        torch.save(moco_checkpoint(tensors, momentum=tensors), file)
        return f"timm:vit_small_patch16_224@{file}"

    def test_a_checkpoint_of_others_becomes_one_of_timm(self, run, tmp_path):
        export(run, tmp_path / "out" / "moco.safetensors", format="timm")
        card = json.loads((tmp_path / "out" / "moco.json").read_text())
        assert card["kwargs"]["num_heads"] == 12
        assert card["made_of"]["encoder"] == "timm:vit_small_patch16_224"  # the file's place is nobody's business
        encoder = load(run).to("cpu")
        views = noise_views(encoder, 1)
        file = str(tmp_path / "out" / "moco.safetensors")
        network = timm.create_model(card["name"], checkpoint_path=file, **card["kwargs"]).eval()
        assert deviation(network(views).detach(), encoder.method.encode(views).features) < 1e-6

    def test_its_graph_gives_features_alone(self, tmp_path):
        with torch.random.fork_rng():
            torch.manual_seed(1)
            tensors = timm.create_model("test_vit", num_classes=0).state_dict()
        torch.save(dino_checkpoint(tensors, student=tensors), tmp_path / "dino.pth")
        run = f"timm:test_vit@{tmp_path / 'dino.pth'}"
        said = export(run, tmp_path / "dino.onnx", format="onnx")
        assert "out: features; timm:test_vit has no mean and no scale" in said[1]
        assert [output.name for output in session(tmp_path / "dino.onnx").get_outputs()] == ["features"]

    def test_it_has_no_target(self, run, tmp_path):
        with pytest.raises(ProsminError, match="has no target network"):
            export(run, tmp_path / "x", format="safetensors", network="target")
        assert not (tmp_path / "x").exists()

    def test_its_folder_needs_the_file_no_longer(self, run, tmp_path):
        encoder = load(run).to("cpu")
        export(run, tmp_path / "out", format="safetensors", half=True)
        (tmp_path / "moco.pth.tar").unlink()
        views = noise_views(encoder, 1)
        again = load(tmp_path / "out").to("cpu").method.encode(views).features
        assert 0 < deviation(again, encoder.method.encode(views).features) < 2e-2  # weights of 0.3 in 12 blocks


class TestFolder:
    def test_the_folder_is_the_encoder(self, vit_run, tmp_path):
        export(vit_run, tmp_path / "encoder", format="safetensors")
        assert everything(tmp_path) == ["encoder", "encoder/encoder.json", "encoder/encoder.safetensors"]
        first, second = load(vit_run), load(tmp_path / "encoder")
        assert first.card == second.card
        for one, other in zip(first.method.state_dict().items(), second.method.state_dict().items(), strict=True):
            assert one[0] == other[0]
            assert torch.equal(one[1], other[1])

    @pytest.mark.parametrize("run", ["resnet_run", "ibot_run"])
    def test_the_target_takes_the_place_of_the_online_network(self, run, request, tmp_path):
        run = request.getfixturevalue(run)
        export(run, tmp_path / "target", format="safetensors", network="target")
        encoder, target = load(run).to("cpu"), load(tmp_path / "target").to("cpu")
        assert target.card["network"] == "target"
        assert target.card["hash"] != encoder.card["hash"]
        views = noise_views(encoder, 3)
        online, averaged = encoder.method.online.backbone, encoder.method.target.backbone
        assert torch.equal(target.method.encode(views).features, averaged(views))
        assert not torch.equal(averaged(views), online(views))
        assert torch.equal(encoder.method.encode(views).features, online(views))  # the encoder itself is as it was

    def test_there_are_two_networks(self, vit_run, tmp_path):
        with pytest.raises(UsageError, match="--network is 'teacher'; allowed: online, target"):
            export(vit_run, tmp_path / "x", format="safetensors", network="teacher")

    @pytest.mark.parametrize("run", ["resnet_run", "vit_run"])
    def test_half_is_half_as_large_and_nearly_the_encoder(self, run, request, tmp_path):
        run = request.getfixturevalue(run)
        said = export(run, tmp_path / "half", format="safetensors", half=True)
        sizes = [(where / "encoder.safetensors").stat().st_size for where in (tmp_path / "half", run)]
        assert sizes[0] < 0.6 * sizes[1]  # names and vectors stay as large
        first, second = load(run).to("cpu"), load(tmp_path / "half").to("cpu")
        views = noise_views(first, 5)
        found = {
            name: deviation(value, outputs_of(first, views)[name]) for name, value in outputs_of(second, views).items()
        }
        assert set(found) == {"features", "mean", "scale"}
        assert 0 < max(found.values()) < 5e-3  # a weight is rounded by 2^-11 = 5e-4 of itself at most
        assert second.card["precision"] == "float16"
        assert second.card["deviation"].keys() == found.keys()
        assert "float16" in said[-1]
        assert next(second.method.parameters()).dtype == torch.float32

    def test_what_is_no_matrix_stays_exact(self, tmp_path):
        """Statistics, counters, centres, biases: float16 would round them, or has no such number."""
        config = tiny_method("prosmin", heads__batchnorm="true")
        method = build_method(config)
        norm = next(module for module in method.modules() if isinstance(module, _BatchNorm))
        norm.running_var.fill_(1e6)
        norm.num_batches_tracked.fill_(100_001)
        method.get_buffer("centre.value").normal_(std=0.01, generator=torch.Generator().manual_seed(0))
        (tmp_path / "run").mkdir()
        save_encoder(method, config, tmp_path / "run", step=4, steps=8, trained=4)
        export(tmp_path / "run", tmp_path / "half", format="safetensors", half=True)
        full, half = (load_file(tmp_path / name / "encoder.safetensors") for name in ("run", "half"))
        narrow = {name for name, tensor in half.items() if tensor.dtype == torch.float16}
        assert narrow == {name for name, parameter in method.named_parameters() if parameter.ndim > 1}
        assert all(torch.equal(full[name], half[name]) for name in full.keys() - narrow)
        assert {half[name].dtype for name in full.keys() - narrow} == {torch.float32, torch.int64}

    def test_a_buffer_is_no_weight_whatever_its_shape(self):
        module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        module.register_buffer("table", torch.eye(4))
        assert list(encoder_file.matrices(module)) == ["0.weight"]

    def test_what_is_half_stays_half(self, resnet_run, tmp_path):
        export(resnet_run, tmp_path / "half", format="safetensors", half=True)
        export(tmp_path / "half", tmp_path / "copy", format="safetensors")
        first, second = (load_file(tmp_path / name / "encoder.safetensors") for name in ("half", "copy"))
        assert all(torch.equal(first[name], second[name]) for name in first | second)
        assert load(tmp_path / "copy").card == load(tmp_path / "half").card

    def test_the_reference_goes_along(self, resnet_run, tmp_path):
        pictures = torch.randint(0, 256, (60, 3, 32, 32), generator=torch.Generator().manual_seed(5)).to(torch.uint8)
        encoder = load(resnet_run).fit_reference(pictures[:50])
        encoder.save(tmp_path / "fitted")
        for half in (False, True):
            export(tmp_path / "fitted", tmp_path / f"half={half}", format="safetensors", half=half)
            scores = load(tmp_path / f"half={half}").ood_score(pictures[50:])
            torch.testing.assert_close(scores, encoder.ood_score(pictures[50:]), rtol=1e-2, atol=1e-3)

    def test_weights_beyond_float16_are_not_halved(self, tmp_path):
        run = make_run(tiny_method("dino"), tmp_path / "run")
        config, method = load(run).config, load(run).method
        method.get_submodule("online.projector.mlp.0").weight.data[0, 0] = 1e6
        save_encoder(method, config, run, step=4, steps=8, trained=4)
        with pytest.raises(ProsminError, match=r"online.projector.mlp.0.weight .* without --half"):
            export(run, tmp_path / "half", format="safetensors", half=True)
        assert not (tmp_path / "half").exists()

    def test_the_folder_of_a_run_is_not_touched(self, resnet_run, vit_run):
        before = (vit_run / "encoder.safetensors").read_bytes()
        for run in (resnet_run, vit_run):
            with pytest.raises(UsageError, match="is the folder of a run"):
                export(run, vit_run, format="safetensors", half=True, again=True)
        assert (vit_run / "encoder.safetensors").read_bytes() == before


class TestPlaces:
    def test_nothing_is_replaced_unless_told_to(self, vit_run, tmp_path):
        out = tmp_path / "backbone.safetensors"
        (tmp_path / "backbone.json").write_text("notes")
        with pytest.raises(UsageError, match=r"holds backbone.json already.*--again"):
            export(vit_run, out, format="timm")
        assert everything(tmp_path) == ["backbone.json"]
        export(vit_run, out, format="timm", again=True)
        assert json.loads((tmp_path / "backbone.json").read_text())["name"] == "vit_tiny_patch16_224"

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            (("timm", "v.safetensors"), ("onnx", "v.onnx")),
            (("onnx", "v.onnx"), ("timm", "v.safetensors")),
            (("safetensors", "."), ("onnx", "encoder.onnx")),
            (("safetensors", "."), ("timm", "encoder.safetensors")),
            (("onnx", "encoder.onnx"), ("safetensors", ".")),
        ],
    )
    def test_no_card_is_taken_from_a_file_of_another_format(self, vit_run, tmp_path, first, second):
        export(vit_run, tmp_path / first[1], format=first[0])
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        for again in (False, True):
            with pytest.raises(
                UsageError, match=rf"is the card of \w+\.\w+ beside it, of --format {first[0]};.*Choose another name"
            ):
                export(vit_run, tmp_path / second[1], format=second[0], again=again)
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before

    def test_a_card_whose_file_is_gone_is_nobodys(self, vit_run, tmp_path):
        export(vit_run, tmp_path / "v.safetensors", format="timm")
        (tmp_path / "v.safetensors").unlink()
        export(vit_run, tmp_path / "v.onnx", format="onnx", again=True)
        assert everything(tmp_path) == ["v.json", "v.onnx"]

    def test_other_files_of_a_folder_stay(self, vit_run, tmp_path):
        (tmp_path / "notes.txt").write_text("mine")
        export(vit_run, tmp_path, format="safetensors")
        assert everything(tmp_path) == ["encoder.json", "encoder.safetensors", "notes.txt"]

    def test_a_full_disk_leaves_what_was_there(self, vit_run, tmp_path, monkeypatch):
        def full(tensors: dict[str, Tensor], file: Path) -> None:
            save_file(tensors, file)
            raise SafetensorError("I/O error: No space left on device")

        export(vit_run, tmp_path / "encoder", format="safetensors")
        before = (tmp_path / "encoder" / "encoder.safetensors").read_bytes()
        monkeypatch.setattr(encoder_file, "save_file", full)
        with pytest.raises(ProsminError, match=r"encoder cannot be written: .*No space left on device"):
            export(vit_run, tmp_path / "encoder", format="safetensors", half=True, again=True)
        assert everything(tmp_path) == ["encoder", "encoder/encoder.json", "encoder/encoder.safetensors"]
        assert (tmp_path / "encoder" / "encoder.safetensors").read_bytes() == before

    def test_the_card_comes_last(self, tmp_path, monkeypatch):
        """Killed in between, weights lack a card or do not fit it: both are refused, neither is mistaken for whole."""
        moved = []
        move = Path.replace
        monkeypatch.setattr(Path, "replace", lambda file, to: (moved.append(file.name), move(file, to)))
        with staged(tmp_path / "encoder", folder=tmp_path / "encoder") as part:
            for name in ("a.json", "b.safetensors", "c.data"):
                (part / name).write_text(name)
        assert moved[-1] == "a.json"
        assert everything(tmp_path / "encoder") == ["a.json", "b.safetensors", "c.data"]

    @pytest.mark.parametrize(("format", "name"), [("timm", "v.safetensors"), ("safetensors", "folder")])
    def test_others_may_read_it(self, vit_run, tmp_path, format, name):
        before = os.umask(0o022)
        try:
            export(vit_run, tmp_path / name, format=format)
        finally:
            os.umask(before)
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert len(files) == 2
        assert [oct(path.stat().st_mode & 0o777) for path in files] == ["0o644"] * 2

    def test_what_a_killed_export_left_is_in_nobodys_way(self, vit_run, tmp_path):
        (tmp_path / ".encoder.part").mkdir()
        (tmp_path / ".encoder.part" / "junk").write_text("half of a file")
        export(vit_run, tmp_path / "encoder", format="safetensors")
        assert everything(tmp_path) == ["encoder", "encoder/encoder.json", "encoder/encoder.safetensors"]

    @pytest.mark.parametrize(
        ("format", "name", "sentence"),
        [
            ("onnx", "encoder", r"writes a file, and its card beside it: \*.onnx"),
            ("timm", "encoder.pth", r"\*.safetensors"),
            ("timm", "folder.safetensors", "is a folder"),
            ("safetensors", "file", "is a file; --format safetensors writes a folder"),
            ("torchscript", "encoder.pt", "allowed: onnx, timm, safetensors"),
        ],
    )
    def test_wrong_places_and_formats(self, format, name, sentence, vit_run, tmp_path):
        (tmp_path / "folder.safetensors").mkdir()
        (tmp_path / "file").write_text("")
        with pytest.raises(UsageError, match=sentence):
            export(vit_run, tmp_path / name, format=format)
        assert everything(tmp_path) == ["file", "folder.safetensors"]

    @pytest.mark.parametrize("format", ["onnx", "timm"])
    def test_half_is_for_the_folder(self, format, vit_run, tmp_path):
        with pytest.raises(UsageError, match=r"--half is for --format safetensors"):
            export(vit_run, tmp_path / "x", format=format, half=True)

    def test_an_unfinished_run_is_told(self, tmp_path):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "config.yaml").write_text("")
        with pytest.raises(ProsminError, match=r"no encoder.json yet. `prosmin pretrain"):
            export(tmp_path / "run", tmp_path / "out", format="safetensors")
        assert everything(tmp_path) == ["run", "run/config.yaml"]


class TestAgreement:
    def test_deviation_is_relative_to_the_largest_value(self):
        assert deviation(torch.tensor([[2.0, -9.0]]), torch.tensor([[2.0, -10.0]])) == pytest.approx(0.1)
        assert deviation(torch.zeros(2, 3), torch.zeros(2, 3)) == 0.0

    @pytest.mark.parametrize("wrong", [torch.full((5, 3), torch.nan), torch.ones(1, 3), torch.full((5, 3), torch.inf)])
    def test_no_numbers_and_other_shapes_never_agree(self, wrong):
        assert deviation(wrong, torch.ones(5, 3)) == torch.inf

    def test_random_pictures_tell_rows_apart(self, vit_run):
        """A graph that mixed up its rows, or used one image for all, must not pass."""
        encoder = load(vit_run).to("cpu")
        with pytest.raises(ProsminError, match="on 5 random images"):
            check_agreement(encoder, lambda v: outputs_of(encoder, v.roll(1, 0)), tolerance=1e-3, remedy="")
        assert random_views(encoder.config.views, 5).std() > 0.5  # as large as a normalised image's

    def test_a_deterministic_twin_has_no_scale(self):
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
    assert "dino has no scale" in printed
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
