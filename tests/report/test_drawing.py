"""Numbers as text, axes and charts."""

import re

import numpy as np
import pytest

from fake_run import NASTY
from prosmin.evaluation.metrics.table import METRICS, metric, number, percent
from prosmin.report.drawing.axes import nice_step, round_axis, share_axis, tight_axis
from prosmin.report.drawing.charts import APART, FAINT, STRONG, Curve, common_edges, heat_chart, line_chart, spaced
from prosmin.report.drawing.svg import Words
from prosmin.report.sections.configuration import duration
from prosmin.report.tables import apart, best

WORDS = Words(id="w", title="A title", desc="A description", x="step", y="value")


class TestNumbers:
    def test_rounding(self):
        assert [number(v) for v in (1234.6, 12.34, 1.234, 0.1234, 0.00523, 0.000023, -0.5, 0, 840)] == [
            "1,235", "12.3", "1.23", "0.123", "0.0052", "2.3e−5", "−0.500", "0", "840",
        ]  # fmt: skip
        assert number(float("nan")) == "–"
        assert percent(0.8214) == "82.1 %"
        spans = [42, 210, 5 * 3600 + 120, 3 * 86400]
        assert [duration(s) for s in spans] == ["42 s", "4 min", "5 h 02 min", "3 d 0 h"]

    def test_close_numbers_differ_as_text(self):
        assert apart([-2.9741, -2.9712]) == ["−2.9741", "−2.9712"]
        assert apart([1.2, 104.0, float("nan")]) == ["1.20", "104.00", "–"]
        assert apart([3.0]) == ["3.00"]

    def test_best_includes_what_rounds_to_the_same(self):
        assert best([0.80001, 0.80002, 0.5, None], METRICS["top1"]) == [True, True, False, False]
        assert best([0.3, 0.1, 0.2], METRICS["nll"]) == [False, True, False]
        assert best([0.1, 0.1], METRICS["nll"]) == [False, False]
        assert best([0.1, 0.2], metric("of_our_own")) == [False, False]


class TestAxes:
    @pytest.mark.parametrize(("span", "count", "step"), [(1.0, 4, 0.5), (10, 5, 2), (0.07, 4, 0.02), (260, 5, 100)])
    def test_steps_are_round(self, span, count, step):
        assert nice_step(span, count) == pytest.approx(step)

    @pytest.mark.parametrize("values", [[0.99, 0.9915], [0.99, 0.9903], [0.2, 0.9]])
    def test_no_two_ticks_have_the_same_text(self, values):
        axis = share_axis(values)
        labels = [axis.label(tick) for tick in axis.ticks]
        assert len(set(labels)) == len(labels) > 1
        numbers = [float(label.removesuffix(" %")) for label in labels]
        assert numbers == pytest.approx([100 * tick for tick in axis.ticks])

    def test_ranges(self):
        axis = round_axis([0.34, 0.62])
        assert (axis.low, axis.high) == (pytest.approx(0.3), pytest.approx(0.7))
        assert [axis.label(t) for t in axis.ticks] == ["0.3", "0.4", "0.5", "0.6", "0.7"]
        wide = round_axis([0.002, 3.0], log=True)
        assert wide.log
        assert wide.place([0.001, 0.1, 10.0]).tolist() == pytest.approx([0.0, 0.5, 1.0])
        for constant in (0.0, 7.0, -3.0):  # one value is within its axis
            assert 0 < round_axis([constant]).place([constant])[0] < 1
            assert 0 < tight_axis([constant]).place([constant])[0] < 1
        assert round_axis([]).ticks == pytest.approx([0, 0.5, 1])  # an empty axis is not an error


class TestCharts:
    def test_a_long_curve_keeps_its_spike(self):
        y = np.zeros(50_000)
        y[31_417] = 9.0
        drawn = line_chart(WORDS, [Curve(label="a", x=np.arange(50_000.0), y=y)])
        assert len(drawn.svg) < 12_000
        assert ": 9" in drawn.readout

    def test_a_gap_breaks_the_line(self):
        y = np.array([1.0, 2.0, np.nan, 3.0, 4.0])
        drawn = line_chart(WORDS, [Curve(label="a", x=np.arange(5.0), y=y)])
        assert re.search(r'<path d="([^"]+)" class="line s0"', drawn.svg).group(1).count("M") == 2

    def test_an_outlier_does_not_flatten_a_histogram(self):
        assert common_edges([np.r_[np.linspace(0, 1, 1000), 1e6]])[-1] < 2
        assert len(common_edges([np.array([]), np.full(5, 3.0)])) == 33

    def test_heat_grows_with_the_number(self):
        values = np.array([[0.1, 0.3], [0.5, np.nan]])
        drawn = heat_chart(WORDS, ["a", NASTY], ["1", "5"], values, write=lambda v: f"{v:.1f}", whole=("clean", 0.1))
        shades = [float(v) for v in re.findall(r'fill-opacity="([\d.]+)"', drawn.svg)]
        assert shades == pytest.approx([FAINT, FAINT, (FAINT + STRONG) / 2, STRONG], abs=1e-3)
        assert NASTY not in drawn.svg
        assert ">0.5</text>" in drawn.svg
        alone = heat_chart(WORDS, ["a"], ["1"], np.array([[0.4]]), write=str)
        assert 'fill-opacity="0.335"' in alone.svg

    def test_names_do_not_overlap(self):
        heights = np.sort(spaced(np.array([100.0, 101.0, 30.0, 178.0, 177.0])))
        assert (np.diff(heights) >= APART - 1e-9).all()
        assert heights[-1] <= 176
        assert spaced(np.array([50.0, 120.0])).tolist() == [50.0, 120.0]
        assert spaced(np.array([101.0, 100.0])).tolist() == [100.0 + APART, 100.0]
