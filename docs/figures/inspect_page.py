"""Draw docs/figures/inspect.png: the page of `prosmin inspect` for a folder of parts of the package's photographs.

    python docs/figures/inspect_page.py

The folder has parts of five photographs, some of four others that do not belong, and copies, blurred and dark ones.
"""

import tempfile
from contextlib import chdir
from pathlib import Path

from PIL import Image, ImageFilter, ImageOps
from playwright.sync_api import sync_playwright

from prosmin.data.sources.photos import load_photograph, photograph_files
from prosmin.inspect import inspect

HOME = ("chelsea", "china", "coffee", "flower", "motorcycle_left")
OTHERS = ("page", "retina", "brick", "text")
TILE, SIDE, LEAST = 64, 128, 30


def tiles(name: str) -> list[Image.Image]:
    """Parts of a photograph, side by side, without those that show nearly nothing."""
    photograph = load_photograph(photograph_files()[name]).permute(1, 2, 0).numpy()
    height, width = photograph.shape[:2]
    corners = [(top, left) for top in range(0, height - TILE + 1, TILE) for left in range(0, width - TILE + 1, TILE)]
    found = [photograph[top : top + TILE, left : left + TILE] for top, left in corners]
    return [Image.fromarray(tile).resize((SIDE, SIDE)) for tile in found if tile.std() > LEAST]


def make_folders(folder: Path, clean: Path) -> None:
    """Write the images: every other part of the five photographs is a clean image, for the reference."""
    folder.mkdir()
    clean.mkdir()
    every = [image for name in HOME for image in tiles(name)]
    home = every[::2]
    for number, image in enumerate(every[1::2]):
        image.save(clean / f"{number:04d}.jpg", quality=90)
    for number, image in enumerate(home):
        image.save(folder / f"IMG_{number:04d}.jpg", quality=90)
    for name in OTHERS:
        for number, image in enumerate(tiles(name)[:4]):
            image.save(folder / f"{name}-{number}.jpg", quality=90)
    for number in range(6):
        image = home[15 * number + 5]
        ImageOps.mirror(image).save(folder / f"mirrored-{number}.jpg", quality=80)
        image.resize((96, 96)).save(folder / f"small-{number}.png")
        home[15 * number + 9].filter(ImageFilter.GaussianBlur(5)).save(folder / f"blurred-{number}.jpg")
        home[15 * number + 12].point(lambda level: level * 0.1).save(folder / f"dark-{number}.jpg")
    (folder / "IMG_0050 (1).jpg").write_bytes((folder / "IMG_0050.jpg").read_bytes())
    (folder / "half.jpg").write_bytes((folder / "IMG_0051.jpg").read_bytes()[:900])


def main() -> None:
    """Make the folder, inspect it and take the picture."""
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        place = Path(temporary)
        make_folders(place / "holiday", place / "clean")
        with chdir(place):  # the page shows the paths as given
            inspect("holiday", "found", reference="clean")
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1120, "height": 860})
        page.goto(f"file://{place}/found/index.html")
        page.wait_for_timeout(1000)
        page.screenshot(path=Path(__file__).with_name("inspect.png"))
        browser.close()


if __name__ == "__main__":
    main()
