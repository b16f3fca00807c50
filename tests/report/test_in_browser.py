"""The report in a real browser: every section is visible, nothing is fetched, no name runs as a script."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chromium import needs_chromium, started
from fake_run import NASTY, fake_run
from prosmin.report import write_report
from prosmin.report.page import SECTIONS

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install prosmin[test]")

pytestmark = needs_chromium

BRIGHT = """(canvas) => {
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return pixels.length > 4 && new Set(pixels).size;
}"""  # the number of different values: dozens for a tile of a photograph, one for an empty canvas


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    with started(playwright) as browser:
        yield browser


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    run, other = fake_run(folder / "run", nasty=True), fake_run(folder / "other", seed=1, skill=0.5)
    write_report([run, other], folder / "two.html")
    return write_report([run], folder / "one.html")


@pytest.fixture
def visit(browser: playwright.Browser, report: Path) -> Iterator[Callable[..., playwright.Page]]:
    """Opens a report; in the end, nothing was fetched but the pages, no script failed, and no name ran as a script."""
    opened: list[playwright.Page] = []
    complaints: list[str] = []
    requests: list[str] = []

    def visit(name: str = "one.html", *, width: int = 1280, scheme: str = "light") -> playwright.Page:
        page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 900})
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(report.with_name(name).as_uri())
        opened.append(page)
        return page

    yield visit
    assert complaints == []
    assert {url for url in requests if not url.startswith("data:")} == {page.url.partition("#")[0] for page in opened}
    for page in opened:
        assert page.evaluate("window.harmed") is None
        page.close()


@pytest.mark.parametrize("name", ["one.html", "two.html"])
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_page_is_whole(visit, name, width, scheme):
    page = visit(name, width=width, scheme=scheme)
    for section in SECTIONS:
        assert page.locator(f"#{section.id} h2").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width  # nothing sticks out to the side
    loaded = "[...document.querySelectorAll('.pictures img')].map((i) => i.complete && i.naturalWidth)"
    assert set(page.evaluate(loaded)) == {32}
    assert set(page.evaluate(loaded.replace(".pictures", ".strip"))) == {112}
    drawings = page.locator("figure .plot > svg")
    assert drawings.count() > 20
    assert page.evaluate("[...document.querySelectorAll('main figure')].every((f) => f.querySelector('table'))")


CUT = """() => [...document.querySelectorAll("table")].filter((table) => table.checkVisibility()).map((table) => {
  const scroller = table.parentElement;
  const wide = scroller.scrollWidth > scroller.clientWidth + 1;
  const hint = scroller.parentElement.nextElementSibling;
  return {
    wide,
    scrolls: getComputedStyle(scroller).overflowX === "auto",
    within: scroller.getBoundingClientRect().right <= innerWidth,
    hinted: !hint.hidden && scroller.parentElement.dataset.more === "right",
    reached: scroller.tabIndex === 0,
    tall: scroller.scrollHeight > scroller.clientHeight + 1,
  };
})"""  # of every visible table: whether it is too wide, and how a reader would know


@pytest.mark.parametrize("name", ["one.html", "two.html"])
@pytest.mark.parametrize("width", [400, 800, 1400])
def test_only_cut_tables_have_a_hint(visit, name, width):
    page = visit(name, width=width)
    page.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
    page.wait_for_timeout(100)  # the observers of sizes report after a frame
    tables = page.evaluate(CUT)
    assert len(tables) > 30
    for table in tables:
        assert table["scrolls"]
        assert table["within"]
        assert table["hinted"] == table["wide"]
        assert table["reached"] == (table["wide"] or table["tall"])
    assert any(table["wide"] for table in tables) or width > 400
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_cut_table_is_scrolled_by_keys_to_its_end(visit):
    page = visit("two.html", width=400)
    page.wait_for_selector("#results .edge[data-more=right]")
    page.locator("#results .scroller").first.focus()
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    page.wait_for_selector("#results .edge[data-more=left]")
    head = page.locator("#results tbody th").first.bounding_box()
    assert head["x"] >= 0  # what the row is stays in sight


ROWS = """() => [...document.querySelectorAll(".charts")].filter((row) => row.checkVisibility()).map((row) =>
  [...row.children].map((chart) => {
    const box = (part) => chart.querySelector(part).getBoundingClientRect();
    const { left, right, top, bottom } = chart.getBoundingClientRect();
    return { left, right, top, bottom, plot: box(".plot").top, foot: box(".foot").top };
  }))"""


@pytest.mark.parametrize("name", ["one.html", "two.html"])
@pytest.mark.parametrize("width", [400, 800, 1400])
def test_charts_are_in_full_and_even_rows(visit, name, width):
    page = visit(name, width=width)
    main = page.locator("main").bounding_box()
    for charts in page.evaluate(ROWS):
        for top in {chart["top"] for chart in charts}:
            row = [chart for chart in charts if chart["top"] == top]
            assert row[0]["left"] == pytest.approx(main["x"], abs=1)
            assert row[-1]["right"] == pytest.approx(main["x"] + main["width"], abs=1)  # no hole at the end of a row
            for part in ("bottom", "plot", "foot"):
                assert max(c[part] for c in row) - min(c[part] for c in row) < 1, part


def test_the_map_fills_the_screen(visit):
    for width, least in ((400, 0.8), (1400, 0.6)):
        page = visit(width=width)
        box = page.locator(".map").first.bounding_box()
        assert box["width"] >= least * width
        assert box["height"] < 900  # the whole of it on one screen


def test_the_visible_section_is_marked(visit):
    page = visit(width=400)
    page.emulate_media(reduced_motion="reduce")  # arrives at once
    page.locator("nav a[href='#images']").click()
    page.wait_for_selector("nav a[href='#images'][aria-current]")
    assert page.locator("nav [aria-current]").count() == 1
    bar = page.locator("nav").bounding_box()
    assert bar["y"] == pytest.approx(0, abs=1)  # it stays above
    assert page.locator("#images h2").bounding_box()["y"] >= bar["height"]  # and covers no heading


def test_scripts_in_names_stay_text(visit):
    page = visit()
    assert page.locator(".pictures .label").first.inner_text() == NASTY
    page.locator(".pictures button").first.click()
    assert page.locator("#viewer").is_visible()
    assert page.locator("#viewer-label").inner_text() == NASTY
    assert "onerror" in page.locator("#viewer .key").inner_text()
    page.keyboard.press("Escape")
    assert not page.locator("#viewer").is_visible()


def dot_at(page: playwright.Page, i: int) -> tuple[float, float]:
    """Where image i of the first run lies on the screen."""
    page.locator(".map").first.scroll_into_view_if_needed()
    box = page.locator(".map .dot").nth(i).bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_an_image_of_the_map_opens_with_its_neighbours(visit, width, scheme):
    page = visit("two.html", width=width, scheme=scheme)
    page.mouse.move(*dot_at(page, 0))
    assert page.locator(".tip").first.is_visible()
    assert page.locator(".tip .label").first.inner_text() == NASTY
    page.wait_for_function(f"({BRIGHT})(document.querySelector('.tip canvas')) > 20")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.mouse.click(*dot_at(page, 0))
    near = page.locator("#viewer .near li")
    assert near.count() == 8
    expected = page.evaluate("albumOf('0').near[0].map((j) => albumOf('0').labels[albumOf('0').label[j]])")
    assert near.locator(".label").all_inner_texts() == expected
    likeness = [float(text) for text in near.locator("span:nth-of-type(2)").all_inner_texts()]
    assert likeness == sorted(likeness, reverse=True)
    assert near.nth(7).locator(".blank").is_visible()  # it is named, its image was not kept
    assert page.evaluate(f"[...document.querySelectorAll('#viewer li canvas')].map({BRIGHT}).every((n) => n > 20)")
    second = page.evaluate("albumOf('0').key[albumOf('0').near[0][1]]")
    near.nth(1).locator("button").click()  # from neighbour to neighbour
    assert page.locator("#viewer .key").inner_text() == second
    page.keyboard.press("Escape")
    assert not page.locator("#viewer").is_visible()


@pytest.mark.parametrize("kind", ["certain", "uncertain", "ood"])
def test_an_image_of_a_gallery_opens_with_its_neighbours(visit, kind):
    page = visit()
    button = page.locator(f"#gallery-0-{kind} .pictures button").nth(2)
    button.click()
    run, place = button.get_attribute("data-place").split(":")
    keys = page.evaluate(f"albumOf({run}).near[{place}].map((j) => albumOf({run}).key[j])")
    titles = [label.get_attribute("title") for label in page.locator("#viewer .near .label").all()]
    assert titles == keys
    assert len(titles) == 8
    assert page.locator("#viewer .key").inner_text() == button.get_attribute("data-key")


def test_the_map_is_read_by_keys_and_coloured_by_choice(visit):
    page = visit()
    figure = page.locator("#figure-map-0")
    figure.locator(".plot").focus()
    texts = []
    for key in ("ArrowRight", "ArrowRight", "ArrowUp"):
        page.keyboard.press(key)
        texts.append(figure.locator(".readout").inner_text())
    assert len(set(texts)) == 3
    page.keyboard.press("Enter")
    assert page.locator("#viewer").is_visible()
    page.keyboard.press("Escape")
    colour = "getComputedStyle(document.querySelector('#figure-map-0 .plot .dot')).color"
    by_class = page.evaluate(colour)
    figure.locator("[data-by=uncertainty]").click()
    assert page.evaluate(colour) != by_class
    assert figure.locator(".by-uncertainty").is_visible()
    assert not figure.locator(".by-class").is_visible()
    figure.locator(".by-uncertainty button").first.click()
    assert figure.locator(".plot .lit").count() == 24  # a fifth of the 120 test images
    figure.locator(".by-uncertainty button").first.click()
    assert figure.locator(".plot .lit").count() == 0


def test_toggle_changes_the_colours(visit):
    page = visit()
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.locator("#theme").click()
    dark = page.evaluate(colour)
    assert light != dark
    page.reload()
    assert page.evaluate(colour) == dark  # the choice is kept
    page.locator("#theme").click()
    assert page.evaluate(colour) == light


def test_curves_are_read_by_pointer_and_keys(visit):
    page = visit()
    figure = page.locator("#figure-loss")
    figure.locator(".plot").hover()
    by_pointer = figure.locator(".readout").inner_text()
    assert by_pointer.startswith("epoch ")
    page.mouse.move(0, 0)
    assert figure.locator(".readout").inner_text() == ""
    figure.locator(".plot").focus()
    page.keyboard.press("ArrowRight")
    first = figure.locator(".readout").inner_text()
    page.keyboard.press("ArrowRight")
    assert first != figure.locator(".readout").inner_text()


@pytest.mark.parametrize("width", [400, 1400])
def test_the_readout_of_a_curve_moves_nothing_and_stays_inside(visit, width):
    page = visit("two.html", width=width)
    figure = page.locator("#figure-loss")
    figure.scroll_into_view_if_needed()
    before = figure.bounding_box()
    plot = figure.locator(".plot").bounding_box()
    for share in (0.01, 0.5, 0.99):
        page.mouse.move(plot["x"] + share * plot["width"], plot["y"] + plot["height"] / 2)
        box = figure.locator(".readout").bounding_box()
        assert plot["x"] - 1 <= box["x"]
        assert box["x"] + box["width"] <= plot["x"] + plot["width"] + 1
        assert figure.bounding_box() == before


def test_numbers_open_beneath_a_figure(visit):
    page = visit()
    details = page.locator("#figure-roc-0 details")
    assert not details.locator("table").is_visible()
    details.locator("summary").click()
    assert details.locator("table").is_visible()
    assert details.locator("code").first.inner_text().startswith("prosmin evaluate")
