"""The report: what it shows, what it says when parts are missing or damaged, and that it stays harmless."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import auc, roc_auc_score

from fake_run import NASTY, STEPS, fake_run
from prosmin.cli import main
from prosmin.errors import ProsminError, UsageError
from prosmin.evaluation.metrics.table import METRICS, metric, number, percent
from prosmin.report import write_report
from prosmin.report.drawing.axes import nice_step, round_axis, share_axis, tight_axis
from prosmin.report.drawing.charts import Curve, common_edges, line_chart
from prosmin.report.drawing.svg import Words
from prosmin.report.metrics import apart, best, duration
from prosmin.report.runs import Run, distinct_names, read_run
from prosmin.report.sections.calibration import reading
from prosmin.report.sections.forecasts import forecast_blocks
from prosmin.report.sections.ood import raw, roc
from prosmin.report.sections.summary import seconds
from prosmin.report.sections.training import judge
from prosmin.report.sections.uncertainty import references, split_figure, wrong_way
from prosmin.training.health import COLLAPSED_RANK, COLLAPSED_STD, is_collapsed

SECTIONS = [
    "headline", "run", "training", "results", "paper", "calibration", "ood", "corruption", "uncertainty", "map",
    "attention", "pictures",
]  # fmt: skip
WORDS = Words(id="w", title="A title", desc="A description", x="step", y="value")


class Page(HTMLParser):
    """What a test asks of a page: tags with their attributes, and the text that is not script or style."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def page_of(runs: list[Path], tmp_path: Path) -> Page:
    return Page(write_report(runs, tmp_path / "page.html").read_text())


def with_log(lines: list[dict[str, float]], **config) -> Run:
    return Run(path=Path("r"), name="r", config=config, log=lines)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_run(tmp_path_factory.mktemp("runs") / "demo")


def test_page_has_every_section_and_figure(whole, tmp_path):
    page = page_of([whole], tmp_path)
    assert [s["id"] for s in page.all("section")] == SECTIONS
    figures = {f["id"] for f in page.all("figure")}
    expected = {
        "figure-loss",
        "figure-knn_top1",
        "figure-scale_mean",
        "figure-lr",
        "figure-roc-0",
        "figure-risk",
    }
    expected |= {"figure-split-0", "gallery-0-certain", "gallery-0-uncertain", "gallery-0-ood"}
    expected |= {f"figure-corruption-0-{what}" for what in ("error", "nll", "ece")}
    expected |= {f"figure-severity-{what}" for what in ("error", "nll", "ece")}
    expected |= {"figure-map-0", "figure-attention-0", "figure-coverage", "figure-pit-0"}
    expected |= {f"figure-worse-{kind}" for kind in ("crop", "blur", "noise")}
    assert expected <= figures
    assert sum(f.startswith("figure-reliability") for f in figures) == 6  # two classifiers twice, two other sets
    assert "80.0 %, 25.3 points better than the untrained encoder" in page.text
    assert "Healthy" in page.text


def test_every_figure_has_its_numbers_and_its_command(whole, tmp_path):
    html = write_report([whole], tmp_path / "page.html").read_text()
    figures = re.findall(r"<figure .*?</figure>", html, flags=re.S)
    assert len(figures) > 15
    for figure in figures:
        assert "<details" in figure
        assert figure.count("<tr>") > 1
        assert "<code>prosmin " in figure


def test_every_table_stands_in_a_scroller_that_can_tell_it_is_cut(whole, tmp_path):
    html = write_report([whole], tmp_path / "page.html").read_text()
    tables = re.findall(r'<div class="scroller" role="region" tabindex="0" aria-label="[^"]+">\s*<table', html)
    assert len(tables) == html.count("<table") == html.count('<p class="hint" hidden>') > 30


