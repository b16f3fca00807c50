"""Encoders we did not train: timm:NAME[@FILE] behaves like any encoder, also in results and report."""

import json
from pathlib import Path

import pytest
import timm
import torch
from torch import nn

from prosmin.data.image_sets import load_pictures
from prosmin.data.views import evaluation_view
from prosmin.encoder import has_batchnorm, load
from prosmin.errors import ProsminError, UsageError
from prosmin.evaluation import run as suite
from prosmin.evaluation.results import keep_card, results_folder
from prosmin.report import write_report
from published_layouts import dino_checkpoint, moco_checkpoint, prefixed, vit_features, vit_tensors


def network(name: str) -> nn.Module:
    """A small network of timm whose weights are not those of a new one."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = timm.create_model(name, num_classes=0)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.2)
    return model.eval()


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    """A checkpoint of DINO of timm's smallest ViT."""
    path = tmp_path_factory.mktemp("foreign") / "dino_tiny.pth"
    tensors = network("test_vit").state_dict()
    torch.save(dino_checkpoint(tensors, student=prefixed(tensors, "x.")), path)
    return path


def every_fortieth(spec: str, **_: object):
    """A few of a set's images, so that a protocol takes a second."""
    pictures = load_pictures(spec)
    return pictures.subset(torch.arange(0, len(pictures), 40))


@pytest.fixture(scope="module")
def pictures():
    return load_pictures("photos@test").subset(torch.arange(0, 840, 70))


class TestEncoder:
    def test_features_are_those_of_the_network_with_the_published_preprocessing(self, file, pictures):
        encoder = load(f"timm:test_vit@{file}")
        views = encoder.config.views
        assert (views.global_size, views.crop_share, views.interpolation) == (160, 0.875, "bicubic")
        assert views.mean == (0.485, 0.456, 0.406)  # timm's card of this name says 0.5
        embedding = encoder(pictures)
        with torch.inference_mode():
            expected = network("test_vit")(evaluation_view(pictures.images, pictures.sizes, views))
        torch.testing.assert_close(embedding.features, expected, rtol=1e-4, atol=1e-4)  # batches of another size
        assert embedding.scale is None
        assert torch.equal(embedding.mean, embedding.features)

    def test_a_tag_sets_the_preprocessing(self, file):
        views = load(f"timm:test_vit.r160_in1k@{file}").config.views
        assert views.mean == (0.5, 0.5, 0.5)
        assert views.crop_share == 0.95

    def test_uncertainty_is_the_variance_over_views(self, file, pictures):
        encoder = load(f"timm:test_vit@{file}")
        for i in (0, 5):  # the views of the first image of a set, whatever its place in this one
            views = torch.stack([view.features for view in encoder.views(pictures.subset(torch.tensor([i])))])
            torch.testing.assert_close(encoder.uncertainty(pictures)[i], views.var(0).mean(), rtol=1e-3, atol=1e-6)

    def test_untrained_is_the_same_network_with_random_weights(self, file, pictures):
        encoder = load(f"timm:test_vit@{file}")
        torch.manual_seed(1)
        one = encoder.untrained()
        torch.manual_seed(2)
        other = encoder.untrained()
        trained = encoder.method.state_dict()
        for (name, a), b in zip(one.method.state_dict().items(), other.method.state_dict().values(), strict=True):
            assert torch.equal(a, b), name  # a function of the seed alone
            assert a.shape == trained[name].shape
        assert not torch.allclose(one(pictures).features, encoder(pictures).features, atol=0.1)

    def test_resnet(self, tmp_path):
        tensors = network("test_resnet").state_dict()
        torch.save(moco_checkpoint(tensors, momentum=tensors, head="fc"), tmp_path / "moco.pth.tar")
        encoder = load(f"timm:test_resnet@{tmp_path}/moco.pth.tar")
        assert has_batchnorm(encoder)
        assert "MoCo v3" in encoder.card["weights"]

    def test_moco_vit_small_is_built_with_its_twelve_heads(self, tmp_path, monkeypatch):
        tensors = vit_tensors(width=384, depth=1, patch=16, grid=14)
        torch.save(moco_checkpoint(tensors, momentum=tensors), tmp_path / "vit-s.pth.tar")
        create = timm.create_model
        monkeypatch.setattr(timm, "create_model", lambda *args, **options: create(*args, depth=1, **options))
        encoder = load(f"timm:vit_small_patch16_224@{tmp_path}/vit-s.pth.tar")
        images = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
        with torch.inference_mode():
            features = encoder.method.encode(images).features
            torch.testing.assert_close(features, vit_features(tensors, images, heads=12), rtol=1e-3, atol=1e-3)
        assert encoder.card["backbone"]["num_heads"] == 12
        assert encoder.untrained().method.online["backbone"].blocks[0].attn.num_heads == 12

    def test_the_hash_depends_on_weights_and_preprocessing_not_on_the_file(self, file, tmp_path):
        card = load(f"timm:test_vit@{file}").card
        assert card["weights"] == "78 tensors of dino_tiny.pth, a checkpoint of DINO or iBOT; 3 left out (head)."
        torch.save(network("test_vit").state_dict(), tmp_path / "plain.pth")
        assert load(f"timm:test_vit@{tmp_path}/plain.pth").card["hash"] == card["hash"]
        assert load(f"timm:test_vit.r160_in1k@{file}").card["hash"] != card["hash"]
        tensors = network("test_vit").state_dict()
        tensors["norm.bias"] += 1e-3
        torch.save(tensors, tmp_path / "plain.pth")
        assert load(f"timm:test_vit@{tmp_path}/plain.pth").card["hash"] != card["hash"]


