"""The file of the page: what is in it, how large it gets, and that no name in it can do harm."""

import base64
import hashlib
import io
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from made_findings import NASTY, jpeg, made_findings
from prosmin.errors import ProsminError
from prosmin.inspect import page as pages
from prosmin.inspect.findings import KINDS, Issue
from prosmin.inspect.page import shown_rows, write_page

TYPES = {"f4": "<f4", "f8": "<f8", "i4": "<i4"}


class Written:
    """A page, read as its script reads it."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text(encoding="utf-8")
        self.data = json.loads(re.search(r'<script type="application/json" id="data">([^<]*)</script>', self.text)[1])
        self.thumbnails = re.search(r'<script type="text/plain" id="thumbnails">([^<]*)</script>', self.text)[1]

    def array(self, name: str) -> np.ndarray:
        return unpacked(self.data[name])

    def column(self, name: str) -> np.ndarray:
        return unpacked(next(column["values"] for column in self.data["columns"] if column["id"] == name))

    def jpegs(self) -> list[bytes]:
        starts = self.array("starts").tolist()
        return [base64.b64decode(self.thumbnails[a:b], validate=True) for a, b in itertools.pairwise(starts)]


def unpacked(packed: dict[str, str]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed["text"]), TYPES[packed["type"]])


@pytest.fixture
def write(tmp_path):
    def write(findings, **options) -> Written:
        write_page(findings, tmp_path / "index.html", **options)
        return Written(tmp_path / "index.html")

    return write


@pytest.mark.parametrize(
    ("changes", "checked"),
    [
        ({}, set()),
        ({"reference": "folder:clean"}, {"ood", "leak"}),
        ({"reference": "folder:clean", "columns": {}}, {"leak"}),
        ({"keys": ["train/a.jpg", "test/b.jpg"]}, {"leak"}),
    ],
)
def test_only_what_was_checked_is_reported_as_not_found(write, tmp_path, changes, checked):
    text = write(made_findings(tmp_path, n=2, issues=[], **changes)).text
    listed = re.search(r"Nothing found: ([^<]*)\.<", text)[1].split(", ")
    assert {kind for kind in ("ood", "leak", "uncertain") if KINDS[kind].title in listed} == checked
    assert KINDS["exact_duplicate"].title in listed


def test_names_and_numbers_come_back_unchanged(write, tmp_path):
    findings = made_findings(tmp_path)
    page = write(findings)
    assert page.data["names"] == [*findings.keys, "broken 0.jpg", "broken 1.jpg"]
    assert page.data["folder"] == str(tmp_path)
    for name, values in findings.columns.items():
        np.testing.assert_array_equal(page.column(name), values)
    np.testing.assert_array_equal(page.array("neighbours"), findings.neighbours.ravel())
    np.testing.assert_array_equal(page.array("points"), findings.points.ravel())
    classes = [page.data["classes"][i] if i >= 0 else None for i in page.array("labels")]
    assert classes == findings.labels
    totals = {kind["id"]: kind["total"] for kind in page.data["kinds"]}
    ood = int((findings.columns["ood_score"] > 1.5).sum())
    assert totals == {"ood": ood, "exact_duplicate": 3, "near_duplicate": 4, "unreadable": 2, "dark": 1}


def test_large_whole_numbers_keep_their_digits(write, tmp_path):
    sizes = np.array([2**40 + 1] * 60)
    assert write(made_findings(tmp_path, columns={"file_size": sizes})).column("file_size").tolist() == sizes.tolist()


def test_a_piece_of_the_thumbnails_is_a_whole_image(write, tmp_path):
    for row, written in enumerate(write(made_findings(tmp_path)).jpegs()):
        assert written.rstrip(b"\0") == jpeg(row).rstrip(b"\0")
        Image.open(io.BytesIO(written)).load()


@pytest.mark.parametrize("share", [0.8, 0.4])
def test_thumbnails_shrink_until_they_fit(write, tmp_path, monkeypatch, share):
    findings = made_findings(tmp_path, thumbnail=lambda row: jpeg(row, side=200))
    whole = len(write(findings).thumbnails)
    monkeypatch.setattr(pages, "BYTES", int(share * whole))
    page = write(findings)
    assert len(page.thumbnails) < share * whole
    sides = {max(Image.open(io.BytesIO(written)).size) for written in page.jpegs()}
    assert len(sides) == 1
    assert sides <= set(pages.SIDES)


def test_only_the_style_and_the_script_of_the_page_may_run(write, tmp_path):
    page = write(made_findings(tmp_path / "<script>window.harmed=1<", notes=[NASTY[0]]))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page.text)[1].replace("&#39;", "'")
    for tag in ("style", "script"):
        (body,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert NASTY[0] not in page.text
    assert not re.search(r"(src|href)=[\"']?(https?:|//)", page.text)


class TestLargeFolder:
    """More images than the page shows."""

    def findings(self, tmp_path, **changes):
        return made_findings(tmp_path, 300, **changes)

    def test_issues_come_first_and_the_rest_is_a_sample(self, tmp_path):
        findings = self.findings(tmp_path)
        rows = shown_rows(findings, limit=200)
        assert len(set(rows.tolist())) == 200
        assert rows.tolist() == sorted(rows.tolist())
        assert {issue.image for issue in findings.issues} - {-1} <= set(rows.tolist())
        assert set(findings.representative) <= set(rows.tolist())
        np.testing.assert_array_equal(rows, shown_rows(findings, limit=200))

    def test_the_worst_of_each_kind_and_whole_groups_if_there_are_too_many(self, tmp_path):
        kinds = ("ood", "dark")
        issues = [Issue(row, str(row), kinds[row % 2], row) for row in range(200)]
        issues += [Issue(row, str(row), "near_duplicate", 1.0, row // 7) for row in range(203, 301 - 7)]
        rows = set(shown_rows(self.findings(tmp_path, issues=issues), limit=40).tolist())
        assert {198, 199, 196, 197} <= rows  # the largest scores of both kinds
        groups = [{issue.image for issue in issues if issue.group == number} for number in range(29, 42)]
        assert any(group <= rows for group in groups)

    def test_neighbours_point_to_images_on_the_page(self, write, tmp_path):
        findings = self.findings(tmp_path)
        page = write(findings, limit=100)
        rows = shown_rows(findings, limit=100)
        assert page.data["names"][:100] == [findings.keys[row] for row in rows]
        shown = page.array("neighbours").reshape(100, -1)
        for i, row in enumerate(rows):
            for j, neighbour in zip(shown[i], findings.neighbours[row], strict=True):
                assert (rows[j] == neighbour) if j >= 0 else (neighbour not in rows)
        assert "100" in (note := re.search(r'class="warning">([^<]*)', page.text)[1])
        assert "300" in note
        totals = {kind["id"]: kind["total"] for kind in page.data["kinds"]}
        assert totals["ood"] == sum(issue.kind == "ood" for issue in findings.issues)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_images(write, tmp_path, n):
    page = write(made_findings(tmp_path, n, columns={"width": np.arange(n)}))
    assert len(page.jpegs()) == n
    assert page.data["kinds"] == []
    nothing = re.search(r'class="none">([^<]*)', page.text)[1]
    assert "Dark" in nothing
    assert "belong" not in nothing  # it was not checked
    assert "OOD" not in page.text.partition('id="data"')[0].partition("<body>")[2]


def test_a_source_that_is_no_folder_has_nothing_to_move(write):
    assert write(made_findings("parquet:images.parquet")).data["folder"] is None


def test_an_older_page_stays_if_the_new_one_fails(tmp_path):
    out = tmp_path / "index.html"
    out.write_text("older")

    def fail(row: int) -> bytes:
        raise ProsminError("no thumbnail")

    with pytest.raises(ProsminError):
        write_page(made_findings(tmp_path, thumbnail=fail), out)
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]
    assert out.read_text() == "older"