def test_charts_and_pictures_have_words(whole, tmp_path):
    html = write_report([whole], tmp_path / "page.html").read_text()
    page = Page(html)
    drawings = re.findall(r'<svg [^>]*role="img".*?</svg>', html, flags=re.S)
    assert drawings
    for drawing in drawings:
        assert re.search(r"<title [^>]*>[^<]+</title><desc [^>]*>[^<]+</desc>", drawing)
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    pictures = [a for a in page.all("img") if "src" in a]
    assert len(pictures) == 36 + 3 * 4  # the galleries; of three images the view, the mean and two heads
    assert all(a["alt"] and (a["src"] or "").startswith("data:image/") for a in pictures)


def test_page_is_self_contained(whole, tmp_path):
    html = write_report([whole], tmp_path / "page.html").read_text()
    page = Page(html)
    links = [a[key] or "" for _, a in page.tags for key in ("src", "href") if key in a]
    assert links
    assert all(link.startswith(("data:", "#")) for link in links)
    assert "url(" not in html
    assert "@import" not in html
    assert not any(key == "style" or key.startswith("on") for _, a in page.tags for key in a)


def test_names_from_data_stay_text(tmp_path):
    run = fake_run(tmp_path / "<b>run", nasty=True)
    page = page_of([run], tmp_path)
    assert [script.get("type") for script in page.all("script")] == ["application/json", "application/json", None]
    assert not page.all("b")
    assert NASTY in page.text


def test_several_runs_stand_side_by_side(whole, tmp_path):
    other = fake_run(tmp_path / "dino", seed=1, skill=0.5, changes={"method": {"name": "dino"}})
    page = page_of([whole, other], tmp_path)
    assert "2 runs side by side" in page.text
    assert "DINO" in page.text
    assert "method.name" in page.text  # the field in which they differ
    assert "untrained encoder, " not in page.text  # equal baselines are said once
    result = json.loads((other / "results" / "knn.json").read_text())
    result["baselines"]["untrained"]["top1"] = 0.6
    (other / "results" / "knn.json").write_text(json.dumps(result))
    assert "untrained encoder, dino" in page_of([whole, other], tmp_path).text


def test_many_differences_are_folded(whole, tmp_path):
    few = fake_run(tmp_path / "few", changes={"method": {"name": "dino"}})
    many = fake_run(tmp_path / "many", changes={"loss": {f"field_{i}": i for i in range(20)}})
    assert "fields that differ" not in page_of([whole, few], tmp_path).text
    assert re.search(r"The \d+ fields that differ", page_of([whole, many], tmp_path).text)


def test_missing_parts_name_their_command(whole, tmp_path):
    run = tmp_path / "a run"
    shutil.copytree(whole, run)
    (run / "results" / "ood.json").unlink()
    text = page_of([run], tmp_path).text
    assert f"prosmin evaluate '{run}' --protocols ood" in text
    shutil.rmtree(run / "results")
    assert f"prosmin evaluate '{run}' --protocols knn,linear,ood,uncertainty" in page_of([run], tmp_path).text
    (run / "metrics.jsonl").unlink()
    assert "has no metrics.jsonl" in page_of([run], tmp_path).text


