"""Fine-tuning, semi and transfer: what is learned, what is chosen where, what stays as it was."""

import dataclasses
import math

import pytest
import torch
from PIL import Image

from coloured import coloured
from prosmin.cli import main
from prosmin.encoder import untrained
from prosmin.errors import ProsminError, UsageError
from prosmin.evaluation import run as suite
from prosmin.evaluation.batches import augmented, batch_size, training_batches
from prosmin.evaluation.context import Context
from prosmin.evaluation.metrics.calibration import Predictions, calibrated_nll
from prosmin.evaluation.options import Options
from prosmin.evaluation.probes import finetune
from prosmin.evaluation.probes.finetune import default_epochs, fine_tune
from prosmin.evaluation.protocols import semi, transfer
from prosmin.evaluation.sets import check_classes, common_classes


@pytest.fixture
def encoder(tiny):
    return untrained(tiny(views__global_size="16"))


class TestAugmentation:
    def test_it_follows_from_seed_step_and_position_alone(self, encoder):
        pictures, views = coloured(6), encoder.config.views

        def draw(count, **at):
            return augmented(pictures.images[:count], pictures.sizes[:count], views, **at)

        whole = draw(6, seed=1, step=2)
        assert whole.shape == (6, 3, 16, 16)
        assert torch.equal(draw(6, seed=1, step=2), whole)
        torch.testing.assert_close(draw(3, seed=1, step=2), whole[:3])
        assert not torch.equal(draw(6, seed=1, step=3), whole)
        assert not torch.equal(draw(6, seed=2, step=2), whole)

    def test_crops_have_the_areas_of_supervised_training_and_half_are_flipped(self, encoder):
        """Of a horizontal ramp from 0 to 1 a crop shows its width as contrast and its flip as direction."""
        side = 64
        ramp = torch.linspace(0, 255, side).round().to(torch.uint8).expand(400, 3, side, side)
        views = dataclasses.replace(encoder.config.views, mean=(0.0,) * 3, std=(1.0,) * 3)
        drawn = augmented(ramp, torch.full((400, 2), side), views, seed=0, step=0)
        rise = drawn[:, 0, :, -1].mean(1) - drawn[:, 0, :, 0].mean(1)
        assert 0.4 < (rise < 0).double().mean() < 0.6  # 4 standard deviations of 400 coins
        width = rise.abs() / (15 / 16)  # between the centres of the first and the last pixel
        # The mean of sqrt(area * ratio): 2/3 (1 - 0.08^1.5) / 0.92 = 0.708, less where wide crops do not fit.
        assert 0.65 < width.mean() < 0.72
        assert width.min() > 0.2  # sqrt(0.08 * 3/4) = 0.245, a pixel less for rounding

    def test_every_picture_is_seen_once_an_epoch(self, encoder):
        batches = training_batches(
            coloured(48), encoder.config.views, size=16, epochs=2, seed=0, device=torch.device("cpu")
        )
        seen = [batch.index for batch in batches]
        assert len(seen) == 6
        for epoch in (seen[:3], seen[3:]):
            assert sorted(torch.cat(epoch).tolist()) == list(range(48))
        assert not torch.equal(seen[0], seen[3])


class TestLength:
    @pytest.mark.parametrize(
        ("pictures", "size", "epochs"),
        [(10, 10, 100), (34, 16, 100), (500, 31, 38), (5000, 256, 32), (50000, 256, 10), (1281167, 256, 10)],
    )
    def test_small_sets_have_small_batches_and_many_epochs(self, pictures, size, epochs):
        assert batch_size(pictures, most=256) == size
        assert default_epochs(pictures) == epochs


