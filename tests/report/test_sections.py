"""The verdicts, the headline numbers and the figures of single sections."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import auc, roc_auc_score

from fake_run import fake_run
from prosmin.evaluation.metrics.table import number
from prosmin.report.page import render
from prosmin.report.runs import Run, read_run
from prosmin.report.sections import uncertainty
from prosmin.report.sections.calibration import reading
from prosmin.report.sections.configuration import seconds
from prosmin.report.sections.headline import card, judge_training, judge_uncertainty, lead
from prosmin.report.sections.ood import raw, roc
from prosmin.report.sections.uncertainty import references, split_figure
from prosmin.report.tables import Column
from prosmin.training.health import COLLAPSED_RANK, COLLAPSED_STD, is_collapsed


def with_log(lines: list[dict[str, float]], **config) -> Run:
    return Run(path=Path("r"), name="r", config=config, log=lines)


@pytest.fixture
def run(tmp_path):
    return read_run(fake_run(tmp_path / "run"), "run")


class TestTrainingVerdict:
    @pytest.mark.parametrize(
        ("changes", "status", "text"),
        [
            ({}, "good", "No collapse"),
            ({"target_std": 0.0001}, "bad", "Collapse: the standard deviation"),
            ({"target_std": 0.015}, "watch", "Close to collapse: the standard deviation"),
            ({"feature_rank": 1.2}, "bad", "Collapse: the effective rank"),
            ({"scale_mean": 2.0}, "bad", "diverged"),
            ({"scale_mean": 1e-6}, "watch", "became a point"),
            ({"knn_top1": 0.3}, "watch", "below its best"),
            ({"loss": float("nan")}, "bad", "stopped being finite"),
            ({"loss": 1e9}, "bad", "diverged"),
            ({"epoch": 12.0}, "watch", "not finished"),
        ],
    )
    def test_each_finding(self, changes, status, text):
        start = {"step": 1, "epoch": 0.1, "loss": 0.6, "target_std": 0.06, "feature_rank": 40}
        start |= {"scale_mean": 0.05, "knn_top1": 0.5}
        end = start | {"step": 100, "epoch": 20.0, "loss": 0.4} | changes
        verdict = judge_training(with_log([start, end], training={"epochs": 20, "max_steps": None}))
        assert verdict.status == status
        assert any(finding.status == status and text in finding.text for finding in verdict.findings)

    @pytest.mark.parametrize(("name", "limit"), [("target_std", COLLAPSED_STD), ("feature_rank", COLLAPSED_RANK)])
    def test_it_calls_collapse_what_training_calls_collapse(self, name, limit):
        for value in (0.99 * limit, 1.01 * limit):
            line = {"step": 1, "loss": 0.5, name: value}  # a single line: nothing has fallen
            assert (judge_training(with_log([line])).status == "bad") == is_collapsed(line) == (value < limit)

    @pytest.mark.parametrize(
        ("kept", "guard", "status", "text"),
        [
            (0.24, None, "watch", "Forgetting: training kept 24.0 %"),
            (0.8, None, "good", "kept 80.0 %"),
            (0.8, 0.9, "watch", "less than 90.0 %"),
        ],
    )
    def test_forgetting_the_start(self, kept, guard, status, text):
        lines = [{"step": 1, "loss": 0.5, "start_neighbours": kept, "start_cka": 0.5}, {"step": 2, "loss": 0.4}]
        verdict = judge_training(with_log(lines, training={"guard": guard}))
        assert verdict.status == status
        assert any(finding.status == status and text in finding.text for finding in verdict.findings)

    @pytest.mark.parametrize("folder", ["run", "results"])
    def test_an_average_with_the_start(self, tmp_path, folder):
        """Also of results that `prosmin evaluate --out` wrote elsewhere."""
        run = fake_run(tmp_path / "run")
        card = {"trained_share": 0.35} | ({"run": str(run)} if folder == "results" else {})
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "encoder.json").write_text(json.dumps(card | {"config": {"method": {"name": "prosmin"}}}))
        verdict = judge_training(read_run(tmp_path / folder, "name"))
        assert verdict.status == "watch"
        assert any("35.0 % of the trained and 65.0 %" in finding.text for finding in verdict.findings)

    def test_an_empty_log_gives_no_verdict(self):
        assert judge_training(with_log([])).status == "unknown"


class TestUncertaintyVerdict:
    @pytest.mark.parametrize(
        ("metrics", "status", "text"),
        [
            ({}, "good", "rises with noise"),
            ({"spearman_noise": 0.05}, "watch", "hardly changes with noise"),
            ({"spearman_noise": -0.705}, "bad", "falls with noise, rank correlation −0.705"),
            ({"r_auroc": 0.46}, "bad", "R-AUROC 0.460"),
        ],
    )
    def test_each_finding(self, run, metrics, status, text):
        run.results["uncertainty"]["metrics"] |= metrics
        verdict = judge_uncertainty(run)
        assert verdict.status == verdict.findings[0].status == status  # the worst comes first
        assert any(finding.status == status and text in finding.text for finding in verdict.findings)

    def test_the_wrong_way_is_the_first_thing_on_the_page(self, run):
        assert "wrong way" not in render([run])
        run.results["uncertainty"]["metrics"] |= {"spearman_noise": -0.8}
        assert lead([run]).startswith("The uncertainty points the wrong way")
        titles = re.findall(r'<p class="title">.*?</span>(.*?)</p>', render([run]))
        assert titles == ["The uncertainty points the wrong way", "Training looks healthy"]

    def test_nothing_measured_gives_no_verdict(self):
        assert judge_uncertainty(with_log([])) is None


class TestHeadlineCards:
    @pytest.mark.parametrize(
        ("key", "value", "start", "share"),
        [
            ("top1", 0.8, 0.0, 0.8),
            ("energy_skill", 0.004, 0.0, 0.004),
            ("spearman_blur", -0.275, 0.3625, 0.1375),  # zero is in the middle
        ],
    )
    def test_a_small_number_is_a_short_bar(self, key, value, start, share):
        (bar,) = card([Column(label="trained", metrics={key: value})], key, "title").bars
        assert (bar.start, bar.share) == pytest.approx((start, share))

    def test_without_a_natural_maximum_the_longest_bar_is_full(self):
        of = [Column(label="trained", metrics={"nll": 0.5}), Column(label="raw", metrics={"nll": 2.0}, trained=False)]
        assert [bar.share for bar in card(of, "nll", "title").bars] == [0.25, 1.0]
        assert card(of[:1], "nll", "title").bars == []


def test_time_is_images_over_rate():
    lines = [{"step": 10, "images_per_second": 100.0}, {"step": 30, "images_per_second": 50.0}]
    assert seconds(with_log(lines, training={"batch_size": 10})) == pytest.approx(10 * 10 / 100 + 10 * 20 / 50)


def test_calibration_reading_gives_interval_and_floor():
    text = reading({"ece": 0.04, "ece_low": 0.03, "ece_high": 0.05, "ece_floor": 0.012}, "ece")
    assert text.startswith("ECE 0.040, 95 % interval 0.030 to 0.050; a perfectly calibrated model would score 0.012")


class TestOutOfDistribution:
    def test_roc_agrees_with_scikit_learn(self):
        rng = np.random.default_rng(0)
        inside, outside = rng.normal(size=300).round(1), rng.normal(loc=1, size=200).round(1)  # rounded: many ties
        alarms, hits = roc(inside, outside)
        truth = np.r_[np.zeros(300), np.ones(200)]
        assert auc(alarms, hits) == pytest.approx(roc_auc_score(truth, np.r_[inside, outside]), abs=1e-12)
        assert (alarms[0], hits[0], alarms[-1], hits[-1]) == (0, 0, 1, 1)

    def test_a_set_is_compared_with_the_images_of_its_classes(self):
        arrays = {"in/s": np.arange(4.0), "out/o/s": np.ones(2), "in_mask/o": np.array([True, False, True, False])}
        inside, _ = raw(Run(path=Path("r"), name="r", arrays={"ood": arrays}), "o", "s")
        assert inside.tolist() == [0.0, 2.0]


class TestUncertainty:
    def test_one_that_does_not_help_is_called_so(self, run):
        assert "does not help here" not in render([run])
        curve = {"coverage": [0.1, 0.5, 1.0], "risk": [0.5, 0.4, 0.3]}
        run.part("uncertainty", "curves")["risk_coverage"] = curve
        text = "Error 40.0 % in the half with the lowest uncertainty, 30.0 % in all: the uncertainty does not help"
        assert text in render([run])

    def test_predictions_are_compared_with_observations(self, run):
        blocks = {
            block.title if hasattr(block, "title") else block.caption: block for block in uncertainty.blocks([run])
        }
        coverage, pit = blocks["Coverage of the predictions"], blocks["PIT of the predictions"]
        assert "83.7 % of the coordinates are within their 90 % intervals" in coverage.reading
        assert (
            "72.0 % of the whole embeddings are within their 90 % ellipsoids; at most 75.0 % could" in coverage.reading
        )
        assert [row[0].text for row in coverage.table.rows] == ["coordinates", "whole embeddings"]
        assert coverage.table.rows[1][5] == "72.0 %"  # 0.8 of 90 %
        assert [row[1] for row in pit.table.rows] == ["30.0 %", "20.0 %", "20.0 %", "30.0 %"]
        assert {"Uncertainty under smaller crops", "Uncertainty under noise"} <= blocks.keys()
        assert "−3.50 to −3.25, rank correlation 0.300" in blocks["Uncertainty under blur"].reading
        simpler = blocks["The uncertainty and simpler scores"]
        assert [row[0].text for row in simpler.rows] == ["the uncertainty", "kNN distance"]

    def test_parts_that_do_not_fit_are_left_out(self, run):
        curves = run.part("uncertainty", "curves")
        curves |= {"coverage": {"nominal": [0.5], "coordinates": []}, "pit": {"edges": [0, 1]}}
        curves |= {"severity": {"crop": None}, "risk_coverage": {"coverage": [1.0]}}
        assert [type(block).__name__ for block in uncertainty.blocks([run])] == [
            "Figure",
            "Table",
        ]  # outcomes, simpler scores

    def test_risk_references_of_a_known_case(self):
        found = references({"coverage": np.array([0.5, 0.8, 1.0]), "risk": np.array([0.1, 0.2, 0.4])})
        assert found["optimal"].tolist() == pytest.approx([0.0, 0.25, 0.4])  # 60 % right: the first 0.6 cost nothing
        assert found["random"].tolist() == pytest.approx([0.4, 0.4, 0.4])

    def test_the_histogram_of_outcomes_gives_its_auroc(self, run):
        arrays = run.arrays["uncertainty"]
        expected = roc_auc_score(~np.asarray(arrays["correct"]).astype(bool), arrays["uncertainty"])
        assert f"AUROC {number(expected)}: " in split_figure(run).reading