def test_damaged_parts_are_named_and_left_out(whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 265, "lo')
    (run / "results" / "linear.json").write_text("{")
    (run / "results" / "ood.npz").write_bytes(b"PK\x03\x04broken")
    (run / "config.yaml").write_text("a: [")
    text = page_of([run], tmp_path).text
    for said in (
        "1 of 53 lines of metrics.jsonl",
        "results/linear.json cannot",
        "ood.npz cannot",
        "config.yaml cannot",
    ):
        assert said in text


def test_numbers_that_are_not_finite_do_not_break_the_page(whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    lines[10] = re.sub(r'"loss": [^,]+', '"loss": NaN', lines[10])
    (run / "metrics.jsonl").write_text("\n".join(lines))
    result = json.loads((run / "results" / "uncertainty.json").read_text())
    result["metrics"]["r_auroc"] = float("nan")
    (run / "results" / "uncertainty.json").write_text(json.dumps(result))
    page = page_of([run], tmp_path)
    assert "stopped being finite at step 55" in page.text
    assert "nan" not in page.text.lower()


def test_numbers_of_different_pictures_are_told_apart(whole, tmp_path):
    assert "different images" not in page_of([whole], tmp_path).text
    run = tmp_path / "mixed"
    shutil.copytree(whole, run)
    result = json.loads((run / "results" / "knn.json").read_text())
    result["data"] = {"train": "folder:mine/train", "test": "folder:mine/test"}
    (run / "results" / "knn.json").write_text(json.dumps(result))
    page = page_of([run], tmp_path)
    assert page.text.count("mixed: its protocols were measured on different images") == 2  # on top, and at the table
    assert "knn on folder:mine/test, train folder:mine/train" in page.text
    assert "kNN on folder:mine/test, train folder:mine/train" in page.text
    assert "Linear probe on photos@test, train photos@train" in page.text
    both = page_of([whole, run], tmp_path)
    assert (
        "kNN on photos@test, train photos@train (demo); folder:mine/test, train folder:mine/train (mixed)" in both.text
    )


def test_numbers_of_different_encoders_are_told_apart(whole, tmp_path):
    assert "different encoders" not in page_of([whole], tmp_path).text
    run = tmp_path / "mixed"
    shutil.copytree(whole, run)
    path = run / "results" / "knn.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"checkpoint": {"step": 100, "hash": "0123456789abcdef"}})
    )
    page = page_of([run], tmp_path)
    assert page.text.count("mixed: its protocols were measured by different encoders") == 2  # on top, and at the table
    assert "knn by the encoder 0123456789abcdef of step 100" in page.text
    assert f"by the encoder 5d41402abc4b2a76 of step {STEPS}" in page.text
    assert "different images" not in page.text
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "checkpoint"}))
    assert "different encoders" not in page_of([run], tmp_path).text  # a result that does not say


def test_intervals_of_patches_that_overlap_are_said_to_be_too_narrow(whole, tmp_path):
    said = "their intervals are too narrow"
    assert page_of([whole], tmp_path).text.count(said) == 3  # at the results, the paper's tables and the calibration
    run = tmp_path / "mine"
    shutil.copytree(whole, run)
    for path in (run / "results").glob("*.json"):
        data = {"train": "folder:photos@train", "test": "folder:photos@test"}
        path.write_text(json.dumps(json.loads(path.read_text()) | {"data": data}))
    assert said in page_of([run], tmp_path).text  # it was fine-tuned on them
    (run / "results" / "transfer.json").unlink()
    assert said not in page_of([run], tmp_path).text
    assert said in page_of([run, whole], tmp_path).text


def test_wrong_use_is_one_sentence(whole, tmp_path):
    with pytest.raises(UsageError, match="no run folder"):
        write_report([], tmp_path / "x.html")
    with pytest.raises(ProsminError, match="no run folder"):
        write_report([tmp_path / "absent"], tmp_path / "x.html")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ProsminError, match=r"holds some\. Give one of them, or several: .*demo"):
        write_report([whole.parent], tmp_path / "x.html")
    with pytest.raises(ProsminError, match="holds no run"):
        write_report([tmp_path / "empty"], tmp_path / "x.html")
    with pytest.raises(ProsminError, match="is a folder"):
        write_report([whole], tmp_path)
    for name in ("x.pdf", "x", "x.html.gz"):
        with pytest.raises(
            UsageError, match=r"a page of HTML: allowed are \*\.html and \*\.htm, such as --out .*x.*\.html"
        ):
            write_report([whole], tmp_path / name)
    with pytest.raises(UsageError, match=rf"The report got {whole.parent}/x/\.\./demo more than once; name each run"):
        write_report([whole, whole.parent / "x/../demo"], tmp_path / "x.html")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
    assert write_report([whole], tmp_path / "X.HTM").exists()


