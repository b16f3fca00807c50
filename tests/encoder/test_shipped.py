"""Encoders inside the package: found by name, made from a run and its results, and checked against them."""

import io
import json
import sys
import tomllib
from pathlib import Path, PurePath

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from coloured import coloured
from prosmin import config as configs
from prosmin.cli import main
from prosmin.encoder import Encoder, load, save_encoder, shipped, untrained
from prosmin.errors import ProsminError
from prosmin.evaluation.results import keep_card
from prosmin.export.card import deviation
from prosmin.methods import build_method
from tiny_methods import tiny_method

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # scripts, not a package

import ship  # noqa: E402

NAME = "tiny-vit"
FILES = ["CARD.md", "card.json", "encoder.json", "encoder.safetensors"]


def make_run(folder: Path, *, steps: int = 8, **changes: str) -> Path:
    """The folder of a run, as if trained on a machine whose data lie elsewhere."""
    config = tiny_method("prosmin", vit=True, data__spec="parquet:/far/away/cifar10-train.parquet", **changes)
    method = build_method(config)
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in method.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=random))
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(configs.to_yaml(config))
    save_encoder(method, config, folder, step=steps, steps=8, trained=steps)
    return folder


def make_evidence(config: configs.Config) -> dict:
    """A file of evidence.py with round numbers; its kNN is that of four right labels in five."""
    tree = configs.to_tree(config)
    tree["data"]["spec"] = "parquet:cifar10-train.parquet"
    strange = {"knn_distance": {"auroc": 0.71}, "mean_log_scale": {"auroc": 0.93}, "residual": {"auroc": None}}
    results = {
        "knn": {
            "metrics": {"top1": 0.8},
            "baselines": {"untrained": {"top1": 0.31}, "raw pixels": {"top1": 0.42}},
            "settings": {"k": 20},
        },
        "linear": {"metrics": {"top1": 0.85, "nll": 0.4567, "ece": 0.021, "ece_floor": 0.011}},
        "ood": {"sets": {"parquet:svhn-test10k.parquet": strange}, "settings": {"default_score": "knn_distance"}},
        "corruption": {"metrics": {"mean_error": 0.29, "clean_error": 0.15}},
        "uncertainty": {
            "metrics": {"r_auroc": 0.66, "recall_at_1": None},
            "settings": {"uncertainty": "mean log scale"},
        },
    }
    return {
        "recipe": "cifar10-vit",
        "overrides": {"training.epochs": "100"},
        "epochs": 100,
        "seed": 0,
        "training_seconds": 600.0,
        "hardware": {"device": "NVIDIA H200", "torch": "2.11.0"},
        "health": {"verdict": "healthy: target std 0.060"},
        "chosen_on": "a held-out tenth of train",
        "results": results,
        "configuration": tree,
    }


def write_parquet(file: Path, count: int, *, seed: int) -> None:
    """Coloured images, every fifth with a wrong label: a vote of 20 neighbours is far from a tie."""
    pictures = coloured(count, seed=seed, side=16)
    encoded = []
    for picture in pictures.images:
        buffer = io.BytesIO()
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(buffer, "PNG")
        encoded.append(buffer.getvalue())
    labels = [(int(label) + (i % 5 == 0)) % 3 for i, label in enumerate(pictures.labels)]
    pq.write_table(pa.table({"image": encoded, "label": labels}), file)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A run, its evidence, labelled images, and the run's encoder shipped."""
    root = tmp_path_factory.mktemp("shipped")
    run = make_run(root / "run")
    (root / "evidence-s0.json").write_text(json.dumps(make_evidence(load(run).config)))
    (root / "data").mkdir()
    write_parquet(root / "data/cifar10-train.parquet", 150, seed=0)
    write_parquet(root / "data/cifar10-test.parquet", 50, seed=1)
    words = [str(run), NAME, "--results", str(root / "evidence-s0.json"), "--to", str(root / "encoders")]
    assert ship.main(words) == 0
    return root


