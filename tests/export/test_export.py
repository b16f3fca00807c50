"""Export to timm and to a folder: the outputs of the encoder, or nothing is written."""

import json
import os
from pathlib import Path

import pytest
import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from timm.data import resolve_model_data_config
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from exporting import everything, make_run, noise_views, session
from optional import needs_onnx
from prosmin.encoder import file as encoder_file
from prosmin.encoder import load, save_encoder
from prosmin.errors import ProsminError, UsageError
from prosmin.export import export, timm_checkpoint
from prosmin.export.card import deviation, outputs_of
from prosmin.files import staged
from prosmin.methods import build_method
from published_layouts import dino_checkpoint, moco_checkpoint, vit_tensors
from tiny_methods import tiny_method


class TestTimm:
    @pytest.mark.parametrize("run", ["vit_run", "timm_resnet_run", "ibot_run"])
    def test_timm_gives_the_features_of_the_encoder(self, run, request, tmp_path, monkeypatch):
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

    def test_transforms_of_timm_preprocess_like_the_encoder(self, timm_resnet_run, tmp_path):
        export(timm_resnet_run, tmp_path / "backbone.safetensors", format="timm")
        card = json.loads((tmp_path / "backbone.json").read_text())
        file = str(tmp_path / "backbone.safetensors")
        how = resolve_model_data_config(timm.create_model(card["name"], checkpoint_path=file, **card["kwargs"]))
        views = load(timm_resnet_run).config.views
        assert tuple(how["input_size"]) == (3, 32, 32)
        assert (how["crop_pct"], how["interpolation"]) == (views.crop_share, "bilinear")
        assert (tuple(how["mean"]), tuple(how["std"])) == (views.mean, views.std)

    def test_networks_of_prosmin_are_not_in_timm(self, resnet_run, tmp_path):
        with pytest.raises(UsageError, match=r"resnet8_cifar.*--format onnx or --format safetensors"):
            export(resnet_run, tmp_path / "new" / "backbone.safetensors", format="timm")
        assert everything(tmp_path) == []

    def test_a_call_that_builds_another_network_is_an_error(self, vit_run, tmp_path, monkeypatch):
        def other_heads(*_: object) -> dict[str, object]:
            return right(*_) | {"num_heads": 4}  # the same shapes, other features

        right = timm_checkpoint.vit_options
        monkeypatch.setattr(timm_checkpoint, "vit_options", other_heads)
        with pytest.raises(ProsminError, match=r"features"):
            export(vit_run, tmp_path / "backbone.safetensors", format="timm")
        monkeypatch.setattr(timm_checkpoint, "vit_options", lambda *_: right(*_) | {"depth": 3})
        with pytest.raises(ProsminError, match=r"timm cannot load .*Nothing was written"):
            export(vit_run, tmp_path / "backbone.safetensors", format="timm")
        assert everything(tmp_path) == []


