"""`prosmin calibrate` from the command to the encoder that every other command takes."""

import json
import pickle
import re
import shutil

import pyarrow.parquet as pq
import pytest
import torch

import prosmin
from embedding import write_folder
from optional import needs_onnx
from prosmin.calibrate import Request, calibrate
from prosmin.cli import main
from prosmin.data.image_sets import load_pictures
from prosmin.data.views import typical_view
from prosmin.encoder.calibrated import CALIBRATION
from prosmin.errors import ProsminError
from prosmin.evaluation.metrics.intervals import wilson
from prosmin.evaluation.run import evaluate
from prosmin.report import write_report

IMAGES = 120  # as the fixture `data` has


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folders of calibrated encoders by the encoder they were made from; each is made once."""
    found = {}

    def make(run, data):
        if str(run) not in found:
            out = tmp_path_factory.mktemp("made") / "calibrated"
            calibrate(run, Request(data=data, out=out, views=2))
            found[str(run)] = out
        return found[str(run)]

    return make


class TestEncoder:
    @pytest.mark.parametrize("name", ["foreign", "dino", "cifar10-vit"])
    def test_features_are_those_of_the_original_to_the_bit(self, made, data, name, request):
        original = name if name == "cifar10-vit" else request.getfixturevalue(name)
        before, after = prosmin.load(original, device="cpu"), prosmin.load(made(original, data), device="cpu")
        assert torch.equal(after.features(data), before.features(data))
        assert torch.equal(after(data).features, before.features(data))

    @pytest.mark.parametrize("name", ["foreign", "dino"])
    def test_every_image_has_a_forecast_an_uncertainty_and_a_score(self, made, data, name, request):
        encoder = prosmin.load(made(request.getfixturevalue(name), data), device="cpu")
        found = encoder(data)
        features = found.features.shape[1]
        dim = min(features, 256, (IMAGES - 20) // 4)
        assert found.mean.shape == found.scale.shape == (IMAGES, dim)
        assert (found.scale > 0).all()
        for values in (encoder.uncertainty(data), encoder.forecast_uncertainty(data), encoder.unexplained(data)):
            assert values.shape == (IMAGES,)
            assert values.isfinite().all()
        assert encoder.uncertainty(data).std() > 0
        learned = encoder.card[CALIBRATION]["step"] > 0  # otherwise all images have the same scale
        assert (encoder.forecast_uncertainty(data).std() > 1e-6) == learned
        assert "training" in encoder.scores["uncertainty"]  # it carries a sample of the images
        assert encoder.fit_reference(data).ood_score(data).shape == (IMAGES,)

    def test_it_is_saved_and_loaded_like_any_other(self, made, foreign, data, tmp_path):
        encoder = prosmin.load(made(foreign, data), device="cpu")
        again = prosmin.load(encoder.save(tmp_path / "again"), device="cpu")
        assert again.card == encoder.card
        assert torch.equal(again(data).scale, encoder(data).scale)
        assert torch.equal(again.uncertainty(data), encoder.uncertainty(data))
        assert f"calibrated {foreign}" in repr(again)
        assert torch.equal(pickle.loads(pickle.dumps(encoder))(data).scale, encoder(data).scale)

    def test_regions_have_a_radius(self, made, foreign, data):
        encoder = prosmin.load(made(foreign, data), device="cpu")
        small, large = encoder.joint_radius(data, level=0.5), encoder.joint_radius(data, level=0.95)
        assert small.shape == (IMAGES,)
        assert ((small > 0) & (small < large)).all()
        _, mean, scale = encoder(data)
        error = ((encoder.observe(data) - mean) / scale).square().mean(1).sqrt()
        # 20 other images chose the region, and the heads were trained on most of these
        assert 0.75 < (error <= encoder.joint_radius(data)).float().mean() <= 1

    def test_what_is_observed_is_the_whitened_typical_view(self, made, foreign, data):
        encoder, pictures = prosmin.load(made(foreign, data), device="cpu"), load_pictures(data)
        typical = typical_view(pictures.images, pictures.sizes, encoder.config.views)
        found, (_, mean, scale) = encoder.observe(data), encoder(data)
        torch.testing.assert_close(found, encoder.method.observe(typical), rtol=1e-3, atol=1e-4)
        assert 0.7 < ((found - mean).abs() <= 1.645 * scale).float().mean() < 1  # most were trained on
        with pytest.raises(ProsminError, match=r"prosmin calibrate.*method\.name prosmin"):
            prosmin.load(foreign, device="cpu").observe(data)

    def test_the_untrained_one_has_other_features(self, made, foreign, data):
        encoder = prosmin.load(made(foreign, data), device="cpu")
        assert not torch.equal(encoder.untrained().features(data), encoder.features(data))


class TestCommands:
    def test_the_command_prints_the_coverage_and_a_second_one_does_nothing(self, foreign, data, tmp_path, capsys):
        command = ["calibrate", foreign, "--data", data, "--out", str(tmp_path / "out"), "--views", "2"]
        assert main(command) == 0
        first = capsys.readouterr().out
        assert "held-out images: 50, 90 and 95 % intervals contain" in first
        joint = re.search(r"joint 90 % regions ([\d.]+) % of the images \((\d+) to (\d+) % with 10 images", first)
        assert [float(end) for end in joint.groups()[1:]] == [
            round(100 * end) for end in wilson(float(joint[1]) / 100, 10)
        ]
        before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
        assert set(before) == {"encoder.json", "encoder.safetensors", "background.safetensors"}  # no cache is left
        assert main(command) == 0
        second = capsys.readouterr().out
        assert "has already been written" in second
        assert first.splitlines()[-2:] == second.splitlines()[-2:]
        learned = json.loads(before["encoder.json"])[CALIBRATION]["step"] > 0
        assert ("too few to learn" in first) == (not learned)
        assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before

    def test_embed_takes_the_calibration_images_as_reference(self, made, foreign, data, tmp_path):
        out = tmp_path / "x.parquet"
        assert main(["embed", str(made(foreign, data)), "--data", data, "--out", str(out), "--views", "0"]) == 0
        table = pq.read_table(out)
        assert len(table) == IMAGES
        assert {"features", "ood_score", "flag", "uncertainty", "mean_log_scale"} <= set(table.column_names)

    def test_evaluate_measures_the_coverage_and_the_report_shows_it(self, made, dino, data, tmp_path):
        run = shutil.copytree(made(dino, data), tmp_path / "run")
        results = evaluate(run, protocols="uncertainty")
        note = results["uncertainty"]["settings"]["test_pictures"]
        assert "forecast heads were trained on these images" in note
        assert "the encoder was trained" not in note
        assert 0.5 < results["uncertainty"]["metrics"]["coverage_90"] <= 1
        write_report([run], tmp_path / "page.html")
        page = (tmp_path / "page.html").read_text()
        assert f"{IMAGES} images of {data}" in page
        assert "not trained here" in page

    def test_a_report_without_results(self, made, foreign, data, tmp_path):
        write_report([made(foreign, data)], tmp_path / "page.html")
        page = (tmp_path / "page.html").read_text()
        assert re.search(r"10 images: 90 % intervals held [\d.]+ %? ?of the coordinates, joint 90 % regions", page)
        assert "skill of forecasts" in page

    def test_inspect(self, made, dino, data, tmp_path):
        folder = write_folder(tmp_path / "images", 30)
        run = made(dino, data)
        out = tmp_path / "page"
        assert main(["inspect", folder.removeprefix("folder:"), "--encoder", str(run), "--out", str(out)]) == 0
        assert (out / "index.html").exists()

    @pytest.mark.parametrize(
        ("form", "name"),
        [
            pytest.param("onnx", "x.onnx", marks=needs_onnx),
            ("timm", "x.safetensors"),
            ("safetensors", "x"),
            ("huggingface", "x"),
        ],
    )
    def test_export(self, made, foreign, data, tmp_path, form, name, capsys):
        assert main(["export", str(made(foreign, data)), "--format", form, "--out", str(tmp_path / name)]) == 0
        if form == "onnx":
            assert "features, mean, scale" in capsys.readouterr().out
            card = json.loads((tmp_path / "x.json").read_text())
            assert "whitened features of the typical view" in card["outputs"]["mean"]["meaning"]
            assert "encoder.forecast_uncertainty" in card["outputs"]["scale"]["meaning"]
            assert card["calibration"]["images"] == IMAGES
            assert card["calibration"]["held_out"]["images"] == 10
        if form == "safetensors":
            assert CALIBRATION in json.loads((tmp_path / name / "encoder.json").read_text())
