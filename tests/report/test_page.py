"""The page: its sections, what it says about missing or damaged parts, and that no name in it can do harm."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fake_run import NASTY, STEPS, change_result, fake_run
from prosmin.cli import main
from prosmin.errors import ProsminError, UsageError
from prosmin.report import write_report
from prosmin.report.page import SECTIONS
from prosmin.report.runs import distinct_names, read_run


class Page(HTMLParser):
    """Tags with their attributes, and the text that is not script or style."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
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


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_run(tmp_path_factory.mktemp("runs") / "demo")


@pytest.fixture(scope="module")
def page(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Page:
    return page_of([whole], tmp_path_factory.mktemp("page"))


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


class TestWholeRun:
    def test_every_section_and_figure(self, page):
        assert [s["id"] for s in page.all("section")] == [section.id for section in SECTIONS]
        figures = {f["id"] for f in page.all("figure")}
        names = ["loss", "knn_top1", "scale_mean", "lr", "roc-0", "risk", "split-0", "map-0", "attention-0"]
        names += ["coverage", "pit-0", *(f"worse-{kind}" for kind in ("crop", "blur", "noise"))]
        names += [f"{kind}-{what}" for kind in ("severity", "corruption-0") for what in ("error", "nll", "ece")]
        expected = {f"figure-{name}" for name in names}
        assert expected | {f"gallery-0-{kind}" for kind in ("certain", "uncertain", "ood")} <= figures
        assert sum(f.startswith("figure-reliability") for f in figures) == 6  # two classifiers twice, two other sets
        assert "80.0 %, 25.3 points better than the untrained encoder" in page.text

    def test_images_come_before_the_numbers_of_research(self, page):
        order = [section["id"] for section in page.all("section")]
        assert order[:2] == ["headline", "images"]
        assert max(order.index(name) for name in ("images", "map")) < order.index("results")

    def test_every_figure_has_its_numbers_and_its_command(self, page):
        figures = re.findall(r"<figure .*?</figure>", page.html, flags=re.S)
        assert len(figures) > 15
        for figure in figures:
            assert "<details" in figure
            assert figure.count("<tr>") > 1
            assert "<code>prosmin " in figure

    def test_every_table_can_scroll_and_has_a_hint(self, page):
        tables = re.findall(r'<div class="scroller" role="region" tabindex="0" aria-label="[^"]+">\s*<table', page.html)
        assert len(tables) == page.html.count("<table") == page.html.count('<p class="hint" hidden>') > 30

    def test_charts_and_images_have_descriptions(self, page):
        drawings = re.findall(r'<svg [^>]*role="img".*?</svg>', page.html, flags=re.S)
        assert drawings
        for drawing in drawings:
            assert re.search(r"<title [^>]*>[^<]+</title><desc [^>]*>[^<]+</desc>", drawing)
        ids = [a["id"] for _, a in page.tags if "id" in a]
        assert len(ids) == len(set(ids))
        images = [a for a in page.all("img") if "src" in a]
        assert len(images) == 36 + 3 * 4  # the galleries; of three images the view, the mean and two heads
        assert all(a["alt"] and (a["src"] or "").startswith("data:image/") for a in images)

    def test_it_is_self_contained(self, page):
        links = [a[key] or "" for _, a in page.tags for key in ("src", "href") if key in a]
        assert links
        assert all(link.startswith(("data:", "#")) for link in links)
        assert "url(" not in page.html
        assert "@import" not in page.html
        assert not any(key == "style" or key.startswith("on") for _, a in page.tags for key in a)


def test_names_from_data_stay_text(tmp_path):
    page = page_of([fake_run(tmp_path / "<b>run", nasty=True)], tmp_path)
    assert [script.get("type") for script in page.all("script")] == ["application/json", "application/json", None]
    assert not page.all("b")
    assert NASTY in page.text


def test_several_runs_are_side_by_side(whole, tmp_path):
    other = fake_run(tmp_path / "dino", seed=1, skill=0.5, changes={"method": {"name": "dino"}})
    text = page_of([whole, other], tmp_path).text
    assert "2 runs side by side" in text
    assert "DINO" in text
    assert "method.name" in text  # the field in which they differ
    assert "fields that differ" not in text  # few are not folded
    assert "untrained encoder, " not in text  # equal baselines are shown once
    change_result(other, "knn", lambda result: result["baselines"]["untrained"].update(top1=0.6))
    assert "untrained encoder, dino" in page_of([whole, other], tmp_path).text


def test_many_differences_are_folded(whole, tmp_path):
    many = fake_run(tmp_path / "many", changes={"loss": {f"field_{i}": i for i in range(20)}})
    assert re.search(r"The \d+ fields that differ", page_of([whole, many], tmp_path).text)


class TestMissingAndDamaged:
    def test_missing_parts_name_their_command(self, whole, tmp_path):
        run = Path(shutil.copytree(whole, tmp_path / "a run"))
        (run / "results" / "ood.json").unlink()
        assert f"prosmin evaluate '{run}' --protocols ood" in page_of([run], tmp_path).text
        shutil.rmtree(run / "results")
        assert f"prosmin evaluate '{run}' --protocols knn,linear,ood,uncertainty" in page_of([run], tmp_path).text
        (run / "metrics.jsonl").unlink()
        assert "has no metrics.jsonl" in page_of([run], tmp_path).text

    def test_damaged_parts_are_named_and_left_out(self, copy, tmp_path):
        with (copy / "metrics.jsonl").open("a") as file:
            file.write('{"step": 265, "lo')
        (copy / "results" / "linear.json").write_text("{")
        (copy / "results" / "ood.npz").write_bytes(b"PK\x03\x04broken")
        (copy / "config.yaml").write_text("a: [")
        text = page_of([copy], tmp_path).text
        for part in ("1 of 53 lines of metrics.jsonl", "results/linear.json", "results/ood.npz", "config.yaml"):
            assert f"{part} cannot be read" in text

    def test_numbers_that_are_not_finite_do_not_break_the_page(self, copy, tmp_path):
        lines = (copy / "metrics.jsonl").read_text().splitlines()
        lines[10] = re.sub(r'"loss": [^,]+', '"loss": NaN', lines[10])
        (copy / "metrics.jsonl").write_text("\n".join(lines))
        change_result(copy, "uncertainty", lambda result: result["metrics"].update(r_auroc=float("nan")))
        text = page_of([copy], tmp_path).text
        assert "stopped being finite at step 55" in text
        assert "nan" not in text.lower()

    def test_the_log_keeps_the_last_line_of_a_step(self, tmp_path):
        lines = '{"step": 2, "loss": 5}\n{"step": 1, "loss": 4}\n{"step": 2, "loss": 3}\n'
        (tmp_path / "metrics.jsonl").write_text(lines)
        steps, losses = read_run(tmp_path, "r").column("loss")
        assert steps.tolist() == [1, 2]
        assert losses.tolist() == [4, 3]


class TestResultsThatDoNotBelongTogether:
    def test_of_different_images(self, page, whole, copy, tmp_path):
        assert "different images" not in page.text
        on = {"train": "folder:mine/train", "test": "folder:mine/test"}
        change_result(copy, "knn", lambda result: result.update(data=on))
        text = page_of([copy], tmp_path).text
        assert text.count("copy: its protocols were measured on different images") == 2  # at the top and at the table
        for line in ("knn on folder:mine/test, train folder:mine", "kNN on folder:mine", "Linear probe on photos@test"):
            assert line in text
        both = "kNN on photos@test, train photos@train (demo); folder:mine/test, train folder:mine/train (copy)"
        assert both in page_of([whole, copy], tmp_path).text

    def test_of_different_encoders(self, page, copy, tmp_path):
        assert "different encoders" not in page.text
        change_result(copy, "knn", lambda result: result.update(checkpoint={"step": 100, "hash": "0123456789abcdef"}))
        text = page_of([copy], tmp_path).text
        assert text.count("copy: its protocols were measured by different encoders") == 2  # at the top and at the table
        assert "knn by the encoder 0123456789abcdef of step 100" in text
        assert f"by the encoder 5d41402abc4b2a76 of step {STEPS}" in text
        assert "different images" not in text
        change_result(copy, "knn", lambda result: result.pop("checkpoint"))
        assert "different encoders" not in page_of([copy], tmp_path).text  # a result that does not name its encoder


def test_intervals_of_overlapping_patches_are_called_too_narrow(page, whole, copy, tmp_path):
    warning = "intervals are too narrow"
    assert page.text.count(warning) == 3  # at the results, the paper's tables and the calibration
    data = {"train": "folder:photos@train", "test": "folder:photos@test"}
    for path in (copy / "results").glob("*.json"):
        change_result(copy, path.stem, lambda result: result.update(data=data))
    assert warning in page_of([copy], tmp_path).text  # it was fine-tuned on them
    (copy / "results" / "transfer.json").unlink()
    assert warning not in page_of([copy], tmp_path).text
    assert warning in page_of([copy, whole], tmp_path).text


class TestUse:
    def test_wrong_use(self, whole, tmp_path):
        (tmp_path / "empty").mkdir()
        absent = tmp_path / "absent"
        for error, named, runs, out in (
            (UsageError, "RUN", [], "x.html"),
            (ProsminError, str(absent), [absent], "x.html"),
            (ProsminError, "demo", [whole.parent], "x.html"),  # a folder of runs: they are named
            (ProsminError, str(tmp_path / "empty"), [tmp_path / "empty"], "x.html"),
            (ProsminError, str(tmp_path), [whole], ""),
            *((UsageError, name, [whole], name) for name in ("x.pdf", "x", "x.html.gz")),
            (UsageError, f"{whole.parent}/x/../demo", [whole, whole.parent / "x/../demo"], "x.html"),
        ):
            with pytest.raises(error, match=re.escape(named)):
                write_report(runs, tmp_path / out)
        assert [path.name for path in tmp_path.iterdir()] == ["empty"]
        assert write_report([whole], tmp_path / "X.HTM").exists()

    def test_the_page_goes_where_the_help_says(self, whole, tmp_path, capsys, monkeypatch):
        with pytest.raises(SystemExit):
            main(["report", "--help"])
        help_text = " ".join(capsys.readouterr().out.split())
        assert "RUN/report.html" in help_text
        assert "./report.html" in help_text
        monkeypatch.chdir(tmp_path)
        for name in ("one", "two", "runs/shipped-cifar10-vit"):
            shutil.copytree(whole, name)
        folder = Path("runs/shipped-cifar10-vit")
        (folder / "config.yaml").unlink()
        (folder / "encoder.json").write_text('{"encoder": "cifar10-vit"}')
        assert main(["report", "one"]) == 0
        assert main(["report", "one", "two"]) == 0
        assert main(["report", "cifar10-vit"]) == 0  # the results of a shipped encoder
        assert capsys.readouterr().out == f"wrote one/report.html\nwrote report.html\nwrote {folder}/report.html\n"

    def test_the_page_is_replaced_whole_and_is_reproducible(self, whole, tmp_path, monkeypatch):
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

    def test_runs_have_distinct_names(self):
        assert distinct_names([Path("/a/x"), Path("/a/y")]) == ["x", "y"]
        assert distinct_names([Path("/a/x"), Path("/b/x")]) == ["a/x", "b/x"]

    def test_the_report_of_ten_thousand_images_is_small(self, tmp_path):
        """Four of them side by side stay under 15 MB; benchmarks/report.py has the seconds."""
        run = fake_run(tmp_path / "run", evaluated=10_000, shown=1500, side=64)
        lines = [{"step": step, "loss": 1 / step, "epoch": step / 100} for step in range(1, 20_001)]
        (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
        assert write_report([run], tmp_path / "page.html").stat().st_size < 15_000_000 / 4