class TestFineTuning:
    def test_it_learns_and_leaves_the_encoder_alone(self, encoder):
        before = {name: tensor.clone() for name, tensor in encoder.method.state_dict().items()}
        test = dataclasses.replace(coloured(60, seed=1), labels=None)  # it can do without them
        tuned = fine_tune(encoder, coloured(30), test, classes=3, seed=0, epochs=6)
        assert (tuned.logits.argmax(1) == coloured(60).labels).double().mean() > 0.9
        assert tuned.settings["held_out"] == "5 folds of the labels"
        assert tuned.settings["batch_size"] == 16
        tried = tuned.settings["lr_tried"]
        assert len(tried) == 3
        assert tried[str(tuned.settings["lr"])] == min(tried.values())
        for name, tensor in encoder.method.state_dict().items():
            assert torch.equal(tensor, before[name]), name
        assert not any(p.requires_grad for p in encoder.method.parameters())
        assert not encoder.method.training

    def test_the_same_seed_gives_the_same_bits_and_another_does_not(self, encoder):
        def logits(seed):
            torch.manual_seed(seed + 100)  # what was drawn before does not matter
            return fine_tune(encoder, coloured(15), coloured(6, seed=1), classes=3, seed=seed, epochs=1).logits

        first = logits(0)
        assert torch.equal(logits(0), first)
        assert not torch.equal(logits(1), first)

    def test_stochastic_depth_of_pretraining_is_off(self, tiny):
        config = tiny(backbone__name="vit_tiny_patch16_224", backbone__patch_size="8", backbone__width="24",
                      backbone__depth="2", backbone__heads="3", backbone__drop_path="0.5")  # fmt: skip
        network = finetune.Classifier(untrained(config).method.get_submodule("online.backbone"), 3).train()
        x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        assert torch.equal(network.backbone(x), network.backbone(x))

    def test_choices_and_the_temperature_come_from_labels_the_networks_did_not_see(self, encoder, monkeypatch):
        """A network that knows nothing but its own training labels has no answer for the held-out ones."""
        asked = []

        def train(encoder, pictures, **settings):
            asked.append((set(pictures.keys), settings["rate"]))
            return pictures

        def predict(network, pictures, encoder):
            assert asked[-1][0].isdisjoint(pictures.keys)
            # The second rate is the best: its answers are right and sure, those of the others are not.
            sure = 3.0 if asked[-1][1] == finetune.RATES[1] else -1.0
            return torch.nn.functional.one_hot(pictures.labels, 3) * sure

        monkeypatch.setattr(finetune, "_train", train)
        monkeypatch.setattr(finetune, "_predict", predict)
        test = dataclasses.replace(coloured(9, seed=1), keys=tuple("abcdefghi"))
        few = fine_tune(encoder, coloured(60), test, classes=3, seed=0)
        assert few.settings["lr"] == finetune.RATES[1]
        assert len(asked) == 5 * 3 + 1
        asked.clear()
        many = fine_tune(encoder, coloured(600), test, classes=3, seed=0)
        assert many.settings["held_out"] == "a tenth of the labels"
        assert [len(keys) for keys, _ in asked] == [540] * 3 + [600]

    def test_rates_are_compared_at_their_best_temperature(self):
        labels = torch.arange(60) % 3
        right = torch.nn.functional.one_hot(labels.where(torch.arange(60) % 4 > 0, (labels + 1) % 3), 3).double()
        temperature, nll = calibrated_nll(100 * right, labels)  # right in three of four cases, and far too sure
        assert nll < calibrated_nll(0.1 * right, labels)[1] + 1e-6
        assert nll < torch.nn.functional.cross_entropy(0.1 * right, labels)  # which hardly learned
        # With p the probability of the answer: 3/4 at the best temperature, so nll = -3/4 ln 3/4 - 1/4 ln 1/8.
        assert nll == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.125), abs=1e-4)
        assert temperature == pytest.approx(100 / math.log(6), rel=1e-3)
        assert calibrated_nll(right * math.nan, labels)[1] == math.inf

    def test_a_network_that_diverges_is_not_chosen(self, encoder, monkeypatch):
        def answers(bad):
            def predict(network, pictures, encoder):
                logits = torch.nn.functional.one_hot(pictures.labels, 3) * 2.0
                return logits * torch.nan if network in bad else logits

            return predict

        monkeypatch.setattr(finetune, "_train", lambda *args, rate, **settings: rate)
        monkeypatch.setattr(finetune, "_predict", answers(finetune.RATES[:2]))
        tuned = fine_tune(encoder, coloured(30), coloured(6), classes=3, seed=0)
        assert tuned.settings["lr"] == finetune.RATES[2]
        monkeypatch.setattr(finetune, "_predict", answers(finetune.RATES))
        with pytest.raises(ProsminError, match="diverged at every learning rate"):
            fine_tune(encoder, coloured(30), coloured(6), classes=3, seed=0)