class TestForeign:
    @pytest.fixture
    def run(self, tmp_path) -> str:
        """MoCo v3's ViT-S has twelve heads, timm's of that name has six: the call must say so."""
        tensors = vit_tensors(width=384, depth=12, patch=16, grid=14)
        file = tmp_path / "moco.pth.tar"
        torch.save(moco_checkpoint(tensors, momentum=tensors), file)
        return f"timm:vit_small_patch16_224@{file}"

    def test_a_published_checkpoint_is_exported_for_timm(self, run, tmp_path):
        export(run, tmp_path / "out" / "moco.safetensors", format="timm")
        card = json.loads((tmp_path / "out" / "moco.json").read_text())
        assert card["kwargs"]["num_heads"] == 12
        assert card["made_of"]["encoder"] == "timm:vit_small_patch16_224"  # without the path of the file
        encoder = load(run).to("cpu")
        views = noise_views(encoder, 1)
        file = str(tmp_path / "out" / "moco.safetensors")
        network = timm.create_model(card["name"], checkpoint_path=file, **card["kwargs"]).eval()
        assert deviation(network(views).detach(), encoder.method.encode(views).features) < 1e-6

    @needs_onnx
    def test_its_graph_has_only_features(self, tmp_path):
        with torch.random.fork_rng():
            torch.manual_seed(1)
            tensors = timm.create_model("test_vit", num_classes=0).state_dict()
        torch.save(dino_checkpoint(tensors, student=tensors), tmp_path / "dino.pth")
        run = f"timm:test_vit@{tmp_path / 'dino.pth'}"
        lines = export(run, tmp_path / "dino.onnx", format="onnx")
        assert "timm:test_vit has no mean and no scale" in lines[1]
        assert [output.name for output in session(tmp_path / "dino.onnx").get_outputs()] == ["features"]

    def test_it_has_no_target(self, run, tmp_path):
        with pytest.raises(ProsminError, match="no target network"):
            export(run, tmp_path / "x", format="safetensors", network="target")
        assert not (tmp_path / "x").exists()

    def test_its_folder_does_not_need_the_file(self, run, tmp_path):
        encoder = load(run).to("cpu")
        export(run, tmp_path / "out", format="safetensors", half=True)
        (tmp_path / "moco.pth.tar").unlink()
        views = noise_views(encoder, 1)
        again = load(tmp_path / "out").to("cpu").method.encode(views).features
        assert 0 < deviation(again, encoder.method.encode(views).features) < 2e-2  # 12 blocks


