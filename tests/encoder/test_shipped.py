"""Encoders inside the package: found by name, used by the commands, and documented by their cards."""

import json
import tomllib
from pathlib import Path, PurePath

import pyarrow.parquet as pq
import pytest
import torch

from coloured import coloured
from prosmin.cli import main
from prosmin.encoder import load, shipped, untrained
from prosmin.errors import ProsminError
from prosmin.evaluation.results import keep_card
from prosmin.export.card import deviation
from shipping import FILES, NAME, ROOT, ship, ship_tiny
from tiny_methods import tiny_method


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return ship_tiny(tmp_path_factory.mktemp("shipped"))


@pytest.fixture
def encoders(root, monkeypatch, tmp_path) -> Path:
    """The folder of shipped encoders, and an empty one to work in."""
    monkeypatch.setattr(shipped, "ENCODERS", root / "encoders")
    monkeypatch.chdir(tmp_path)
    yield root / "encoders"
    assert sorted(path.name for path in (root / "encoders" / NAME).iterdir()) == FILES  # no command writes there


@pytest.fixture
def pictures() -> torch.Tensor:
    return coloured(12, seed=2, side=32).images


class TestLoading:
    def test_a_name_loads_the_encoder_in_float32(self, encoders, root, pictures):
        found, expected = load(NAME), load(root / "run")
        assert {parameter.dtype for parameter in found.method.parameters()} == {torch.float32}
        assert found.card["precision"] == "float16"
        for one, other in zip(found(pictures), expected(pictures), strict=True):
            # A weight is rounded by 2^-11 = 5e-4 of itself at most; roundings of a row partly cancel, layers add some.
            assert 0 < deviation(one, other) < 5e-3
        assert torch.equal(load(Path(NAME)).features(pictures), found.features(pictures))

    def test_an_existing_path_takes_precedence(self, encoders, pictures):
        mine = untrained(tiny_method("prosmin", training__seed="7"))
        mine.save(NAME)
        assert torch.equal(load(NAME).features(pictures), mine.features(pictures))
        Path("elsewhere").mkdir()
        with pytest.raises(ProsminError, match=r"tiny-vit is not a run folder"):
            load(f"elsewhere/{NAME}")

    def test_an_unknown_name_lists_the_shipped_ones(self, encoders, monkeypatch):
        with pytest.raises(ProsminError, match=rf"tiny-vti .*{NAME}.*timm:NAME"):
            load("tiny-vti")
        monkeypatch.setattr(shipped, "ENCODERS", encoders / "nowhere")
        for name in ("tiny-vti", NAME):
            with pytest.raises(ProsminError, match=rf"^{name} (?!.*shipped).*timm:NAME"):
                load(name)

    def test_a_saved_copy_does_not_need_the_package(self, encoders, pictures, monkeypatch):
        load(NAME).fit_reference(pictures).save("copy")
        expected = load(NAME).features(pictures)
        monkeypatch.setattr(shipped, "ENCODERS", encoders / "nowhere")
        copy = load("copy")
        assert torch.equal(copy.features(pictures), expected)
        assert copy.ood_score(pictures).shape == (12,)

    @pytest.mark.parametrize("folder", ["measured", NAME])  # a folder may be called like what it was measured with
    def test_a_folder_of_results_loads_its_encoder(self, encoders, pictures, folder, monkeypatch):
        encoder = load(NAME)
        folder = Path(folder)
        keep_card(encoder.card, folder)
        assert torch.equal(load(folder).features(pictures), encoder.features(pictures))
        keep_card(encoder.card | {"hash": "0" * 32}, folder)
        with pytest.raises(ProsminError, match=rf"{NAME} .*`prosmin evaluate {NAME} --out"):
            load(folder)
        monkeypatch.setattr(shipped, "ENCODERS", encoders / "nowhere")
        with pytest.raises(ProsminError, match=rf"{NAME}.*does not ship"):
            load(folder)

    def test_the_wheel_contains_them(self):
        patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["prosmin"]
        for name in FILES:
            assert any(PurePath(f"encoders/{NAME}/{name}").match(pattern) for pattern in patterns)


