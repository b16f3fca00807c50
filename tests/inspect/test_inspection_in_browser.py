"""The page in a real browser: every view opens, no name runs as a script, and downloads are right for every name."""

import csv
import io
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote_to_bytes

import numpy as np
import pytest

from chromium import needs_chromium, started
from made_findings import NASTY, made_findings
from prosmin.inspect.page import write_page

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install prosmin[test]")

pytestmark = needs_chromium

VIEWS = ["all", "map", "label-first", "ood", "exact_duplicate", "near_duplicate", "unreadable", "dark"]
SHELLS = [path for name in ("sh", "dash", "bash") if (path := shutil.which(name))]


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    with started(playwright) as browser:
        yield browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose own name is nasty, with a file for each name; a file's content is its name."""
    root = tmp_path_factory.mktemp("inspected") / os.fsdecode(b"it's $(touch harmed) \xff\n folder")
    for name in (*made_findings(root).keys, "broken 0.jpg", "broken 1.jpg"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.fsencode(name))
    return root


class Visit:
    """An opened page, and what it complained of or asked for."""

    def __init__(self, browser: playwright.Browser, path: Path, *, width: int, scheme: str) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 900})
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(path.as_uri())

    def check(self) -> None:
        assert self.complaints == []
        assert self.page.evaluate("window.harmed") is None
        assert {url for url in self.requests if not url.startswith(("data:", "blob:"))} == {self.page.url}


