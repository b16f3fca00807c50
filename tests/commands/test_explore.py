"""`prosmin explore`: the command line of Embedding Atlas for the columns that a file has."""

import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prosmin.cli import main
from prosmin.commands.explore import atlas_arguments

ABOUT = {"prosmin": '{"run": "cifar10-vit", "settings": {"encoder": "a hash"}}'}


def write(path, *columns):
    pq.write_table(pa.table({name: [0.0] for name in columns}).replace_schema_metadata(ABOUT), path)
    return path


@pytest.fixture
def inspected(tmp_path):
    return write(tmp_path / "images.parquet", "key", "features", "x", "y", "neighbors", "image").parent


def test_an_inspected_folder_is_shown_with_its_map_neighbours_and_thumbnails(inspected):
    file, *options = atlas_arguments(inspected)
    assert file == str(inspected / "images.parquet")
    shown = {"--x": "x", "--y": "y", "--neighbors": "neighbors", "--image": "image", "--text": "key"}
    assert dict(zip(options[::2], options[1::2], strict=True)) == shown


def test_a_file_of_embed_is_shown_by_its_features(tmp_path):
    _, *options = atlas_arguments(write(tmp_path / "seen.parquet", "key", "features"))
    assert dict(zip(options[::2], options[1::2], strict=True)) == {"--vector": "features", "--text": "key"}


def test_embedding_atlas_has_these_options(inspected, tmp_path):
    atlas = pytest.importorskip("embedding_atlas.cli", reason="embedding-atlas is not installed")
    known = {flag for option in atlas.main.params for flag in option.opts}
    for file in (inspected, write(tmp_path / "seen.parquet", "key", "features")):
        assert set(atlas_arguments(file)[1::2]) <= known


def test_the_program_is_started_from_the_environment_of_prosmin_or_the_path(inspected, monkeypatch):
    started = []
    monkeypatch.setattr(os, "execv", lambda program, words: started.append((program, words)))
    for folder in ("beside", "path"):
        program = inspected / folder / "embedding-atlas"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(inspected / "path"))
    monkeypatch.setattr(sys, "executable", str(inspected / "nowhere/python"))
    assert main(["explore", str(inspected)]) == 0
    monkeypatch.setattr(sys, "executable", str(inspected / "beside/python"))
    assert main(["explore", str(inspected / "images.parquet")]) == 0
    assert [Path(program).parent.name for program, _ in started] == ["path", "beside"]
    assert [words[1:] for _, words in started] == [atlas_arguments(inspected)] * 2


def test_without_the_program_the_error_says_how_to_install_it(inspected, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(inspected))
    monkeypatch.setattr(sys, "executable", str(inspected / "python"))
    assert main(["explore", str(inspected)]) == 1
    assert "pipx install embedding-atlas" in capsys.readouterr().err


def test_a_missing_file_is_refused(tmp_path, capsys):
    assert main(["explore", str(tmp_path / "nowhere.parquet")]) == 2
    assert "nowhere.parquet" in capsys.readouterr().err
