"""Folders that are small, broken, hostile or out of reach: a clear message or a correct result."""

import errno
import os
from pathlib import Path

import pytest

from inspecting import encoded, listed, numbered, picture, rows, write_images
from prosmin import files
from prosmin.errors import ProsminError, UsageError
from prosmin.inspect import inspect
from prosmin.inspect import run as running
from prosmin.inspect.store import PARTS, used_alone


class TestFewImages:
    def test_one(self, encoder, tmp_path):
        folder = write_images(tmp_path / "images", ["only.png"])
        findings = inspect(folder, tmp_path / "out", encoder=encoder)
        assert list(rows(tmp_path / "out")) == ["only.png"]
        assert rows(tmp_path / "out")["only.png"]["neighbors"] == {"ids": [], "distances": []}
        assert "ood_score" not in findings.columns
        assert findings.notes

    def test_fewer_than_a_reference_needs(self, encoder, tmp_path):
        folder = write_images(tmp_path / "images", numbered(9))
        assert inspect(folder, tmp_path / "out", encoder=encoder).notes
        assert all(row["ood_score"] is None for row in rows(tmp_path / "out").values())

    def test_one_image_many_times(self, encoder, tmp_path):
        folder = write_images(tmp_path / "images", ["000.png"])
        for name in numbered(20)[1:]:
            (folder / name).write_bytes((folder / "000.png").read_bytes())
        inspect(folder, tmp_path / "out", encoder=encoder)
        assert len({line["group"] for line in listed(tmp_path / "out") if line["kind"] == "exact_duplicate"}) == 1

    @pytest.mark.parametrize("content", [None, b"nonsense"])
    def test_none(self, encoder, tmp_path, content):
        (tmp_path / "images").mkdir()
        if content is not None:
            (tmp_path / "images/a.png").write_bytes(content)
        with pytest.raises(ProsminError, match="images"):
            inspect(tmp_path / "images", tmp_path / "out", encoder=encoder)
        assert not (tmp_path / "out").exists()

    def test_a_missing_folder(self, encoder, tmp_path):
        write_images(tmp_path / "images", ["a.png"])
        with pytest.raises(UsageError, match="Did you mean"):
            inspect(tmp_path / "image", tmp_path / "out", encoder=encoder)


class TestNames:
    def test_hostile_ones(self, encoder, tmp_path):
        names = [
            "a\nb.png",
            "'\".png",
            "<script>alert(1)</script>.png".replace("/", "_"),
            "-rf.png",
            "=cmd.png",
            "$(x).png",
        ]
        folder = write_images(tmp_path / "images", names)
        with open(os.path.join(os.fsencode(folder), b"\xff\xfe.png"), "wb") as file:
            file.write(encoded(picture(50)))
        findings = inspect(folder, tmp_path / "out", encoder=encoder)
        assert set(rows(tmp_path / "out")) == {*names, "\ufffd\ufffd.png"}
        assert set(findings.keys) == {*names, "\udcff\udcfe.png"}  # their bytes are known to the page

    def test_many_files_of_one_name(self, encoder, tmp_path):
        # The number does not matter: an image is known by its path.
        folder = write_images(tmp_path / "images", [f"{i:03d}/image.png" for i in range(200)])
        findings = inspect(folder, tmp_path / "out", encoder=encoder, count=0)
        assert len(set(rows(tmp_path / "out"))) == len(findings) == 200


class TestOut:
    def test_below_a_file(self, encoder, tmp_path):
        folder = write_images(tmp_path / "images", ["a.png"])
        (tmp_path / "file").write_text("")
        with pytest.raises(ProsminError, match="file"):
            inspect(folder, tmp_path / "file/out", encoder=encoder)

    def test_has_files_of_another_program(self, encoder, tmp_path):
        folder = write_images(tmp_path / "images", ["a.png"])
        (tmp_path / "site").mkdir()
        (tmp_path / "site/index.html").write_text("mine")
        with pytest.raises(ProsminError, match=r"index\.html"):
            inspect(folder, tmp_path / "site", encoder=encoder)
        assert (tmp_path / "site/index.html").read_text() == "mine"

    def test_is_used_by_another_process(self, encoder, tmp_path):
        folder = write_images(tmp_path / "images", ["a.png"])
        with used_alone(tmp_path / "out", ("images.parquet",)), pytest.raises(ProsminError, match="out"):
            inspect(folder, tmp_path / "out", encoder=encoder)

    def test_inside_the_folder(self, encoder, tmp_path):
        folder = write_images(tmp_path / "images", numbered(3))
        for _ in range(2):
            assert len(inspect(folder, folder / "out", encoder=encoder)) == 3

    @pytest.mark.parametrize("full", ["part", "images.parquet", "issues.csv", "index.html"])
    def test_on_a_full_disk(self, encoder, tmp_path, monkeypatch, full):
        folder, out = write_images(tmp_path / "images", numbered(3)), tmp_path / "out"
        flush = files.flush

        def refusing(path: Path) -> None:
            if full in path.name and path.is_file() and (full != "part" or PARTS in path.parts):
                raise OSError(errno.ENOSPC, "No space left on device")
            flush(path)

        with monkeypatch.context() as patch:
            patch.setattr(files, "flush", refusing)
            with pytest.raises(ProsminError, match="No space left"):
                inspect(folder, out, encoder=encoder)
        assert not list(out.rglob("*.part"))
        assert len(inspect(folder, out, encoder=encoder)) == 3  # and goes on when there is space


class TestOptions:
    @pytest.mark.parametrize("rate", [0.0, 1.0, -1.0, float("nan")])
    def test_a_rate_that_is_no_share(self, encoder, tmp_path, rate):
        folder = write_images(tmp_path / "images", ["a.png"])
        with pytest.raises(UsageError, match="--false-alarms"):
            inspect(folder, tmp_path / "out", encoder=encoder, false_alarms=rate)

    def test_a_negative_number_of_images(self, encoder, tmp_path):
        folder = write_images(tmp_path / "images", ["a.png"])
        with pytest.raises(UsageError, match="--representative"):
            inspect(folder, tmp_path / "out", encoder=encoder, count=-1)

    def test_a_rate_that_a_small_reference_cannot_give(self, encoder, tmp_path):
        folder, reference = (write_images(tmp_path / name, numbered(12)) for name in ("images", "reference"))
        with pytest.raises(UsageError, match="--false-alarms"):
            inspect(folder, tmp_path / "out", encoder=encoder, reference=reference, false_alarms=0.01)


def test_interrupted_before_the_page(encoder, tmp_path, monkeypatch, capsys):
    folder, out = write_images(tmp_path / "images", numbered(5)), tmp_path / "out"

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(running, "compare", lambda *_, **__: interrupt())
        with pytest.raises(KeyboardInterrupt):
            inspect(folder, out, encoder=encoder)
    assert not (out / "index.html").exists()
    capsys.readouterr()
    inspect(folder, out, encoder=encoder)
    assert "images:" not in capsys.readouterr().out  # no progress: all rows were there
    assert (out / "index.html").exists()
    assert not (out / PARTS).exists()