def test_the_help_says_where_the_page_goes(whole, tmp_path, capsys, monkeypatch):
    with pytest.raises(SystemExit):
        main(["report", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "default: RUN/report.html; of several, ./report.html" in said
    monkeypatch.chdir(tmp_path)
    shutil.copytree(whole, "one")
    shutil.copytree(whole, "two")
    assert main(["report", "one"]) == 0
    assert main(["report", "one", "two"]) == 0
    assert capsys.readouterr().out == "wrote one/report.html\nwrote report.html\n"


def test_page_is_replaced_whole_and_is_reproducible(whole, tmp_path, monkeypatch):
    out = tmp_path / "deep" / "page.html"
    first = write_report([whole], out).read_bytes()
    assert write_report([whole], out).read_bytes() == first

    def fail(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(ProsminError, match="No space left"):
        write_report([whole], out)
    assert out.read_bytes() == first
    assert [p.name for p in out.parent.iterdir()] == ["page.html"]


def test_log_keeps_the_last_line_of_a_step(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 2, "loss": 5}\n{"step": 1, "loss": 4}\n{"step": 2, "loss": 3}\n')
    steps, losses = read_run(tmp_path, "r").column("loss")
    assert steps.tolist() == [1, 2]
    assert losses.tolist() == [4, 3]


def test_names_tell_runs_apart():
    assert distinct_names([Path("/a/x"), Path("/a/y")]) == ["x", "y"]
    assert distinct_names([Path("/a/x"), Path("/b/x")]) == ["a/x", "b/x"]


def test_time_is_pictures_over_rate():
    lines = [{"step": 10, "images_per_second": 100.0}, {"step": 30, "images_per_second": 50.0}]
    assert seconds(with_log(lines, training={"batch_size": 10})) == pytest.approx(10 * 10 / 100 + 10 * 20 / 50)


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({}, "good", "No collapse"),
        ({"target_std": 0.0001}, "bad", "The targets collapsed"),
        ({"target_std": 0.015}, "watch", "drawing together"),
        ({"feature_rank": 1.2}, "bad", "they have collapsed"),
        ({"scale_mean": 2.0}, "bad", "ran away"),
        ({"scale_mean": 1e-6}, "watch", "all but vanished"),
        ({"knn_top1": 0.3}, "watch", "below its best"),
        ({"loss": float("nan")}, "bad", "stopped being finite"),
        ({"loss": 1e9}, "bad", "it diverged"),
        ({"epoch": 12.0}, "watch", "not finished"),
    ],
)
def test_verdict(changes, status, said):
    start = {
        "step": 1,
        "epoch": 0.1,
        "loss": 0.6,
        "target_std": 0.06,
        "feature_rank": 40,
        "scale_mean": 0.05,
        "knn_top1": 0.5,
    }
    end = start | {"step": 100, "epoch": 20.0, "loss": 0.4} | changes
    verdict = judge(with_log([start, end], training={"epochs": 20, "max_steps": None}))
    assert verdict.status == status
    assert any(said in finding.text for finding in verdict.findings)


@pytest.mark.parametrize(("name", "limit"), [("target_std", COLLAPSED_STD), ("feature_rank", COLLAPSED_RANK)])
def test_a_collapse_is_one_exactly_where_training_calls_it_one(name, limit):
    for value in (0.99 * limit, 1.01 * limit):
        line = {"step": 1, "loss": 0.5, name: value}  # a single line: nothing has fallen
        assert (judge(with_log([line])).status == "bad") == is_collapsed(line) == (value < limit)


def test_empty_log_gives_no_verdict():
    assert judge(with_log([])).status == "unknown"


def test_rounding():
    assert [number(v) for v in (1234.6, 12.34, 1.234, 0.1234, 0.00523, 0.000023, -0.5, 0, 840)] == [
        "1,235", "12.3", "1.23", "0.123", "0.0052", "2.3e−5", "−0.500", "0", "840",
    ]  # fmt: skip
    assert number(float("nan")) == "–"
    assert percent(0.8214) == "82.1 %"
    assert [duration(s) for s in (42, 210, 5 * 3600 + 120, 3 * 86400)] == [
        "42 s",
        "4 min",
        "5 h 02 min",
        "3 d 0 h",
    ]


def test_close_numbers_are_told_apart():
    assert apart([-2.9741, -2.9712]) == ["−2.9741", "−2.9712"]
    assert apart([1.2, 104.0, float("nan")]) == ["1.20", "104.00", "–"]
    assert apart([3.0]) == ["3.00"]


def test_best_counts_what_rounds_alike():
    assert best([0.80001, 0.80002, 0.5, None], METRICS["top1"]) == [True, True, False, False]
    assert best([0.3, 0.1, 0.2], METRICS["nll"]) == [False, True, False]
    assert best([0.1, 0.1], METRICS["nll"]) == [False, False]
    assert best([0.1, 0.2], metric("of_our_own")) == [False, False]


def test_calibration_reading_gives_interval_and_floor():
    said = reading({"ece": 0.04, "ece_low": 0.03, "ece_high": 0.05, "ece_floor": 0.012}, "ece")
    assert said.startswith("ECE 0.040, 95 % interval 0.030 to 0.050; a perfectly calibrated model would score 0.012")


@pytest.mark.parametrize(("span", "count", "step"), [(1.0, 4, 0.5), (10, 5, 2), (0.07, 4, 0.02), (260, 5, 100)])
def test_steps_are_round(span, count, step):
    assert nice_step(span, count) == pytest.approx(step)


@pytest.mark.parametrize("values", [[0.99, 0.9915], [0.99, 0.9903], [0.2, 0.9]])
def test_no_two_ticks_of_shares_read_the_same(values):
    axis = share_axis(values)
    labels = [axis.label(tick) for tick in axis.ticks]
    assert len(set(labels)) == len(labels) > 1
    assert [float(label.removesuffix(" %")) for label in labels] == pytest.approx([100 * tick for tick in axis.ticks])


def test_axes():
    axis = round_axis([0.34, 0.62])
    assert (axis.low, axis.high) == (pytest.approx(0.3), pytest.approx(0.7))
    assert [axis.label(t) for t in axis.ticks] == ["0.3", "0.4", "0.5", "0.6", "0.7"]
    wide = round_axis([0.002, 3.0], log=True)
    assert wide.log
    assert wide.place([0.001, 0.1, 10.0]).tolist() == pytest.approx([0.0, 0.5, 1.0])
    for constant in (0.0, 7.0, -3.0):  # one value must still give an axis it lies on
        assert 0 < round_axis([constant]).place([constant])[0] < 1
        assert 0 < tight_axis([constant]).place([constant])[0] < 1
    assert round_axis([]).ticks == pytest.approx([0, 0.5, 1])  # nothing to show is no reason to fail


def test_a_long_curve_is_thinned_without_losing_its_spike():
    y = np.zeros(50_000)
    y[31_417] = 9.0
    drawn = line_chart(WORDS, [Curve(label="a", x=np.arange(50_000.0), y=y)])
    assert len(drawn.svg) < 12_000
    assert ": 9" in drawn.readout


def test_a_gap_breaks_the_line():
    y = np.array([1.0, 2.0, np.nan, 3.0, 4.0])
    drawn = line_chart(WORDS, [Curve(label="a", x=np.arange(5.0), y=y)])
    path = re.search(r'<path d="([^"]+)" class="line s0"', drawn.svg)
    assert path
    assert path.group(1).count("M") == 2


def test_roc_agrees_with_scikit_learn():
    rng = np.random.default_rng(0)
    inside, outside = (
        rng.normal(size=300).round(1),
        rng.normal(loc=1, size=200).round(1),
    )  # rounded: many ties
    alarms, hits = roc(inside, outside)
    truth = np.r_[np.zeros(300), np.ones(200)]
    assert auc(alarms, hits) == pytest.approx(roc_auc_score(truth, np.r_[inside, outside]), abs=1e-12)
    assert (alarms[0], hits[0], alarms[-1], hits[-1]) == (0, 0, 1, 1)


def test_an_uncertainty_that_does_not_help_is_called_so(whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    assert "does not help here" not in page_of([run], tmp_path).text
    result = json.loads((run / "results" / "uncertainty.json").read_text())
    result["curves"]["risk_coverage"] = {"coverage": [0.1, 0.5, 1.0], "risk": [0.5, 0.4, 0.3]}
    (run / "results" / "uncertainty.json").write_text(json.dumps(result))
    assert (
        "Error 40.0 % among the surest half, 30.0 % among all: the uncertainty does not"
        in page_of([run], tmp_path).text
    )


def test_forecasts_are_held_to_what_they_promise(whole):
    run = read_run(whole, "demo")
    coverage, pit, *worse, rivals = forecast_blocks([run])
    assert "83.7 % of the coordinates lie within intervals meant for 90 %" in coverage.reading
    assert "All together, 72.0 % of the embeddings do; as their errors go together, 75.0 % could." in coverage.reading
    assert [row[0].text for row in coverage.table.rows] == ["coordinates", "all together"]
    assert coverage.table.rows[1][5] == "72.0 %"  # 0.8 of 90 %
    assert [row[1] for row in pit.table.rows] == ["30.0 %", "20.0 %", "20.0 %", "30.0 %"]
    assert [figure.title for figure in worse] == [
        "Uncertainty under smaller crops",
        "Uncertainty under blur",
        "Uncertainty under noise",
    ]
    assert "−3.50 to −3.25, rank correlation 0.300" in worse[1].reading
    assert [row[0].text for row in rivals.rows] == ["the uncertainty", "kNN distance"]
    curves = run.part("uncertainty", "curves")
    curves |= {"coverage": {"nominal": [0.5], "coordinates": []}, "pit": {"edges": [0, 1]}, "severity": {"crop": None}}
    assert forecast_blocks([run]) == [rivals]  # parts that do not fit are left out


def test_a_set_is_held_against_the_pictures_of_its_classes():
    arrays = {"in/s": np.arange(4.0), "out/o/s": np.ones(2), "in_mask/o": np.array([True, False, True, False])}
    inside, _ = raw(Run(path=Path("r"), name="r", arrays={"ood": arrays}), "o", "s")
    assert inside.tolist() == [0.0, 2.0]


def test_risk_references_of_a_known_case():
    found = references({"coverage": np.array([0.5, 0.8, 1.0]), "risk": np.array([0.1, 0.2, 0.4])})
    assert found["optimal"].tolist() == pytest.approx([0.0, 0.25, 0.4])  # 60 % right: the first 0.6 cost nothing
    assert found["random"].tolist() == pytest.approx([0.4, 0.4, 0.4])


def test_one_far_score_does_not_flatten_a_histogram():
    scores = np.r_[np.linspace(0, 1, 1000), 1e6]
    assert common_edges([scores])[-1] < 2
    assert len(common_edges([np.array([]), np.full(5, 3.0)])) == 33


def test_report_of_ten_thousand_pictures_is_small(tmp_path):
    """Four of them side by side stay under 15 MB; benchmarks/report.py has the seconds."""
    run = fake_run(tmp_path / "run", evaluated=10_000, shown=1500, side=64)
    lines = [{"step": step, "loss": 1 / step, "epoch": step / 100} for step in range(1, 20_001)]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert write_report([run], tmp_path / "page.html").stat().st_size < 15_000_000 / 4


def test_fake_run_is_what_the_tests_say(whole):
    assert read_run(whole, "demo").log[-1]["step"] == STEPS


def test_the_histogram_of_outcomes_tells_the_auroc_of_what_it_shows(tmp_path):
    run = read_run(fake_run(tmp_path / "run"), "run")
    arrays = run.arrays["uncertainty"]
    told = roc_auc_score(~np.asarray(arrays["correct"]).astype(bool), arrays["uncertainty"])
    assert f"AUROC {number(told)}: " in split_figure(run, 0, named=False).reading


def test_an_uncertainty_that_points_the_wrong_way_is_said_to(tmp_path):
    run = read_run(fake_run(tmp_path / "run"), "run")
    assert wrong_way(run, named=False) == ""
    run.results["uncertainty"]["metrics"] |= {"spearman_noise": -0.8, "spearman_blur": -0.1}
    assert wrong_way(run, named=False).startswith("It points the wrong way for noise: the worse the image")
    assert wrong_way(run, named=True).startswith("run: it points")