@pytest.fixture(scope="module")
def visited(browser: playwright.Browser, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    out = tmp_path_factory.mktemp("page") / "index.html"
    write_page(made_findings(folder), out)
    visit = Visit(browser, out, width=1280, scheme="light")
    yield visit
    visit.page.close()


@pytest.fixture
def page(visited: Visit) -> Iterator[playwright.Page]:
    """The page as it is after loading: no dialog, nothing selected."""
    yield visited.page
    visited.page.keyboard.press("Escape")
    visited.page.evaluate("select([...selected], false)")
    visited.page.set_viewport_size({"width": 1280, "height": 900})
    visited.check()


def view(page: playwright.Page, name: str) -> None:
    page.locator(f"#tab-{name}").click()


def items(page: playwright.Page, where: str = "#panel") -> list[int]:
    return page.locator(where).evaluate(
        "(part) => [...part.querySelectorAll('[data-item]')].map((e) => +e.dataset.item)"
    )


def downloaded(page: playwright.Page, form: str) -> bytes:
    with page.expect_download() as waiting:
        page.locator(f"[data-format={form}]").click()
    return Path(waiting.value.path()).read_bytes()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_every_view_opens_and_fits(page, width, scheme):
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.evaluate("select([0, 3])")  # the bar of the selection has to fit as well
    assert page.locator("[role=tab]").evaluate_all("(tabs) => tabs.map((tab) => tab.id)") == [f"tab-{v}" for v in VIEWS]
    for name in VIEWS:
        view(page, name)
        assert page.locator("#panel h2").is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if name != "unreadable":
            page.wait_for_function("[...document.querySelectorAll('#panel img')].every((i) => i.naturalWidth === 24)")
    page.locator("#tab-all").click()
    page.locator("#panel .open").first.click()
    assert page.evaluate("document.querySelector('dialog').scrollWidth <= innerWidth")


def test_views_have_the_images_of_their_issues(page):
    findings = made_findings("")
    score = findings.columns["ood_score"]
    view(page, "ood")
    assert items(page) == [i for i in np.argsort(-score).tolist() if score[i] > 1.5]
    view(page, "exact_duplicate")
    assert items(page) == [30, 31, 3]
    assert page.locator(".badge").all_inner_texts() == ["keep", "remove", "remove"]
    view(page, "label-first")
    assert items(page) == findings.representative
    view(page, "unreadable")
    assert page.locator("#panel th").all_inner_texts() == ["broken 0.jpg", "broken 1.jpg"]
    assert page.locator("#panel td:last-child").all_inner_texts() == ["<i>reason 0</i>", "<i>reason 1</i>"]


def test_a_card_opens_its_view(page):
    page.locator(".card", has_text="Near duplicates").click()
    assert items(page) == [32, 17, 33, 34]


def test_all_images_are_sorted_and_filtered(page):
    findings = made_findings("")
    view(page, "all")
    assert items(page) == list(range(60))
    page.get_by_label("Sort by").select_option("mean_log_scale")
    values = findings.columns["mean_log_scale"]
    down = [int(i) for i in np.argsort(-values) if i != 5]
    assert items(page) == [*down, 5]  # the one without a value comes last, both ways
    page.locator(".direction").click()
    assert items(page) == [*down[::-1], 5]
    page.locator(".direction").click()
    page.get_by_label("Sort by").select_option("")
    page.get_by_label("Filter by name").fill("DOG/")
    page.get_by_label("Class").select_option(label="dog")
    assert items(page) == [i for i in range(60) if findings.keys[i].startswith("dog/")]
    page.get_by_label("Filter by name").fill("no such name")
    assert items(page) == []
    page.get_by_label("Filter by name").fill("")
    page.get_by_label("Class").select_option("")
    assert len(items(page)) == 60


def test_an_image_opens_with_its_neighbours(page, folder):
    findings = made_findings("")
    view(page, "all")
    page.locator("#panel .open").nth(7).click()
    assert page.locator("#viewer-name").inner_text() == NASTY[7]
    address = page.get_by_text("Open the file").get_attribute("href")
    assert unquote_to_bytes(address.removeprefix("file://")) == os.fsencode(folder / NASTY[7])
    near = findings.neighbours[7].tolist()
    assert items(page, "#viewer .list") == near
    page.locator("#viewer .list .open").nth(2).click()  # from neighbour to neighbour
    assert items(page, "#viewer .list") == findings.neighbours[near[2]].tolist()
    page.locator("#back").click()
    assert items(page, "#viewer .list") == near
    page.locator("#next").click()
    assert page.locator("#viewer-name").inner_text() == NASTY[8]
    page.locator("#viewer .check input").check()
    assert page.evaluate("[...selected]") == [8]
    page.keyboard.press("Escape")
    assert not page.locator("#viewer").is_visible()
    assert page.locator("#panel .selected").count() == 1


def test_scripts_in_names_stay_text(page):
    view(page, "all")
    shown = page.locator("#panel .tile").first
    assert shown.locator(".name").inner_text() == NASTY[0]
    assert page.locator("#panel script, #panel b, #viewer b").count() == 0
    assert "<b>cat</b>" in page.locator("#panel .tile").nth(5).inner_text()
    names = page.locator("#panel .name").all_inner_texts()
    assert names[3] == "new\\nline.jpg"
    assert "\u202e" not in names[15]  # it would turn the rest of the name around
    assert "\\xe9\\xff\\xc3" in names[17]


def test_everything_is_reached_by_keys(page):
    view(page, "ood")
    page.keyboard.press("ArrowRight")
    assert page.locator("#tab-exact_duplicate").get_attribute("aria-selected") == "true"
    for _ in range(2):  # past the two buttons that select
        page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press(" ")
    assert page.evaluate("[...selected]") == [31]
    page.keyboard.press("Enter")
    assert page.locator("#viewer-name").inner_text() == made_findings("").keys[31]
    page.keyboard.press("ArrowRight")
    assert page.locator("#viewer-name").inner_text() == "new\\nline.jpg"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.closest('[data-item]').dataset.item") == "31"
    page.locator("#tab-exact_duplicate").focus()
    page.keyboard.press("Home")
    assert page.locator("#tab-all").get_attribute("aria-selected") == "true"


def test_the_map_is_read_by_pointer_and_keys(page):
    view(page, "map")
    canvas = page.locator("#panel canvas")
    canvas.scroll_into_view_if_needed()
    colours = canvas.evaluate_handle("(canvas) => () => canvas.toDataURL()")
    by_issue = colours.evaluate("(read) => read()")
    page.get_by_label("Colour by").select_option(label="OOD score")
    assert colours.evaluate("(read) => read()") != by_issue
    canvas.focus()
    page.keyboard.press("ArrowRight")
    first = page.locator(".tip .name").inner_text()
    page.keyboard.press("ArrowDown")
    assert page.locator(".tip .name").inner_text() != first
    page.keyboard.press(" ")
    assert page.evaluate("selected.size") == 1
    page.keyboard.press("Enter")
    assert page.locator("#viewer").is_visible()
    page.keyboard.press("Escape")
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 8, box["y"] + 8)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 8, box["y"] + box["height"] - 8, steps=3)
    page.mouse.up()
    assert page.evaluate("selected.size") == 60  # all are inside the frame that was drawn


def test_suggested_removals_leave_one_of_each_group(page):
    view(page, "exact_duplicate")
    page.get_by_text("Select suggested removals").click()
    assert sorted(page.evaluate("[...selected]")) == [3, 31]
    view(page, "near_duplicate")
    page.get_by_text("Select suggested removals").click()
    assert sorted(page.evaluate("[...selected]")) == [3, 17, 31, 34]
    page.locator("#review").click()
    assert items(page) == [3, 17, 31, 34]
    page.locator("#only").uncheck()
    page.locator("#clear").click()
    assert not page.locator("#selection").is_visible()