class TestFolder:
    def test_the_folder_has_the_encoder(self, vit_run, tmp_path):
        export(vit_run, tmp_path / "encoder", format="safetensors")
        assert everything(tmp_path) == ["encoder", "encoder/encoder.json", "encoder/encoder.safetensors"]
        first, second = load(vit_run), load(tmp_path / "encoder")
        assert first.card == second.card
        for one, other in zip(first.method.state_dict().items(), second.method.state_dict().items(), strict=True):
            assert one[0] == other[0]
            assert torch.equal(one[1], other[1])

    @pytest.mark.parametrize("run", ["resnet_run", "ibot_run"])
    def test_the_target_replaces_the_online_network(self, run, request, tmp_path):
        run = request.getfixturevalue(run)
        export(run, tmp_path / "target", format="safetensors", network="target")
        encoder, target = load(run).to("cpu"), load(tmp_path / "target").to("cpu")
        assert target.card["network"] == "target"
        assert target.card["hash"] != encoder.card["hash"]
        views = noise_views(encoder, 3)
        online, averaged = encoder.method.online.backbone, encoder.method.target.backbone
        assert torch.equal(target.method.encode(views).features, averaged(views))
        assert not torch.equal(averaged(views), online(views))
        assert torch.equal(encoder.method.encode(views).features, online(views))  # the encoder itself does not change

    def test_an_unknown_network(self, vit_run, tmp_path):
        with pytest.raises(UsageError, match=r"'teacher'; allowed: online, target"):
            export(vit_run, tmp_path / "x", format="safetensors", network="teacher")

    @pytest.mark.parametrize("run", ["resnet_run", "vit_run"])
    def test_half_is_half_as_large_and_nearly_the_same(self, run, request, tmp_path):
        run = request.getfixturevalue(run)
        lines = export(run, tmp_path / "half", format="safetensors", half=True)
        sizes = [(where / "encoder.safetensors").stat().st_size for where in (tmp_path / "half", run)]
        assert sizes[0] < 0.6 * sizes[1]  # names and vectors keep their size
        first, second = load(run).to("cpu"), load(tmp_path / "half").to("cpu")
        views = noise_views(first, 5)
        found = {
            name: deviation(value, outputs_of(first, views)[name]) for name, value in outputs_of(second, views).items()
        }
        assert set(found) == {"features", "mean", "scale"}
        assert 0 < max(found.values()) < 5e-3  # a weight is rounded by 2^-11 = 5e-4 of itself at most
        assert second.card["precision"] == "float16"
        assert second.card["deviation"].keys() == found.keys()
        assert "float16" in lines[-1]
        assert next(second.method.parameters()).dtype == torch.float32

    def test_only_matrices_are_rounded(self, tmp_path):
        """Statistics, counters, centres and biases stay exact."""
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

    def test_a_buffer_is_never_rounded(self):
        module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        module.register_buffer("table", torch.eye(4))
        assert list(encoder_file.matrices(module)) == ["0.weight"]

    def test_float16_stays_float16(self, resnet_run, tmp_path):
        export(resnet_run, tmp_path / "half", format="safetensors", half=True)
        export(tmp_path / "half", tmp_path / "copy", format="safetensors")
        first, second = (load_file(tmp_path / name / "encoder.safetensors") for name in ("half", "copy"))
        assert all(torch.equal(first[name], second[name]) for name in first | second)
        assert load(tmp_path / "copy").card == load(tmp_path / "half").card

    def test_the_reference_is_exported_too(self, resnet_run, tmp_path):
        pictures = torch.randint(0, 256, (60, 3, 32, 32), generator=torch.Generator().manual_seed(5)).to(torch.uint8)
        encoder = load(resnet_run).fit_reference(pictures[:50])
        encoder.save(tmp_path / "fitted")
        for half in (False, True):
            export(tmp_path / "fitted", tmp_path / f"half={half}", format="safetensors", half=half)
            scores = load(tmp_path / f"half={half}").ood_score(pictures[50:])
            torch.testing.assert_close(scores, encoder.ood_score(pictures[50:]), rtol=1e-2, atol=1e-3)

    def test_weights_too_large_for_float16(self, tmp_path):
        run = make_run(tiny_method("dino"), tmp_path / "run")
        config, method = load(run).config, load(run).method
        method.get_submodule("online.projector.mlp.0").weight.data[0, 0] = 1e6
        save_encoder(method, config, run, step=4, steps=8, trained=4)
        with pytest.raises(ProsminError, match=r"online.projector.mlp.0.weight .*--half"):
            export(run, tmp_path / "half", format="safetensors", half=True)
        assert not (tmp_path / "half").exists()

    def test_the_folder_of_a_run_is_refused(self, resnet_run, vit_run):
        before = (vit_run / "encoder.safetensors").read_bytes()
        for run in (resnet_run, vit_run):
            with pytest.raises(UsageError, match="folder of a run"):
                export(run, vit_run, format="safetensors", half=True, again=True)
        assert (vit_run / "encoder.safetensors").read_bytes() == before


