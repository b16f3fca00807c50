"""lowshot: which labels are used, what is averaged, and what happens when there are too few."""

import dataclasses
import statistics

import pytest
import torch

from prosmin.data.image_sets import Pictures
from prosmin.encoder import untrained
from prosmin.errors import ProsminError
from prosmin.evaluation.context import PIXELS, TRAINED, Context
from prosmin.evaluation.options import Options
from prosmin.evaluation.probes.label_subsets import labelled_shares, over_draws, read_list
from prosmin.evaluation.protocols import lowshot

CLASSES = 4


def toy(count, *, classes=CLASSES, spec="toy"):
    labels = torch.arange(count) % classes
    return Pictures(
        images=torch.zeros(count, 3, 4, 4, dtype=torch.uint8),
        sizes=torch.full((count, 2), 4),
        labels=labels,
        classes=tuple(f"class {i}" for i in range(classes)),
        keys=tuple(f"class {int(y)}/{i:04d}.png" for i, y in enumerate(labels)),
        spec=spec,
    )


class ToyContext(Context):
    """Features with a known answer in the place of an encoder's: class c lies around the c-th axis."""

    subjects = (TRAINED, PIXELS)

    def features(self, name, subject=TRAINED):
        labels = self.sets[name].labels
        noise = torch.randn(len(labels), 8, generator=torch.Generator().manual_seed(len(labels)))
        return torch.eye(8)[labels] * (3.0 if subject == TRAINED else 0.0) + noise


@pytest.fixture
def context(tiny):
    def build(*, train=1200, classes=CLASSES, **options):
        sets = {"train": toy(train, classes=classes), "test": toy(300, classes=classes, spec="toy test")}
        return ToyContext(untrained(tiny()), sets, options=Options(**options))

    return build


class TestProtocol:
    def test_metrics_are_the_mean_and_deviation_of_the_draws(self, context):
        result = lowshot.run(context(draws=2))
        for share, labels in (("1pct", 12), ("10pct", 120)):
            rows = [result.sets[share][f"draw {i}"] for i in range(2)]
            assert result.settings["shares"][share]["labels"] == labels
            assert result.settings["shares"][share]["l2"] != []
            for name in ("top1", "nll", "ece_floor", "ece_calibrated", "classwise_calibration_error_calibrated"):
                values = [row[name] for row in rows]
                assert result.metrics[f"{name}_{share}"] == pytest.approx(statistics.mean(values))
                assert result.metrics[f"{name}_{share}_sd"] == pytest.approx(statistics.stdev(values))
        assert result.metrics["top1_10pct"] > 0.9  # three standard deviations apart
        assert result.metrics["top1_1pct_sd"] > 0  # other labels in every draw
        assert abs(result.baselines[PIXELS]["top1_10pct"] - 1 / CLASSES) < 0.1  # noise

    def test_the_subsets_are_fixed_balanced_and_nested(self, context):
        one, again = (labelled_shares(context())[0] for _ in range(2))
        labels = context().labels("train")
        for small, large, same in zip(one[0].subsets, one[1].subsets, again[0].subsets, strict=True):
            assert torch.equal(small, same)
            assert labels[small].bincount().tolist() == [3] * CLASSES
            assert set(small.tolist()) < set(large.tolist())
        assert not torch.equal(one[0].subsets[0], one[0].subsets[1])

    def test_one_draw_has_no_deviation(self):
        assert over_draws([{"top1": 0.5}], "1pct") == {"top1_1pct": 0.5}


class TestTooFew:
    def test_a_share_without_a_label_for_each_class_is_left_out_and_named(self, context):
        result = lowshot.run(context(train=300))
        assert list(result.settings["shares"]) == ["10pct"]
        assert "is 3, fewer than the 4 classes" in result.settings["left_out"]["1pct"]
        assert "top1_1pct" not in result.metrics

    def test_labels_that_leave_nothing_to_choose_on_are_left_out(self, context):
        _, left_out = labelled_shares(context(train=400))
        assert "4 labels of 4 classes" in left_out["1pct"]

    def test_no_share_at_all_is_a_sentence(self, context):
        with pytest.raises(ProsminError, match=r"toy has too few labels\. A share of 0\.01 of 30 labels is 0, fewer"):
            lowshot.run(context(train=30))


class TestLists:
    def write(self, path, names):
        path.write_text("\n".join(names) + "\n\n")
        return str(path)

    def test_listed_pictures_take_the_place_of_draws(self, context, tmp_path):
        train = context().sets["train"]
        small = self.write(tmp_path / "1percent.txt", [key.split("/")[1] for key in train.keys[40:52]])
        large = self.write(tmp_path / "10percent.txt", train.keys[100:220])
        shares, left_out = labelled_shares(context(label_lists=(small, large)))
        assert [share.name for share in shares] == ["1pct", "10pct"]
        assert shares[0].subsets[0].tolist() == list(range(40, 52))
        assert shares[1].subsets[0].tolist() == list(range(100, 220))
        assert left_out == {}
        result = lowshot.run(context(label_lists=(small,)))
        assert "top1_1pct" in result.metrics
        assert "top1_1pct_sd" not in result.metrics

    def test_unknown_names_are_counted(self, tmp_path):
        path = tmp_path / "list.txt"
        self.write(path, ["0000.png", "nowhere.png", "else.png"])
        with pytest.raises(ProsminError, match=r"2 of the 3 names in .*list\.txt .*toy.*nowhere"):
            read_list(path, toy(8))

    def test_a_file_name_that_several_pictures_have_needs_its_folder(self, tmp_path):
        pictures = dataclasses.replace(toy(4), keys=("a/1.png", "b/1.png", "a/2.png", "b/3.png"))
        path = tmp_path / "list.txt"
        self.write(path, ["1.png"])
        with pytest.raises(ProsminError, match="or several"):
            read_list(path, pictures)
        self.write(path, ["b/1.png", "2.png"])
        assert read_list(path, pictures).tolist() == [1, 2]

    def test_lists_that_cannot_serve_are_sentences(self, context, tmp_path):
        keys = context().sets["train"].keys
        for names, said in (
            ([], "is empty"),
            ([keys[0], keys[4], keys[1]], "names images of 2 of the 4 classes"),
            (keys[:4], "4 labels of 4 classes"),
        ):
            with pytest.raises(ProsminError, match=said):
                labelled_shares(context(label_lists=(self.write(tmp_path / "list.txt", names),)))
        with pytest.raises(ProsminError, match="cannot be read"):
            labelled_shares(context(label_lists=(str(tmp_path / "missing.txt"),)))
