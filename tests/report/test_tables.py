"""Tables: names of metrics, intervals, the results of all protocols, and the tables of the paper."""

import shutil

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from scipy.stats import binomtest

from fake_run import fake_run
from prosmin.evaluation.metrics.intervals import auroc_interval, wilson
from prosmin.evaluation.metrics.ranking import auroc
from prosmin.evaluation.metrics.table import interval_of, metric, parse
from prosmin.report import write_report
from prosmin.report.blocks import Fold, Table
from prosmin.report.runs import read_run, read_runs, size_of_test
from prosmin.report.sections.paper import (
    few_labels_table,
    generalisation_table,
    parameters,
    trade_off_figure,
    transfer_table,
)
from prosmin.report.sections.results import blocks, protocol_tables

OLD = {"settings": {"parameters": "ImageNet-C's, at the size the encoder sees"}}  # as earlier versions named them
ASKED = {"corruption_parameters": "auto"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return read_runs([fake_run(folder / "good"), fake_run(folder / "fair", seed=1, skill=0.6)])


def without(run, tmp_path, *names):
    """A copy of a run that lacks some results."""
    folder = tmp_path / run.name
    shutil.copytree(run.path, folder)
    for name in names:
        for path in (folder / "results").glob(f"{name}.*"):
            path.unlink()
    return read_run(folder, run.name)


def texts(table):
    return [[getattr(cell, "text", cell) for cell in row] for row in table.rows]


class TestNames:
    @pytest.mark.parametrize(
        ("name", "label"),
        [
            ("top1_1pct", "top-1 accuracy, 1 % of the labels"),
            ("nll_calibrated_10pct", "negative log-likelihood, 10 % of the labels, temperature-scaled"),
            ("mean_error_severity_3", "mean error, severity 3"),
            ("mean_nll_extra", "mean negative log-likelihood, the four extra corruptions"),
            ("near_auroc", "AUROC, near sets"),
            ("far_auroc_mahalanobis", "AUROC, Mahalanobis distance, far sets"),
            ("classwise_calibration_error", "class-wise calibration error"),
            ("near_misses", "near misses"),
        ],
    )
    def test_suffixes_are_in_the_title(self, name, label):
        assert metric(name).title == label

    def test_ends_of_an_interval(self):
        assert interval_of("ece") == ("ece_low", "ece_high")
        assert interval_of("ece_calibrated") == ("ece_low_calibrated", "ece_high_calibrated")
        assert interval_of("ece_calibrated_1pct") == ("ece_low_calibrated_1pct", "ece_high_calibrated_1pct")
        assert parse("nll_0.5pct").share == "_0.5pct"


class TestIntervals:
    @pytest.mark.parametrize(("right", "of"), [(0, 20), (17, 20), (500, 1000), (1000, 1000)])
    def test_wilson_agrees_with_scipy(self, right, of):
        expected = binomtest(right, of).proportion_ci(method="wilson")
        assert wilson(right / of, of) == pytest.approx((expected.low, expected.high), abs=1e-6)

    def test_the_interval_of_the_auroc_is_as_wide_as_over_new_draws(self):
        """The standard deviation of the mean AUROC of two sets over 400 draws is known to 4 %."""
        random = np.random.default_rng(0)

        def draw():
            return random.normal(size=150), [random.normal(loc=1, size=60), random.normal(loc=0.5, size=200)]

        def mean(inside, outside):
            return np.mean([(inside[:, None] < out).mean() for out in outside])

        spread = np.std([mean(*draw()) for _ in range(400)])
        widths = [high - low for low, high in (auroc_interval(*draw()) for _ in range(100))]
        assert np.mean(widths) == pytest.approx(2 * 1.96 * spread, rel=0.15)

    def test_the_interval_of_the_auroc_is_around_it_with_ties(self):
        random = np.random.default_rng(1)
        inside, outside = random.normal(size=300).round(1), random.normal(loc=1, size=200).round(1)
        low, high = auroc_interval(inside, [outside])
        assert (low + high) / 2 == pytest.approx(auroc(torch.tensor(inside), torch.tensor(outside)), abs=1e-12)

    def test_the_size_comes_from_the_same_images(self, runs, tmp_path):
        assert size_of_test(runs[0], "knn") == 840
        run = without(runs[0], tmp_path)
        run.results["knn"]["data"] = {"test": "others@test"}
        assert size_of_test(run, "knn") is None


class TestResults:
    def test_draws_and_intervals_are_behind_their_number(self, runs):
        table, fold = protocol_tables(runs, "lowshot")
        assert isinstance(table, Table)
        assert [row[0].text for row in table.rows] == [
            f"{name}, {share} % of the labels\u00a0{arrow}"
            for share in (1, 10)
            for name, arrow in (
                ("top-1 accuracy", "↑"),
                ("negative log-likelihood", "↓"),
                ("calibration error (ECE)", "↓"),
            )
        ]
        assert table.rows[0][1].detail == "± 1.2"
        assert table.rows[1][1].detail == "± 0.012"
        assert isinstance(fold, Fold)
        names = [row[0].text for row in fold.blocks[0].rows]
        assert not [name for name in names if "low" in name or name.endswith("sd")]
        (knn,) = protocol_tables(runs, "knn")
        low, high = wilson(runs[0].metrics("knn")["top1"], 840)
        assert knn.rows[0][1].detail == f"[{100 * low:.1f}, {100 * high:.1f}]"

    def test_other_sets_are_listed_one_by_one(self, runs):
        tables = [b for b in blocks(runs) if isinstance(b, Table) and b.caption.startswith("Transfer")]
        assert len(tables) == 1
        assert [row[0].text for row in tables[0].rows][::3] == [
            "torchvision:CIFAR10: top-1 accuracy\u00a0↑",
            "photos: top-1 accuracy\u00a0↑",
        ]

    def test_protocols_have_a_fixed_order(self, runs):
        captions = [b.caption for b in blocks(runs) if isinstance(b, Table)]
        assert [c.split(":")[0] for c in captions] == [
            "kNN", "Linear probe", "Linear classifier on augmented images", "Low-shot", "Semi-supervised", "Transfer",
            "Out-of-distribution detection", "Uncertainty", "Corrupted images",
        ]  # fmt: skip


class TestPaperTables:
    def test_table_1_takes_one_linear_protocol_for_all(self, runs, tmp_path):
        table = generalisation_table(runs)
        assert [c.replace("\u00a0", " ") for c in table.columns[1:]] == ["Top-1 ↑", "kNN ↑", "NLL ↓", "ECE ↓"]
        assert texts(table)[0][:3] == ["good", "86.0 %", "80.0 %"]  # the paper's protocol
        assert table.rows[0][1].best
        assert not table.rows[1][1].best
        less = without(runs[1], tmp_path, "linear-paper")
        mixed = generalisation_table([runs[0], less])
        assert [row[1] for row in texts(mixed)] == ["85.0 %", "75.0 %"]  # the probe, which both have
        assert "linear probe" in mixed.note

    def test_what_a_run_lacks_is_a_dash(self, runs, tmp_path):
        less = without(runs[1], tmp_path, "knn", "semi", "transfer")
        assert texts(generalisation_table([runs[0], less]))[1][2] == "–"
        assert texts(few_labels_table([runs[0], less]))[1][:3] == ["fair, semi-supervised", "–", "–"]
        assert texts(transfer_table([runs[0], less]))[1] == ["fair", "–", "–"]
        assert transfer_table([less]) is None

    def test_table_2_has_both_tasks_and_the_network(self, runs, tmp_path):
        table = few_labels_table(runs)
        assert [row[0] for row in texts(table)] == [
            "good, semi-supervised",
            "fair, semi-supervised",
            "good, low-shot",
            "fair, low-shot",
        ]
        assert texts(table)[2][3:] == ["resnet14_cifar", "–"]
        run = without(runs[0], tmp_path)
        tensors = {"online.backbone.a": np.zeros((1000, 20)), "online.backbone.b": np.zeros(500), "q": np.zeros(9)}
        save_file(tensors, run.path / "encoder.safetensors")
        assert parameters(run) == 20_500
        assert texts(few_labels_table([run]))[0][4] == "0.0205 M"
        (run.path / "encoder.safetensors").write_bytes(b"broken")
        assert parameters(run) is None

    def test_missing_tasks_name_their_command(self, runs, tmp_path):
        less = without(runs[0], tmp_path, "lowshot", "semi", "transfer")
        html = write_report([less.path], tmp_path / "page.html").read_text()
        assert f"prosmin evaluate {less.path} --protocols lowshot,semi,transfer --transfer SPEC,..." in html
        assert "Table 2" not in html


class TestTradeOff:
    def test_one_point_per_run_with_its_name(self, runs):
        figure = trade_off_figure(runs)
        assert figure.chart.svg.count("<circle") == 2
        assert ">good</text>" in figure.chart.svg
        assert "compare with care" not in figure.reading
        row = figure.table.rows[0]
        low, high = (float(end) for end in row[2].detail.strip("[]").split(", "))
        assert low < float(row[2].text) < high

    def test_one_run_has_no_figure(self, runs, tmp_path):
        assert trade_off_figure(runs[:1]) is None
        assert trade_off_figure([runs[0], without(runs[1], tmp_path, "ood")]) is None

    @pytest.mark.parametrize(
        ("name", "first", "second", "marked"),
        [
            ("corruption", {}, {"options": {"severities": [5]}}, True),
            # The severities that were used count, not how they were asked for.
            ("corruption", OLD, {"settings": {"parameters": "imagenet-c"}, "options": ASKED}, False),
            ("corruption", OLD, {"settings": {"parameters": "cifar-10-c"}, "options": ASKED}, True),
            # Options that change neither number are no difference.
            (
                "ood",
                {"options": {"baselines": "all", "near": []}},
                {"options": {"baselines": "no", "near": ["x"]}},
                False,
            ),
        ],
    )
    def test_runs_measured_in_another_way_are_marked(self, runs, tmp_path, name, first, second, marked):
        copies = [without(run, tmp_path) for run in runs]
        for copy, change in zip(copies, (first, second), strict=True):
            for part, values in change.items():
                copy.results[name].setdefault(part, {}).update(values)
        assert ("compare with care" in trade_off_figure(copies).reading) is marked
