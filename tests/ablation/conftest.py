"""Tiny grids on tiny images."""

import numpy as np
import pytest
from PIL import Image

from prosmin.ablation.grid import Grid, combine
from tiny_run import SMALL_GRID


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Two classes of forty images that differ slightly in tint, and the same images in one folder; no test images."""
    root = tmp_path_factory.mktemp("pictures")
    draw_from = np.random.default_rng(0)
    for number in range(80):
        image = draw_from.integers(0, 160, (24, 24, 3), dtype=np.uint8)
        image[..., number % 2] += 7
        for folder in (root / "labelled" / f"class{number % 2}", root / "flat"):
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{number}.png")
    return root


@pytest.fixture
def small(pictures):
    """A function that makes a grid of tiny runs on those images."""

    def make(*over: str, data: str = "labelled", **fields: str) -> Grid:
        named = {name.replace("__", "."): value for name, value in fields.items()}
        swept = [text.partition("=")[0] for text in over]
        fixed = {name: value for name, value in (SMALL_GRID | named).items() if name not in swept}
        return combine(grid=None, recipe="demo", over=over, fields=fixed | {"data.spec": f"folder:{pictures / data}"})

    return make