class TestSemi:
    def test_each_share_and_draw_is_tuned_on_its_own_labels(self, encoder, monkeypatch):
        sizes = []

        def fake(encoder, train, test, *, classes, seed, epochs):
            sizes.append((len(train), seed, epochs))
            logits = torch.nn.functional.one_hot(test.labels, 3) * (1.0 + seed)
            return Predictions(logits=logits, temperature=1.0, settings={"lr": 0.1})

        monkeypatch.setattr(semi, "fine_tune", fake)
        sets = {"train": coloured(600), "test": coloured(30, seed=1)}
        result = semi.run(Context(encoder, sets, options=Options(draws=2, finetune_epochs=7)))
        assert sizes == [(6, 0, 7), (6, 1, 7), (60, 0, 7), (60, 1, 7)]
        assert result.metrics["top1_1pct"] == 1.0
        assert result.metrics["nll_10pct_sd"] > 0
        assert result.settings["shares"]["10pct"]["labels"] == 60
        assert {"ece_low", "adaptive_ece", "brier_calibrated"} <= result.sets["1pct"]["draw 1"].keys()


def check_transfer(spec):
    transfer.check(Context(None, {}, options=Options(transfer=(spec,))))


def write_split(folder, count, *, seed, classes=("blue", "green", "red")):
    pictures = coloured(count, seed=seed, side=8)
    for i, (image, label) in enumerate(zip(pictures.images, pictures.labels, strict=True)):
        path = folder / classes[int(label)] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)


def test_classes_without_a_picture_may_lack_their_name():
    names = ("rose", "lily", "tulip")
    for split in (names, ("rose", "1", "tulip"), ("rose", "lily"), ("0", "1"), ()):
        assert common_classes(names, split) == common_classes(split, names) == names
    for split in (("lily", "tulip"), ("rose", "tulip", "lily"), ("rose", "2", "tulip")):
        assert common_classes(names, split) is None
    assert common_classes(("0", "1"), ("0", "1", "2")) == ("0", "1", "2")
    # Folders named by numbers, one of them missing: what stands at place 1 is another class than it says.
    assert common_classes(("0", "1", "2", "3"), ("0", "2", "3")) is None
    with pytest.raises(ProsminError, match=r"a and b .*their order.* Advice"):
        check_classes(names, ("rose", "tulip", "lily"), specs=("a", "b"), advice=". Advice")