class TestWeightsOfTimm:
    def test_a_failed_download_suggests_a_file(self, monkeypatch):
        def refuse(*args, pretrained=False, **options):
            raise ConnectionError("Name or service not known\nand more")

        monkeypatch.setattr(timm, "create_model", refuse)
        with pytest.raises(ProsminError, match=r"not known.*timm:test_vit@FILE"):
            load("timm:test_vit")

    def test_they_are_requested_from_timm(self, monkeypatch, pictures):
        create, asked = timm.create_model, []

        def fake(name, *, pretrained=False, **options):
            asked.append(pretrained)
            return create(name, **options)

        monkeypatch.setattr(timm, "create_model", fake)
        encoder = load("timm:test_vit")
        assert asked == [True]
        assert encoder.config.views.mean == (0.5, 0.5, 0.5)
        assert encoder.card["weights"] == "timm's own weights, tag r160_in1k."
        encoder.untrained()
        assert asked == [True, False]


class TestFolder:
    def test_where_results_go(self, tmp_path):
        assert results_folder("timm:resnet50") == Path("runs/timm-resnet50")
        assert results_folder("timm:resnet50@a/b/r-50.pth.tar") == Path("runs/timm-resnet50-r-50")
        assert results_folder("timm:resnet50", tmp_path) == tmp_path
        assert results_folder(tmp_path) == tmp_path
        assert results_folder(tmp_path, tmp_path / "other") == tmp_path / "other"
        (tmp_path / "config.yaml").write_text("")
        assert results_folder(tmp_path, tmp_path / "." / "x" / "..") == tmp_path / "." / "x" / ".."
        for encoder in ("encoder.safetensors", "encoder.json"):
            (tmp_path / encoder).mkdir()
            (tmp_path / encoder / encoder).write_text('{"run": "/elsewhere"}')
            for run in (tmp_path, "timm:resnet50"):
                with pytest.raises(UsageError, match=r"folder of an encoder|the results of /elsewhere"):
                    results_folder(run, tmp_path / encoder)
        with pytest.raises(UsageError, match=r"folder of a run.*--out DIR"):
            results_folder("timm:resnet50", tmp_path)

    def test_encoders_without_a_folder_do_not_share_one(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        first = results_folder("timm:resnet50@a/weights.pth")
        keep_card({"encoder": "timm:resnet50@a/weights.pth", "hash": "a"}, first)
        for same in ("timm:resnet50@a/weights.pth", f"timm:resnet50@{tmp_path}/a/weights.pth"):
            assert results_folder(same) == first
        for other in ("timm:resnet50@b/weights.pth", "timm:resnet18@a/weights.pth", "cifar10-vit"):
            with pytest.raises(UsageError, match=r"the results of timm:resnet50@a/weights\.pth"):
                results_folder(other, first)

    def test_results_of_another_encoder_are_not_mixed_in(self, tmp_path):
        run, moved, out = (tmp_path / name for name in ("run", "moved", "out"))
        for folder, card in ((run, {"hash": "a"}), (moved, {"hash": "a"}), (out, {"hash": "t", "encoder": "timm:x"})):
            folder.mkdir()
            (folder / "encoder.json").write_text(json.dumps(card))
        with pytest.raises(UsageError, match=r"out .*the results of timm:x"):
            results_folder(run, out)
        (out / "encoder.json").write_text(json.dumps({"hash": "a", "run": str(run)}))
        assert results_folder(run, out) == out
        assert results_folder(moved, out) == out  # the same weights: the run lies elsewhere now
        (moved / "encoder.json").write_text(json.dumps({"hash": "b"}))
        with pytest.raises(UsageError, match="the results of"):
            results_folder(moved, out)

    def test_a_folder_of_results_loads_its_encoder(self, file, tmp_path):
        copy = tmp_path / "copy.pth"
        copy.write_bytes(file.read_bytes())
        encoder = load(f"timm:test_vit@{copy}")
        keep_card(encoder.card, tmp_path / "out")
        assert load(tmp_path / "out").card == encoder.card
        torch.save(timm.create_model("test_vit", num_classes=0).state_dict(), copy)
        with pytest.raises(ProsminError, match=r"not those that .*/out was measured with"):
            load(tmp_path / "out")

    def test_evaluate(self, file, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(suite, "open_pictures", every_fortieth)
        row = suite.evaluate(f"timm:test_vit@{file}", protocols=["knn"], data="photos")["knn"]
        folder = tmp_path / "runs/timm-test_vit-dino_tiny"
        assert row["checkpoint"] == {"step": None, "hash": json.loads((folder / "encoder.json").read_text())["hash"]}
        assert {"untrained", "raw pixels"} <= set(row["baselines"])
        written = json.loads((folder / "results/knn.json").read_text())
        assert written["metrics"] == row["metrics"]
        monkeypatch.setattr(suite, "_measure", None)
        again = suite.evaluate(folder, protocols=["knn"], data="photos")  # found by the folder, and not measured again
        assert again["knn"]["metrics"] == row["metrics"]

    def test_report(self, file, tmp_path):
        encoder = load(f"timm:test_vit@{file}")
        folder = tmp_path / "timm-test_vit"
        keep_card(encoder.card, folder)
        result = {"protocol": "knn", "metrics": {"top1": 0.5, "nll": 1.0}, "settings": {}, "data": {}}
        (folder / "results").mkdir()
        (folder / "results/knn.json").write_text(json.dumps(result))
        text = write_report([folder], tmp_path / "page.html").read_text()
        assert f"timm:test_vit@{file} with test_vit, not trained here." in text
        assert "78 tensors of dino_tiny.pth" in text
        assert "Not trained here" in text
        assert "prosmin pretrain" not in text
        other = tmp_path / "run"
        (other / "results").mkdir(parents=True)
        (other / "results/knn.json").write_text(json.dumps(result))
        (other / "config.yaml").write_text("{method: {name: dino}, training: {epochs: 3}}")
        both = write_report([folder, other], tmp_path / "both.html").read_text()
        assert "Differs in" not in both  # there is no configuration to compare


class TestRefusals:
    def test_wrong_names(self, file, tmp_path):
        with pytest.raises(UsageError, match=r"'test_vi'.*Did you mean test_vit\?"):
            load("timm:test_vi")
        with pytest.raises(UsageError, match="timm:test_vit@"):
            load("timm:test_vit@")
        with pytest.raises(UsageError, match=r"Invalid pretrained tag \(none\)"):
            load(f"timm:test_vit.none@{file}")
        with pytest.raises(UsageError, match="does not exist"):
            load(f"timm:test_vit@{tmp_path}/missing.pth")
        with pytest.raises(ProsminError, match=r"dino_tiny\.pth"):
            load(f"timm:test_resnet@{file}")
        with pytest.raises(ProsminError, match=r"not a run folder.*or timm:NAME"):
            load("tim:test_vit")

    def test_our_own_encoders_are_loaded_from_their_folder(self, tmp_path):
        torch.save(prefixed(network("test_vit").state_dict(), "online.backbone."), tmp_path / "encoder.pth")
        with pytest.raises(UsageError, match=r"encoder\.pth is an encoder of prosmin"):
            load(f"timm:test_vit@{tmp_path}/encoder.pth")
