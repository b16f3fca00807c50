"""benchmarks/ship.py: an encoder made from a run and its results, and checked against them."""

import json
from pathlib import Path

import pytest
import timm
from safetensors.torch import save_file

from coloured import coloured
from prosmin.encoder import Encoder, load
from prosmin.errors import ProsminError
from shipping import FILES, NAME, ROOT, make_run, ship, ship_tiny


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return ship_tiny(tmp_path_factory.mktemp("shipped"))


class TestShipping:
    def test_the_card_has_the_results(self, root):
        text = (root / "encoders" / NAME / "CARD.md").read_text()
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
        entries = json.loads((root / "encoders" / NAME / "card.json").read_text())
        assert entries["knn"] == {"top1": 0.8, "k": 20}
        assert entries["encoder"] == load(root / "encoders" / NAME).card["hash"]

    def test_no_path_of_the_training_machine(self, root):
        for file in (root / "encoders" / NAME).iterdir():
            assert b"far/away" not in file.read_bytes(), file.name

    def test_the_reference_is_not_shipped(self, root, tmp_path):
        run = make_run(tmp_path / "run")
        load(run).fit_reference(coloured(12, seed=2).images).save(run)
        ship.ship(run, "x", root / "evidence-s0.json", tmp_path / "to")
        assert sorted(path.name for path in (tmp_path / "to/x").iterdir()) == FILES

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            (
                lambda entries: entries["configuration"]["training"].update(seed=5),
                r"training.seed: 5 -> 0.*own --results",
            ),
            (lambda entries: entries["results"]["knn"]["metrics"].update(top1=None), "has no kNN top-1"),
            (
                lambda entries: entries["configuration"]["data"].update(spec="photos"),
                "allowed is parquet:cifar10-train",
            ),
            (lambda entries: entries.pop("health"), "it has no health"),
        ],
    )
    def test_results_of_another_run_are_refused(self, change, sentence, root, tmp_path):
        entries = json.loads((root / "evidence-s0.json").read_text())
        change(entries)
        (tmp_path / "other.json").write_text(json.dumps(entries))
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
        files = sorted((ROOT / "benchmarks/results").glob("*-[12]00*-s[0-9].json"))
        files = [file for file in files if "corruption" in json.loads(file.read_text())["results"]]  # all protocols
        assert files
        for file in files:
            rows = dict(ship._measures(ship._read_evidence(file)))
            assert "not measured" not in " ".join(rows.values()), file.name
            assert sum(name.startswith("OOD AUROC against") for name in rows) == 2


class TestCheck:
    def copied(self, root: Path, folder: Path, **knn: float) -> None:
        """The shipped encoder in another place, its card's number changed."""
        (folder / NAME).mkdir()
        for file in (root / "encoders" / NAME).iterdir():
            (folder / NAME / file.name).write_bytes(file.read_bytes())
        entries = json.loads((folder / NAME / "card.json").read_text())
        (folder / NAME / "card.json").write_text(json.dumps(entries | {"knn": entries["knn"] | knn}))

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
