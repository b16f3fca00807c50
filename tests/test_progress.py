"""Progress: plain lines in a file, a bar on a terminal."""

import io

from rich.console import Console

from prosmin import progress
from prosmin.progress import Progress, track


def test_lines_in_a_file(capsys):
    with Progress("images:", total=100, done=10, lines=4) as bar:
        for _ in range(9):
            bar.add_images(10)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == [f"images: {n}/100" for n in (30, 50, 80, 100)]
    assert all("img/s" in line and line.endswith("s left") for line in lines)


def test_nothing_is_shown_if_hidden_or_done(capsys):
    for options in ({"hidden": True}, {"done": 5}, {"lines": 0}):
        with Progress("step", total=5, **options) as bar:
            bar.update(5)
    assert capsys.readouterr().out == ""


def test_a_bar_shows_brackets_in_titles_and_notes(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda **_: Console(file=shown, force_terminal=True, width=120))
    assert list(track(iter("abc"), "folder:/data/[old] pets[/old]", total=3)) == ["a", "b", "c"]
    with Progress("step", total=2) as bar:
        bar.update(1, "note [1]")
    assert "folder:/data/[old] pets[/old]" in shown.getvalue()
    assert "note [1]" in shown.getvalue()