class TestPlaces:
    def test_files_are_replaced_only_with_again(self, vit_run, tmp_path):
        out = tmp_path / "backbone.safetensors"
        (tmp_path / "backbone.json").write_text("notes")
        with pytest.raises(UsageError, match=r"backbone.json.*--again"):
            export(vit_run, out, format="timm")
        assert everything(tmp_path) == ["backbone.json"]
        export(vit_run, out, format="timm", again=True)
        assert json.loads((tmp_path / "backbone.json").read_text())["name"] == "vit_tiny_patch16_224"

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            (("timm", "v.safetensors"), ("onnx", "v.onnx")),
            pytest.param(("onnx", "v.onnx"), ("timm", "v.safetensors"), marks=needs_onnx),
            (("safetensors", "."), ("onnx", "encoder.onnx")),
            (("safetensors", "."), ("timm", "encoder.safetensors")),
            pytest.param(("onnx", "encoder.onnx"), ("safetensors", "."), marks=needs_onnx),
        ],
    )
    def test_the_card_of_another_format_is_not_replaced(self, vit_run, tmp_path, first, second):
        export(vit_run, tmp_path / first[1], format=first[0])
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        for again in (False, True):
            with pytest.raises(UsageError, match=rf"\.json describes \w+\.\w+, of --format {first[0]}"):
                export(vit_run, tmp_path / second[1], format=second[0], again=again)
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before

    @needs_onnx
    def test_a_card_without_its_file_may_be_replaced(self, vit_run, tmp_path):
        export(vit_run, tmp_path / "v.safetensors", format="timm")
        (tmp_path / "v.safetensors").unlink()
        export(vit_run, tmp_path / "v.onnx", format="onnx", again=True)
        assert everything(tmp_path) == ["v.json", "v.onnx"]

    def test_other_files_of_a_folder_stay(self, vit_run, tmp_path):
        (tmp_path / "notes.txt").write_text("mine")
        export(vit_run, tmp_path, format="safetensors")
        assert everything(tmp_path) == ["encoder.json", "encoder.safetensors", "notes.txt"]

    def test_a_full_disk_changes_nothing(self, vit_run, tmp_path, monkeypatch):
        def full(tensors: dict[str, Tensor], file: Path) -> None:
            save_file(tensors, file)
            raise SafetensorError("I/O error: No space left on device")

        export(vit_run, tmp_path / "encoder", format="safetensors")
        before = (tmp_path / "encoder" / "encoder.safetensors").read_bytes()
        monkeypatch.setattr(encoder_file, "save_file", full)
        with pytest.raises(ProsminError, match=r"encoder cannot be written: .*No space left"):
            export(vit_run, tmp_path / "encoder", format="safetensors", half=True, again=True)
        assert everything(tmp_path) == ["encoder", "encoder/encoder.json", "encoder/encoder.safetensors"]
        assert (tmp_path / "encoder" / "encoder.safetensors").read_bytes() == before

    def test_the_card_is_written_last(self, tmp_path, monkeypatch):
        """Killed in between, the weights have no card or do not match it: both are refused."""
        moved = []
        move = Path.replace
        monkeypatch.setattr(Path, "replace", lambda file, to: (moved.append(file.name), move(file, to)))
        with staged(tmp_path / "encoder", folder=tmp_path / "encoder") as part:
            for name in ("a.json", "b.safetensors", "c.data"):
                (part / name).write_text(name)
        assert moved[-1] == "a.json"
        assert everything(tmp_path / "encoder") == ["a.json", "b.safetensors", "c.data"]

    @pytest.mark.parametrize(("format", "name"), [("timm", "v.safetensors"), ("safetensors", "folder")])
    def test_files_follow_the_umask(self, vit_run, tmp_path, format, name):
        before = os.umask(0o022)
        try:
            export(vit_run, tmp_path / name, format=format)
        finally:
            os.umask(before)
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert len(files) == 2
        assert [oct(path.stat().st_mode & 0o777) for path in files] == ["0o644"] * 2

    def test_files_of_a_killed_export_are_removed(self, vit_run, tmp_path):
        (tmp_path / ".encoder.part").mkdir()
        (tmp_path / ".encoder.part" / "junk").write_text("half of a file")
        export(vit_run, tmp_path / "encoder", format="safetensors")
        assert everything(tmp_path) == ["encoder", "encoder/encoder.json", "encoder/encoder.safetensors"]

    @pytest.mark.parametrize(
        ("format", "name", "sentence"),
        [
            ("onnx", "encoder", r"\*\.onnx"),
            ("timm", "encoder.pth", r"\*.safetensors"),
            ("timm", "folder.safetensors", "is a folder"),
            ("safetensors", "file", "is a file"),
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
    def test_half_is_for_safetensors(self, format, vit_run, tmp_path):
        with pytest.raises(UsageError, match=r"--half .*--format safetensors"):
            export(vit_run, tmp_path / "x", format=format, half=True)

    def test_an_unfinished_run(self, tmp_path):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "config.yaml").write_text("")
        with pytest.raises(ProsminError, match=r"encoder\.json.*`prosmin pretrain"):
            export(tmp_path / "run", tmp_path / "out", format="safetensors")
        assert everything(tmp_path) == ["run", "run/config.yaml"]