@pytest.fixture
def encoders(root, monkeypatch, tmp_path) -> Path:
    """The folder of shipped encoders, and an empty one to work in."""
    monkeypatch.setattr(shipped, "ENCODERS", root / "encoders")
    monkeypatch.chdir(tmp_path)
    yield root / "encoders"
    assert sorted(path.name for path in (root / "encoders" / NAME).iterdir()) == FILES  # nobody writes there


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


class TestShipping:
    def test_the_card_has_the_results(self, encoders, root):
        text = (encoders / NAME / "CARD.md").read_text()
        for row in (
            "| recipe | `cifar10-vit` with `training.epochs=100` |",
            "| epochs | 100 |",
            "| seed | 0 |",
            "| weights of step | 8 of 8 |",
            "| hardware | NVIDIA H200, torch 2.11.0 |",
            "| training took | 10 minutes |",
            "| evidence | `benchmarks/results/evidence-s0.json` |",
            "| kNN top-1, k = 20 | 80.0 % (best baseline: raw pixels, 42.0 %) |",
            "| linear probe top-1 | 85.0 % |",
            "| linear probe NLL | 0.457 |",
            "| linear probe ECE | 2.1 % (floor 1.1 %) |",
            "| OOD AUROC against `svhn-test10k` | 93.0 % by `mean_log_scale`, the best of 2 scores; "
            "71.0 % by `knn_distance`, the default |",
            "| mean error under generated corruptions | 29.0 % (clean 15.0 %) |",
            "wrong nearest neighbour | 66.0 % (R@1 not measured) |",
        ):
            assert row in text, row
        for words in ("32 x 32 pixels", "ten kinds of", "decisions about people", "rounded to float16"):
            assert words in text, words
        told = json.loads((encoders / NAME / "card.json").read_text())
        assert told["knn"] == {"top1": 0.8, "k": 20}
        assert told["encoder"] == load(NAME).card["hash"]

    def test_no_path_of_the_training_machine(self, encoders):
        for file in (encoders / NAME).iterdir():
            assert b"far/away" not in file.read_bytes(), file.name

    def test_the_reference_is_not_shipped(self, root, tmp_path, pictures):
        run = make_run(tmp_path / "run")
        load(run).fit_reference(pictures).save(run)
        ship.ship(run, "x", root / "evidence-s0.json", tmp_path / "to")
        assert sorted(path.name for path in (tmp_path / "to/x").iterdir()) == FILES

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            (lambda told: told["configuration"]["training"].update(seed=5), r"training.seed: 5 -> 0.*own --results"),
            (lambda told: told["results"]["knn"]["metrics"].update(top1=None), "has no kNN top-1"),
            (lambda told: told["configuration"]["data"].update(spec="photos"), "allowed is parquet:cifar10-train"),
            (lambda told: told.pop("health"), "it has no health"),
        ],
    )
    def test_results_of_another_run_are_refused(self, change, sentence, root, tmp_path):
        told = json.loads((root / "evidence-s0.json").read_text())
        change(told)
        (tmp_path / "other.json").write_text(json.dumps(told))
        with pytest.raises(ProsminError, match=sentence):
            ship.ship(root / "run", "other", tmp_path / "other.json", tmp_path / "to")
        assert not (tmp_path / "to").exists()

    @pytest.mark.parametrize("steps", [4, 0])
    def test_an_unfinished_run_is_refused(self, steps, root, tmp_path):
        run = make_run(tmp_path / "run", steps=steps)
        with pytest.raises(ProsminError, match=rf"has taken {steps} of 8 steps. Finish it"):
            ship.ship(run, "other", root / "evidence-s0.json", tmp_path / "to")

    def test_a_timm_encoder_is_refused(self, root, tmp_path):
        save_file(timm.create_model("test_vit", num_classes=0).state_dict(), tmp_path / "weights.safetensors")
        run = Path(f"timm:test_vit@{tmp_path}/weights.safetensors")
        with pytest.raises(ProsminError, match="is not a run of prosmin"):
            ship.ship(run, "other", root / "evidence-s0.json", tmp_path / "to")

    def test_wrong_use(self, root, tmp_path, capsys):
        words = [str(root / "run"), NAME, "--results", str(root / "evidence-s0.json"), "--to", str(root / "encoders")]
        assert ship.main(words) == 2
        assert "is there already" in capsys.readouterr().err
        assert ship.main([words[0], "../x", *words[2:]]) == 2
        assert "The name is '../x'; allowed" in capsys.readouterr().err
        for wrong in ([words[0], NAME], ["--check", NAME], []):
            with pytest.raises(SystemExit, match="2"):
                ship.main(wrong)

    def test_every_evidence_there_is_has_a_card(self):
        files = sorted((ROOT / "benchmarks/results").glob("*-[12]00*-s[0-9].json"))  # others leave protocols out
        assert files
        for file in files:
            rows = dict(ship._measures(ship._read_evidence(file)))
            assert "not measured" not in " ".join(rows.values()), file.name
            assert sum(name.startswith("OOD AUROC against") for name in rows) == 2


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
        told, card = (json.loads((folder / file).read_text()) for file in ("card.json", "encoder.json"))
        evidence = json.loads((ROOT / "benchmarks/results" / told["evidence"]).read_text())
        assert told["encoder"] == card["hash"]
        assert card["config"] == evidence["configuration"]
        assert told["knn"]["top1"] == evidence["results"]["knn"]["metrics"]["top1"]
        finished = ship._read_evidence(ROOT / "benchmarks/results" / told["evidence"])
        assert ship.describe(name, load(name), finished, card) == (folder / "CARD.md").read_text()


