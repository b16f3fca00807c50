"""RESULTS.md and the tables of README.md and docs/ are what benchmarks/results.py makes of the committed files."""

import json
import math
import re
import shutil
import sys
from pathlib import Path

import matplotlib as mpl
import pytest

from prosmin.errors import ProsminError

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # scripts, not a package

import evidence  # noqa: E402
import measures  # noqa: E402
import results  # noqa: E402

RUN = f"{evidence.RESNET}-prosmin-100"
FILES = measures.Results(results.RESULTS)


@pytest.fixture(scope="module")
def built():
    return results.build()


@pytest.fixture
def folder(tmp_path):
    """A folder with one run, to be changed."""
    shutil.copy(results.RESULTS / f"{RUN}-s0.json", tmp_path)
    return tmp_path


def change(folder, stem=f"{RUN}-s0", **fields):
    document = json.loads((folder / f"{RUN}-s0.json").read_text()) | fields
    (folder / f"{stem}.json").write_text(json.dumps(document))
    return measures.Results(folder)


def metric_of(document, protocol, name, value):
    document["results"][protocol]["metrics"][name] = value
    return document["results"]


def test_the_committed_pages_are_what_the_committed_files_give(built):
    for name in ("RESULTS.md", *results.PAGES):
        assert built[name].decode() == (ROOT / name).read_text("utf-8"), f"{name}: run make results"
    assert results.build() == built  # the same bytes again, the figure's too
    assert [path.name for path in (ROOT / "docs/figures").glob("results-*.svg")] == [Path(results.LAM_FIGURE).name]
    if f"matplotlib=={mpl.__version__}\n" in (ROOT / "constraints.txt").read_text():  # another draws other bytes
        assert built[results.LAM_FIGURE] == (ROOT / results.LAM_FIGURE).read_bytes(), "run make results"


def test_the_page_is_short_and_its_files_exist(built):
    page = built["RESULTS.md"].decode()
    assert len(page.split()) <= 3200
    cited = re.findall(r"^Files: (.*)\.$", page, re.MULTILINE)
    assert len(cited) == len(results.TABLES)
    for name in re.findall(r"`([^`]+)`", " ".join(cited)):
        start, _, rest = name.partition("{")
        ends, _, tail = rest.partition("}")
        for each in ends.split(","):
            assert (results.RESULTS / f"{start}{each}{tail}").exists(), name


def test_numbers_in_the_prose_come_from_files():
    """A measured number with a decimal stands in a placeholder; settings of runs are code or whole numbers."""
    settings = r"lam 0\.5|0\.5 times|at 0\.45|proper 0\.5|0\.5 is proper"
    prose = re.sub(rf"\{{\{{.*?\}}\}}|`[^`]*`|{settings}", "", results.TEMPLATE.read_text())
    assert not re.findall(r"\d+\.\d+", prose)


def test_names_of_methods_follow_the_configuration():
    def name(run):
        return measures.row_name(FILES.run(run)[0])

    assert name(RUN) == "ProSMIN + identification"
    assert name(f"{evidence.RESNET}-lam-0.50") == "ProSMIN, 25 epochs"
    assert name(f"{evidence.VIT}-deterministic-100") == "deterministic twin"
    assert name(f"{evidence.VIT}-ibot-100-first") == "iBOT, before tuning"
    assert name(f"{RUN}-same-view") == "ProSMIN + identification, same-view pairs"
    assert name(f"{RUN}-first") == "ProSMIN, before tuning, same-view pairs, earlier code"
    assert name(f"{evidence.VIT}-dino-100-first") == "DINO, before tuning, earlier code"


def test_methods_share_what_the_page_says():
    for recipe in results.NETWORKS:
        shared = {
            json.dumps([tree["backbone"], tree["training"]["epochs"], tree["training"]["batch_size"]])
            for name in results.TUNED
            if name.startswith(f"{recipe}-")
            for tree in [FILES.run(name)[0]["configuration"]]
        }
        assert len(shared) == 1


def test_planned_runs_that_the_page_calls_missing_have_no_file():
    absent = {stage: [run.name for run in runs if not list(results.RESULTS.glob(f"{run.name}-s*.json"))]
              for stage, runs in evidence.STAGES.items()}  # fmt: skip
    assert {stage: len(names) for stage, names in absent.items()} == {
        "first": 2, "table": 0, "seeds": 15, "whitened": 4, "headline": 4, "lam": 0, "axes": 18,
    }  # fmt: skip
    assert all("-deterministic-" in name for name in absent["first"])