class TestTransfer:
    def test_train_and_val_are_learned_from_and_test_is_judged(self, encoder, tmp_path, monkeypatch):
        for split, count in (("train", 12), ("val", 6), ("test", 9)):
            write_split(tmp_path / "a" / split, count, seed=count)
        for split, count in (("train", 15), ("test", 9)):
            write_split(tmp_path / "b" / split, count, seed=count)
        specs = (f"folder:{tmp_path}/a", f"folder:{tmp_path}/b")
        seen = []

        def fake(encoder, train, test, *, classes, seed, epochs):
            seen.append((len(train), len(test), classes))
            logits = torch.nn.functional.one_hot(test.labels.roll(len(seen) - 1), 3) * 3.0  # right for the first set
            return Predictions(logits=logits, temperature=2.0, settings={"epochs": 1})

        monkeypatch.setattr(transfer, "fine_tune", fake)
        context = Context(encoder, {}, options=Options(transfer=specs))
        result = transfer.run(context)
        assert seen == [(18, 9, 3), (15, 9, 3)]
        first, second = (result.sets[spec]["fine-tuned"] for spec in specs)
        assert first["top1"] == 1.0
        assert result.metrics["top1"] == pytest.approx((first["top1"] + second["top1"]) / 2)
        assert result.metrics["temperature"] == 2.0
        assert result.settings[specs[0]]["train"].count("@") == 2

    def test_the_command_prints_a_row_a_set(self, tiny, tmp_path, monkeypatch, capsys):
        for name in "ab":
            for split in ("train", "test"):
                write_split(tmp_path / name / split, 9, seed=0)

        def fake(encoder, train, test, *, classes, seed, epochs):
            settings = {"lr": 5e-4, "epochs": epochs}
            return Predictions(logits=8.0 * torch.eye(3)[test.labels], temperature=1.0, settings=settings)

        monkeypatch.setattr(transfer, "fine_tune", fake)
        monkeypatch.setattr(suite, "open_pictures", lambda spec, **_: pytest.fail(f"{spec} is not needed"))
        run = untrained(tiny()).save(tmp_path / "run")
        monkeypatch.chdir(tmp_path)
        specs = ["folder:a", "folder:b"]
        command = ["evaluate", str(run), "--protocols", "transfer", "--finetune-epochs", "2", "--transfer"]
        assert main([*command, ",".join(specs)]) == 0
        rows = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert rows[1:3] == [[spec, "9", "100.0", "0.001", "0.001", "0.001", "0.0005", "2"] for spec in specs]
        assert rows[3] == ["mean", "100.0", "0.001", "0.001", "0.001"]
        assert main([*command, specs[0]]) == 0
        assert "mean" not in capsys.readouterr().out

    def test_sets_that_cannot_serve_are_sentences(self, tmp_path):
        write_split(tmp_path / "other/train", 6, seed=0)
        write_split(tmp_path / "other/test", 6, seed=0, classes=("blue", "green", "violet"))
        with pytest.raises(ProsminError, match=r"red, violet.*--transfer"):
            check_transfer(f"folder:{tmp_path}/other")
        for split in ("train", "test"):
            (tmp_path / "flat" / split).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(tmp_path / "flat" / split / "1.png")
        with pytest.raises(ProsminError, match=r"flat@train has no labels.*--transfer"):
            check_transfer(f"folder:{tmp_path}/flat")
        with pytest.raises(UsageError, match="has no split 'train'"):
            check_transfer(f"folder:{tmp_path}/other/train/blue")

    def test_too_few_pictures_a_class_are_refused_before_anything_is_trained(self, encoder, tmp_path, monkeypatch):
        for name in "abcdefgh":
            for split, count in (("train", 2 if name == "a" else 1), ("test", 1)):
                for i in range(count):
                    path = tmp_path / "few" / split / name / f"{i}.png"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    Image.new("RGB", (8, 8)).save(path)
        spec = f"folder:{tmp_path}/few"
        sentence = "few@train has 9 labelled images of 8 classes"
        with pytest.raises(ProsminError, match=sentence):
            check_transfer(spec)
        monkeypatch.setattr(finetune, "_train", lambda *_, **__: pytest.fail("trained"))
        with pytest.raises(ProsminError, match=sentence):
            transfer.run(Context(encoder, {}, options=Options(transfer=(spec,))))
        write_split(tmp_path / "few/val", 12, seed=0, classes="abc")  # is learned from too
        check_transfer(spec)

    @pytest.mark.parametrize(
        ("labels", "enough"),
        [
            (range(4), False),  # fewer than folds
            (range(600), False),  # a tenth of them, but a class is never held out whole
            ([0, 0, 1, 1, 2, 2], True),
            (list(range(300)) * 2, True),
        ],
    )
    def test_every_choosing_network_has_pictures_to_choose_on(self, labels, enough):
        some = coloured(len(labels), side=2)
        train = dataclasses.replace(some, labels=torch.tensor(labels), classes=tuple(map(str, range(max(labels) + 1))))
        if enough:
            finetune.check_held_out(train)
        else:
            with pytest.raises(ProsminError, match=f"colours has {len(labels)} labelled images of {len(labels)} cl"):
                finetune.check_held_out(train)