def test_lists_of_names(page):
    findings = made_findings("")
    view(page, "all")
    page.get_by_text("Select all 60").click()
    assert page.locator("[data-format=txt]").is_disabled()  # two names have a line break
    assert json.loads(downloaded(page, "json")) == findings.keys
    rows = list(csv.reader(io.StringIO(os.fsdecode(downloaded(page, "csv")), newline="")))
    assert rows[0] == ["name", "class", "issues", *findings.columns]
    assert [row[0].removeprefix("./") for row in rows[1:]] == findings.keys
    assert not any(row[0].startswith(("=", "-")) for row in rows)  # a spreadsheet would calculate it
    assert rows[4][1:3] == ["", "exact_duplicate"]
    assert rows[6][1] == "<b>cat</b>"
    np.testing.assert_array_equal([int(row[3]) for row in rows[1:]], findings.columns["width"])
    np.testing.assert_allclose([float(row[4]) for row in rows[1:]], findings.columns["ood_score"], rtol=1e-6)
    assert rows[6][5] == ""
    broken = [i for i, name in enumerate(findings.keys) if "\n" in name or "\r" in name]
    page.evaluate(f"select({broken}, false)")
    names = os.fsdecode(downloaded(page, "txt")).split("\n")
    assert names == [*(name for i, name in enumerate(findings.keys) if i not in broken), ""]


@pytest.fixture(scope="module")
def script(visited: Visit, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script that moves the images with nasty names, one other and a file that cannot be read."""
    page, path = visited.page, tmp_path_factory.mktemp("script") / "move.sh"
    page.evaluate(f"select([...Array({len(NASTY)}).keys(), 40, 61])")
    path.write_bytes(downloaded(page, "sh"))
    page.locator("#clear").click()
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_moves_exactly_the_selected_files(folder, script, tmp_path, shell):
    work = Path(shutil.copytree(folder, tmp_path / "-a 'copy'\n"))
    before = contents(work)
    chosen = {*NASTY, made_findings("").keys[40], "broken 1.jpg"}
    assert chosen <= before.keys()
    ran = subprocess.run([shell, script, work.name], cwd=tmp_path, capture_output=True, check=True)
    assert ran.stderr == b""
    moved = work.with_name(f"{work.name}-moved")
    assert contents(moved) == {name: text for name, text in before.items() if name in chosen}
    assert contents(work) == {name: text for name, text in before.items() if name not in chosen}
    assert {path.name for path in tmp_path.iterdir()} == {work.name, moved.name}  # nothing in a name was run

    (work / NASTY[0]).write_bytes(b"another image")
    again = subprocess.run([shell, script, work.name], cwd=tmp_path, capture_output=True)
    assert again.returncode == 1
    assert (work / NASTY[0]).read_bytes() == b"another image"  # neither file is lost
    assert contents(moved) == {name: text for name, text in before.items() if name in chosen}


def test_the_script_knows_its_folder(folder, script, tmp_path):
    before = contents(folder)
    subprocess.run(["sh", script], cwd=tmp_path, capture_output=True, check=True)
    moved = folder.with_name(f"{folder.name}-moved")
    assert contents(folder) | contents(moved) == before
    assert len(contents(moved)) == len(NASTY) + 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("n", [1, 300])
def test_a_folder_without_issues_or_ood_score(browser, tmp_path, n):
    write_page(made_findings(tmp_path, n, columns={"width": np.arange(n)}, issues=[]), tmp_path / "index.html")
    visit = Visit(browser, tmp_path / "index.html", width=390, scheme="dark")
    page = visit.page
    assert page.locator(".card").count() == 0
    for name in ("map", "label-first", "all"):
        view(page, name)
        assert page.locator("#panel h2").is_visible()
    assert len(items(page)) < 300  # a long list is made in pieces
    page.locator("#panel .open").first.click()
    assert page.locator("#viewer-name").inner_text() == NASTY[0]
    assert page.locator("#viewer .list .tile").count() == min(8, n - 1)
    page.keyboard.press("Escape")
    for _ in range(n // 96 + 1):
        page.locator("#panel .tile").last.scroll_into_view_if_needed()
        page.wait_for_timeout(100)  # the observer of the end reports after a frame
    assert items(page) == list(range(n))
    visit.check()
    page.close()