class TestCheck:
    def copied(self, root: Path, folder: Path, **knn: float) -> None:
        """The shipped encoder in another place, its card's number changed."""
        (folder / NAME).mkdir()
        for file in (root / "encoders" / NAME).iterdir():
            (folder / NAME / file.name).write_bytes(file.read_bytes())
        told = json.loads((folder / NAME / "card.json").read_text())
        (folder / NAME / "card.json").write_text(json.dumps(told | {"knn": told["knn"] | knn}))

    def run(self, encoders: Path, data: Path) -> int:
        return ship.main(["--check", NAME, "--data", str(data), "--to", str(encoders)])

    def test_the_number_of_the_card_is_reproduced(self, root, capsys):
        assert self.run(root / "encoders", root / "data") == 0
        assert capsys.readouterr().out.count("80.00 %") == 2

    @pytest.mark.parametrize(("top1", "status"), [(0.802, 0), (0.798, 0), (0.8021, 1), (0.7979, 1)])
    def test_a_number_further_away_is_an_error(self, top1, status, root, tmp_path, capsys):
        self.copied(root, tmp_path, top1=top1)
        assert self.run(tmp_path, root / "data") == status
        assert ("further apart than 0.2 points" in capsys.readouterr().err) == bool(status)

    def test_the_card_of_other_weights(self, root, tmp_path, capsys):
        self.copied(root, tmp_path)
        encoder: Encoder = load(tmp_path / NAME)
        encoder.method.get_parameter("online.backbone.cls_token").add_(1)
        for name in ("encoder.json", "encoder.safetensors"):
            (tmp_path / NAME / name).unlink()
        encoder.save(tmp_path / NAME)
        assert self.run(tmp_path, root / "data") == 1
        assert "is the card of other weights" in capsys.readouterr().err

    def test_missing_files(self, root, tmp_path, capsys):
        assert self.run(tmp_path, root / "data") == 1
        assert "card.json cannot be read" in capsys.readouterr().err
        assert self.run(root / "encoders", tmp_path) == 2
        assert "cifar10-train.parquet' of the data" in capsys.readouterr().err
