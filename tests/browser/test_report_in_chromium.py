"""The report in a real browser: every section is seen, nothing is fetched, no name runs as a script."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_run import NASTY, fake_run
from prosmin.report import write_report

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install prosmin[test]")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")

SECTIONS = ["headline", "run", "training", "results", "calibration", "ood", "uncertainty", "pictures"]
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Visit:
    """A page with all it asked for and complained about."""

    def __init__(self, page: playwright.Page) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    run, other = fake_run(folder / "run", nasty=True), fake_run(folder / "other", seed=1, skill=0.5)
    write_report([run, other], folder / "two.html")
    return write_report([run], folder / "one.html")


def visit(browser: playwright.Browser, path: Path, *, width: int = 1280, scheme: str = "light") -> Visit:
    visit = Visit(browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 900}))
    visit.page.goto(path.as_uri())
    return visit


@pytest.mark.parametrize("name", ["one.html", "two.html"])
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_page_is_whole(browser, report, name, width, scheme):
    seen = visit(browser, report.with_name(name), width=width, scheme=scheme)
    for section in SECTIONS:
        assert seen.page.locator(f"#{section} h2").is_visible()
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width  # nothing sticks out to the side
    loaded = "[...document.querySelectorAll('.pictures img')].map((i) => i.complete && i.naturalWidth)"
    assert set(seen.page.evaluate(loaded)) == {32}
    assert seen.complaints == []
    assert [url for url in seen.requests if not url.startswith("data:")] == [report.with_name(name).as_uri()]
    seen.page.close()


def test_scripts_in_names_stay_text(browser, report):
    seen = visit(browser, report)
    assert seen.page.locator(".pictures .label").first.inner_text() == NASTY
    seen.page.locator(".pictures button").first.click()
    assert seen.page.locator("#viewer").is_visible()
    assert seen.page.locator("#viewer-label").inner_text() == NASTY
    assert "onerror" in seen.page.locator("#viewer .key").inner_text()
    seen.page.keyboard.press("Escape")
    assert not seen.page.locator("#viewer").is_visible()
    assert seen.page.evaluate("window.harmed") is None
    assert seen.complaints == []
    seen.page.close()


def test_toggle_changes_the_colours(browser, report):
    seen = visit(browser, report)
    colour = "getComputedStyle(document.body).backgroundColor"
    light = seen.page.evaluate(colour)
    seen.page.locator("#theme").click()
    dark = seen.page.evaluate(colour)
    assert light != dark
    seen.page.reload()
    assert seen.page.evaluate(colour) == dark  # the choice is kept
    seen.page.locator("#theme").click()
    assert seen.page.evaluate(colour) == light
    seen.page.close()


def test_curves_are_read_by_pointer_and_keys(browser, report):
    seen = visit(browser, report)
    figure = seen.page.locator("#figure-loss")
    figure.locator(".plot").hover()
    by_pointer = figure.locator(".readout").inner_text()
    assert by_pointer.startswith("epoch ")
    seen.page.mouse.move(0, 0)
    assert figure.locator(".readout").inner_text() == ""
    figure.locator(".plot").focus()
    seen.page.keyboard.press("ArrowRight")
    first = figure.locator(".readout").inner_text()
    seen.page.keyboard.press("ArrowRight")
    assert first != figure.locator(".readout").inner_text()
    seen.page.close()


def test_numbers_open_beneath_a_figure(browser, report):
    seen = visit(browser, report)
    details = seen.page.locator("#figure-roc-0 details")
    assert not details.locator("table").is_visible()
    details.locator("summary").click()
    assert details.locator("table").is_visible()
    assert details.locator("code").first.inner_text().startswith("prosmin evaluate")
    seen.page.close()
