"""The comparison with the starting encoder, and what a run does with it."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from prosmin.data.image_sets import load_pictures
from prosmin.encoder import load
from prosmin.encoder.file import read_card
from prosmin.errors import ProsminError
from prosmin.training import checkpoint as checkpoints
from prosmin.training import guard, health
from prosmin.training.guard import START, linear_cka, neighbours_kept
from prosmin.training.online_knn import OnlineKnn
from prosmin.training.pretrain import pretrain
from tiny_run import assert_same_run, metrics

THREE_STEPS = "0.0286"  # epochs of 105 steps
START_COLUMNS = {"start_neighbours", "start_cka"}


def reference_cka(x, y):
    """From the kernels: <HKH, HLH> / (|HKH| |HLH|)."""
    n = len(x)
    centring = torch.eye(n, dtype=torch.float64) - 1 / n
    k, m = (centring @ (z.double() @ z.double().T) @ centring for z in (x, y))
    return (k * m).sum() / (k.norm() * m.norm())


def reference_neighbours(start, now, k):
    def nearest(x):
        found = []
        for i in range(len(x)):
            cosines = [(float(torch.cosine_similarity(x[i].double(), x[j].double(), dim=0)), j) for j in range(len(x))]
            found.append({j for _, j in sorted((c for c in cosines if c[1] != i), reverse=True)[:k]})
        return found

    pairs = zip(nearest(start), nearest(now), strict=True)
    return sum(len(a & b) / k for a, b in pairs) / len(start)


@pytest.fixture
def features():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 12, generator=generator)
    return x, x + 0.7 * torch.randn(120, 12, generator=generator)


class TestNumbers:
    def test_cka_is_that_of_the_kernels(self, features):
        x, y = features
        assert float(linear_cka(x, y[:, :7])) == pytest.approx(float(reference_cka(x, y[:, :7])), abs=1e-12)

    def test_cka_ignores_rotation_factor_and_shift(self, features):
        x, _ = features
        rotation = torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(1)))[0]
        assert float(linear_cka(x, 3 * x @ rotation + 5)) == pytest.approx(1, abs=1e-6)

    def test_neighbours_are_those_of_a_search_by_hand(self, features):
        x, y = features
        expected = reference_neighbours(x, y, k=10)
        assert 0.2 < expected < 0.8
        assert float(neighbours_kept(x, y)) == pytest.approx(expected, abs=1e-12)
        assert float(neighbours_kept(x, 2 * x)) == 1

    def test_fewer_images_have_fewer_neighbours(self, features):
        x, y = (z[:31] for z in features)
        assert float(neighbours_kept(x, y)) == pytest.approx(reference_neighbours(x, y, k=3), abs=1e-12)


@pytest.fixture
def continued(train, finished, monkeypatch):
    """A function that continues from the finished run, in a folder of this name; compared after every step."""
    monkeypatch.setattr(guard, "SAMPLE", 100)
    start = {"backbone.weights": str(finished), "training.guard_every": "1"}
    return lambda name="run", **changes: train(name, **start | changes)


def backbone(file, network="online"):
    prefix = f"{network}.backbone."
    return {name: tensor for name, tensor in load_file(file).items() if name.startswith(prefix)}


class TestRun:
    def test_start_is_stored_and_compared(self, continued, finished):
        run = continued(**{"training.guard_every": "3"})
        stored = load_file(run / START)
        assert stored.keys() == {"features", "numbers", *backbone(finished / "encoder.safetensors")}
        assert len(stored["features"]) == len(stored["numbers"]) == 100
        rows = metrics(run)
        assert [row["step"] for row in rows if row.keys() >= START_COLUMNS] == [3, 6]
        assert all(0 <= row[name] <= 1 for row in rows for name in START_COLUMNS & row.keys())

    def test_a_run_from_scratch_has_no_guard(self, finished):
        assert not (finished / START).exists()
        assert not any(START_COLUMNS & row.keys() for row in metrics(finished))

    @pytest.mark.parametrize("frozen", ["online", "target"])
    def test_frozen_backbone_does_not_change_while_heads_do(self, continued, finished, frozen, capsys):
        run = continued(**{"backbone.freeze_epochs": "0.1"})  # all six steps
        assert "only the heads learn" in capsys.readouterr().err
        before = backbone(finished / "encoder.safetensors")
        checkpoint = run / "checkpoints" / checkpoints.newest_names(run / "checkpoints")[0] / "model.safetensors"
        after = backbone(checkpoint, frozen)
        assert len(before) == len(after)
        for name, tensor in before.items():  # weights and BatchNorm statistics
            assert torch.equal(tensor, after[name.replace("online", frozen, 1)]), name
        assert [row["start_neighbours"] for row in metrics(run) if "start_neighbours" in row] == [1.0] * 6
        heads = [load_file(run / "checkpoints" / f"step-0000000{step}" / "model.safetensors") for step in (4, 6)]
        moved = [name for name, tensor in heads[1].items() if not torch.equal(tensor, heads[0][name])]
        assert any(name.startswith("predictor.") for name in moved)

    def test_frozen_backbone_thaws(self, continued, finished, capsys):
        run = continued(**{"backbone.freeze_epochs": THREE_STEPS})
        assert "only the heads learn" not in capsys.readouterr().err
        changed = backbone(run / "encoder.safetensors")
        assert any(not torch.equal(tensor, changed[name]) for name, tensor in
                   backbone(finished / "encoder.safetensors").items())  # fmt: skip


class TestGuard:
    HARSH = {"optimizer.lr": "0.05", "optimizer.warmup_epochs": "0"}  # noqa: RUF012

    def test_the_encoder_is_an_average_that_keeps_the_limit(self, continued, finished, capsys):
        last = backbone(continued("off", **self.HARSH) / "encoder.safetensors")
        assert "training.guard" not in capsys.readouterr().out.partition("forgetting")[0]
        run = continued("on", **self.HARSH, **{"training.guard": "0.9"})
        share = read_card(run)["trained_share"]
        assert 0 < share < 1
        start, mixed = (backbone(folder / "encoder.safetensors") for folder in (finished, run))
        for name, tensor in mixed.items():
            if tensor.is_floating_point():  # weights and BatchNorm statistics
                torch.testing.assert_close(tensor, start[name] + share * (last[name] - start[name]))
        stored, encoder = load_file(run / START), load(run)
        images = load_pictures("photos").subset(stored["numbers"])
        kept = float(neighbours_kept(stored["features"], encoder.features(images)))
        # on a GPU, the products of other views and batches round otherwise
        assert kept >= (0.89 if torch.cuda.is_available() else 0.9)
        said = capsys.readouterr().out
        assert f"the encoder is {share:.0%} of the trained" in said
        assert f"forecasts are still those of the trained weights: `prosmin calibrate {run}`" in said
        assert "forgetting: " in said  # the last step did, and the run says so

    def test_the_start_is_the_last_resort(self, continued, finished, capsys):
        run = continued(**self.HARSH | {"optimizer.lr": "0.5"}, **{"training.guard": "0.999"})
        assert read_card(run)["trained_share"] == 0
        said = capsys.readouterr().out
        assert "the encoder is the starting one" in said
        assert "`prosmin calibrate" in said
        start, saved = (backbone(folder / "encoder.safetensors") for folder in (finished, run))
        assert all(torch.equal(tensor, saved[name]) for name, tensor in start.items() if tensor.is_floating_point())

    def test_the_last_step_stays_the_encoder_if_it_is_close(self, continued, capsys):
        fields = {"optimizer.lr": "1e-6"}
        on, off = continued("on", **fields, **{"training.guard": "0.5"}), continued("off", **fields)
        assert "trained_share" not in read_card(on)
        assert_same_run(on, off)
        assert "training.guard" not in capsys.readouterr().out

    def test_another_guard_for_a_finished_run(self, continued, capsys):
        """It changes nothing at once, since the encoder may be in use, but the run says how to choose again."""
        run = continued(**self.HARSH)
        before = (run / "encoder.safetensors").read_bytes()
        capsys.readouterr()
        continued(**self.HARSH)
        assert "encoder.json" not in capsys.readouterr().out  # the same guard
        continued(**self.HARSH, **{"training.guard": "0.9"})
        said = capsys.readouterr().out
        assert "training.guard 0, not 0.9" in said
        assert f"remove {run / 'encoder.json'}" in said
        assert (run / "encoder.safetensors").read_bytes() == before
        (run / "encoder.json").unlink()
        continued(**self.HARSH, **{"training.guard": "0.9"})
        assert 0 < read_card(run)["trained_share"] < 1

    def test_the_verdict_says_that_it_is_not_of_the_best_step(self, continued, capsys, monkeypatch):
        scores = iter([0.9, 0.5, 0.5])
        monkeypatch.setattr(OnlineKnn, "__call__", lambda knn, method: {"knn_top1": next(scores)})
        knn = {"training.knn_every": "2", "training.knn_pictures": "100", "training.encoder": "best"}
        run = continued(**knn, **self.HARSH, **{"training.guard": "0.9"})
        assert read_card(run)["step"] == 2
        said = capsys.readouterr().out
        assert "the encoder is from step 2" in said
        assert "the weights of step 6, which are not the encoder's: forgetting" in said

    def test_resume_is_exact(self, continued):
        fields = {"backbone.freeze_epochs": THREE_STEPS, "optimizer.layer_decay": "0.8", "training.guard": "0.95"}
        whole = continued("whole", **self.HARSH | fields)
        for steps in ("2", "6"):
            parts = continued("parts", **self.HARSH | fields, **{"training.max_steps": steps})
        assert read_card(whole)["trained_share"] < 1
        first, second = load_file(whole / START), load_file(parts / START)
        assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
        assert_same_run(whole, parts)


class TestFolder:
    def cut(self, run, tmp_path):
        """A copy of the run before its encoder was written."""
        run = shutil.copytree(run, tmp_path / "cut")
        (run / "encoder.json").unlink()
        return run

    def test_without_the_stored_start(self, continued, tiny, finished, tmp_path):
        run = self.cut(continued(**{"training.guard": "0.2", "training.max_steps": "2"}), tmp_path)
        (run / START).unlink()
        changes = {"backbone.weights": str(finished), "training.max_steps": "4"}
        with pytest.raises(ProsminError, match=rf"{START}.*--training.guard 0"):
            pretrain(tiny(**changes, **{"training.guard": "0.2"}), run)
        pretrain(tiny(**changes, **{"training.guard": "0"}), run)  # as a run of an earlier version
        assert not any(START_COLUMNS & row.keys() for row in metrics(run) if row["step"] > 2)

    def test_damaged_start(self, continued, tiny, finished, tmp_path):
        run = self.cut(continued(**{"training.max_steps": "2"}), tmp_path)
        for content in (b"no tensors", None):
            (run / START).write_bytes(content) if content else save_file({"other": torch.ones(1)}, run / START)
            with pytest.raises(ProsminError, match=rf"{START}.*cannot be read"):
                pretrain(tiny(**{"backbone.weights": str(finished), "training.max_steps": "4"}), run)


class TestVerdict:
    ROW = {"step": 1, "loss": 1.0, "target_std": 0.05, "feature_rank": 20.0}  # noqa: RUF012

    def rows(self, *shares):
        """One row with each share, which may be None, and rows without between them."""
        return [self.ROW | ({} if share is None else {"start_neighbours": share, "start_cka": 0.5}) for share in shares]

    def test_words(self, tiny):
        said = health.verdict(self.rows(0.9, 0.2))
        assert said.startswith("forgetting: 20% of the starting encoder's nearest neighbours kept (CKA 0.50)")
        assert "optimizer.lr" in said
        assert "training.guard" in said
        assert health.verdict(self.rows(0.9, 0.8)).startswith("healthy: ")
        config = tiny(**{"backbone.weights": "x.pth", "training.guard": "0.85"})
        assert "less than 85%" in (said := health.verdict(self.rows(0.9, 0.8), config))
        assert "training.guard" not in said  # it is set already

    def test_the_newest_comparison_counts(self):
        forgetting, recovered = self.rows(0.2, None, None), self.rows(0.2, 0.9, None)
        assert health.trouble(forgetting, forgetting[-1]) == "forgetting"
        assert health.trouble(recovered, recovered[-1]) is None

    def test_warns_once(self, tiny):
        watch = health.Watch(tiny(), [])
        warnings = [watch.add(row) for row in self.rows(0.9, None, 0.2, None, 0.1)]
        assert [bool(warning) for warning in warnings] == [False, False, True, False, False]
        assert not watch.gives_up

    def test_a_collapse_is_worse(self):
        rows = self.rows(0.9, 0.1)
        assert health.verdict([rows[0], rows[1] | {"feature_rank": 1.0}]).startswith("collapsing")
