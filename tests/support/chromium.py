"""A real browser for the tests of pages."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")
DISABLED = ("gpu", "background-networking", "component-update", "sync")


@contextmanager
def started(playwright: Any) -> Iterator[Any]:
    """A browser that asks nothing of the network by itself; `playwright` is the module playwright.sync_api."""
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", *(f"--disable-{what}" for what in DISABLED)]
        )
        yield browser
        browser.close()