class TestCommands:
    def test_embed(self, encoders, root, capsys):
        """Its training images are not here: no score without --reference, as for every encoder given by name."""
        data = f"parquet:{root / 'data/cifar10-test.parquet'}"
        assert main(["embed", NAME, "--data", data, "--out", "rows.parquet", "--views", "0"]) == 0
        assert "no reference, so no score" in capsys.readouterr().out
        features = torch.tensor(pq.read_table("rows.parquet")["features"].to_pylist())
        torch.testing.assert_close(features, load(NAME).features(data), rtol=1e-4, atol=1e-5)  # other batches

    @pytest.mark.parametrize("out", [None, "mine", NAME])
    def test_evaluate_and_report(self, out, encoders, root, capsys):
        """Results are not written into the package; --out may have the name of the encoder."""
        data = [f"parquet:{root / 'data' / file}" for file in (ship.TRAIN, ship.TEST)]
        words = ["evaluate", NAME, "--protocols", "knn", "--data", data[0], "--test", data[1]]
        assert main(words if out is None else [*words, "--out", out]) == 0
        folder = Path(out or f"runs/shipped-{NAME}")
        result = json.loads((folder / "results/knn.json").read_text())
        assert result["metrics"]["top1"] == pytest.approx(0.8)
        assert result["checkpoint"]["hash"] == load(NAME).card["hash"]
        assert load(folder).card == load(NAME).card
        assert main(result["command"].split()[1:]) == 0  # the results are found again
        assert main(["report", str(folder)]) == 0
        page = (folder / "report.html").read_text()
        assert "shipped with prosmin" in page
        assert NAME in page

    def test_results_never_go_to_the_folder_of_a_run_or_an_encoder(self, encoders, root, capsys):
        Path("runs/mine").mkdir(parents=True)
        Path("runs/mine/config.yaml").write_text("# of a run\n")
        assert main(["evaluate", NAME, "--protocols", "knn", "--out", "runs/mine"]) == 2
        assert "runs/mine" in capsys.readouterr().err
        Path("runs/saved").mkdir()
        Path("runs/saved/encoder.safetensors").touch()
        assert main(["evaluate", NAME, "--protocols", "knn", "--out", "runs/saved"]) == 2
        assert "runs/saved" in capsys.readouterr().err

    def test_export(self, encoders, pictures):
        assert main(["export", NAME, "--format", "safetensors", "--out", "folder"]) == 0
        assert torch.equal(load("folder").features(pictures), load(NAME).features(pictures))
        assert load("folder").card["precision"] == "float16"  # float32 would add nothing
        assert main(["export", NAME, "--format", "timm", "--out", "backbone.safetensors"]) == 0
        card = json.loads(Path("backbone.json").read_text())
        assert card["made_of"]["encoder"] == NAME
        assert card["kwargs"]["embed_dim"] == 24


def test_one_is_shipped():
    assert shipped.shipped_names() == ["cifar10-vit"]


@pytest.mark.parametrize("name", shipped.shipped_names())
class TestInThePackage:
    def test_it_loads_and_distinguishes_images(self, name):
        encoder = load(name)
        random = torch.Generator().manual_seed(0)
        features, mean, scale = encoder(torch.randint(256, (4, 3, 32, 32), generator=random, dtype=torch.uint8))
        assert features.isfinite().all()
        assert mean.isfinite().all()
        assert (scale > 0).all()
        assert (torch.pdist(features) > 0.1 * features.std()).all()

    def test_its_card_matches_its_results(self, name):
        folder = shipped.shipped_folder(name)
        assert sorted(path.name for path in folder.iterdir()) == FILES
        entries, card = (json.loads((folder / file).read_text()) for file in ("card.json", "encoder.json"))
        evidence = json.loads((ROOT / "benchmarks/results" / entries["evidence"]).read_text())
        assert entries["encoder"] == card["hash"]
        assert card["config"] == evidence["configuration"]
        assert entries["knn"]["top1"] == evidence["results"]["knn"]["metrics"]["top1"]
        finished = ship._read_evidence(ROOT / "benchmarks/results" / entries["evidence"])
        assert ship.describe(name, load(name), finished, card) == (folder / "CARD.md").read_text()