def test_the_summary_has_a_cell_for_everything(built):
    page = built["RESULTS.md"].decode()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    assert all(cell.strip() for row in rows for cell in row)
    line = next(row for row in rows if row[:2] == ["ResNet-18", "ProSMIN + identification"])
    metrics = json.loads((results.RESULTS / f"{RUN}-s0.json").read_text())["results"]
    assert line[2] == f"{100 * metrics['knn']['metrics']['top1']:.1f}±0.6"
    assert line[7].startswith(f"{100 * metrics['uncertainty']['metrics']['r_auroc']:.1f}±")
    assert line[8].endswith(" distance")


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ("{{ nothing-s0 knn.top1 % }}", "nothing-s0.json"),
        (f"{{{{ {RUN}-s0 knn.top5 % }}}}", "knn.top5"),
        (f"{{{{ {RUN}-s0 health.verdict % }}}}", "health.verdict"),
        ("{{ tuning-cifar10-h200:nobody knn20_top1 % }}", "nobody"),
        ("<!-- table: prices -->", "prices"),
    ],
)
def test_what_does_not_exist_is_refused_by_name(template, named):
    with pytest.raises(ProsminError, match=re.escape(named)):
        results.fill(template, FILES)


def test_a_placeholder_is_filled():
    assert results.fill(f"kNN {{{{ {RUN}-s0 knn.top1 % }}}} %", FILES) == "kNN 89.2 %"
    assert results.fill(f"{{{{ {RUN}-s0 health.path.0.step .0f }}}}", FILES) == "100"


def test_a_missing_run_is_named(folder):
    with pytest.raises(ProsminError, match=r"cifar10-resnet18-deterministic-100-s0\.json"):
        results.summary(measures.Results(folder))


def test_a_file_that_is_not_the_run_of_its_name_is_refused(folder):
    with pytest.raises(ProsminError, match=r"-s0\.json contains other, seed 0"):
        change(folder, name="other").run(RUN)


def test_a_run_on_fewer_images_is_refused(folder):
    document = json.loads((folder / f"{RUN}-s0.json").read_text())
    with pytest.raises(ProsminError, match="10000 test images"):
        change(folder, results=metric_of(document, "knn", "top1", 0.81234)).run(RUN)


def test_seeds_of_different_settings_are_refused(folder):
    for other in ({"code": 7}, {"epochs": 100}):
        files = change(folder, f"{RUN}-s1", seed=1, **other)
        if "code" in other:
            with pytest.raises(ProsminError, match=r"-s1\.json and .*-s0\.json"):
                files.run(RUN)
    assert [document["seed"] for document in files.run(RUN)] == [0, 1]


def test_a_number_the_file_lacks_is_a_dash(folder):
    document = json.loads((folder / f"{RUN}-s0.json").read_text())
    seeds = change(folder, results=metric_of(document, "linear", "top1", math.nan)).run(RUN)
    assert measures.LINEAR.cell(seeds) == measures.NONE
    assert measures.LINEAR.difference(seeds, seeds) == measures.NONE
    assert measures.KNN.cell(seeds) == "89.2±0.6"


def test_intervals_are_the_textbooks():
    assert measures.of_share({}, 0.8) == pytest.approx(1.96 * math.sqrt(0.8 * 0.2 / 10_000), rel=1e-3)
    # Hanley and McNeil (1982): an area of 0.893 of 51 and 58 images has a standard error of about 0.032.
    assert measures.of_auroc({}, 0.893, 51, 58) == pytest.approx(1.96 * 0.0323, rel=0.02)
    assert measures.of_auroc({}, 1.0, 0, 10) is None
    assert measures.mean_and_half([0.5], [0.1]) == (0.5, 0.1)
    assert measures.mean_and_half([0.5], []) == (0.5, None)
    mean, half = measures.mean_and_half([0.4, 0.5, 0.6], [0.03, 0.03, 0.03])
    assert mean == pytest.approx(0.5)
    assert half == pytest.approx(math.hypot(4.3027 * 0.1 / math.sqrt(3), 0.03), rel=1e-4)


@pytest.mark.parametrize(("other", "told"), [(0.5, "**+10.0±5.0**"), (0.56, "+4.0±5.0"), (0.7, "**-10.0±5.0**")])
def test_a_difference_is_bold_where_its_interval_excludes_zero(other, told):
    metric = measures.Metric("", "x", half=lambda document, value: 0.05 / math.sqrt(2))
    assert metric.difference([{"x": 0.6}], [{"x": other}]) == told
    assert measures.Metric("", "x", ".2f").difference([{"x": 0.6}], [{"x": other}]) == f"{0.6 - other:+.2f}"
