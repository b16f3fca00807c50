"""What `prosmin embed` refuses, and that nothing is lost by it."""

import json
import resource

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coloured import coloured
from embedding import stop_before_joining, write_parquet
from prosmin.cli import main
from prosmin.embed import Request, embed, run
from prosmin.embed import request as requests
from prosmin.encoder import load, untrained
from prosmin.errors import ProsminError, UsageError
from tiny_methods import tiny_method


class TestRefusals:
    def test_a_finished_file_whose_images_were_replaced(self, encoder, tmp_path):
        """The same names, other sizes."""
        spec = write_parquet(tmp_path / "new.parquet", 30, seed=2)
        request = Request(data=spec, out=tmp_path / "x.parquet", reference="none", views=0)
        before = embed(encoder, request).read_bytes()
        write_parquet(tmp_path / "new.parquet", 30, seed=3)
        with pytest.raises(ProsminError, match=r"x\.parquet was written from other files.*--out"):
            embed(encoder, request)
        assert request.out.read_bytes() == before

    def test_other_settings(self, encoder, specs, tmp_path, small_parts, monkeypatch):
        request = Request(data=specs[1], out=tmp_path / "x.parquet", reference="none", views=0)
        stop_before_joining(encoder, request, monkeypatch)
        other = Request(data=specs[0], out=request.out, reference=specs[0], views=2)
        message = (
            r"other settings[^$]*data: parquet:.*new.parquet -> parquet:.*own.parquet[^$]*300 -> 400[^$]*views: 0 -> 2"
        )
        with pytest.raises(ProsminError, match=r"x\.parquet\.parts " + "[^$]*" + message):
            embed(encoder, other)
        embed(encoder, request)
        with pytest.raises(ProsminError, match=r"x\.parquet " + "[^$]*" + message):
            embed(encoder, other)

    def test_a_file_with_another_uncertainty(self, encoder, tmp_path, monkeypatch):
        """Of another formula, or without --reference of other known images: a file must not mix them."""
        own = load(encoder).fit_reference(coloured(12, seed=5).images).save(tmp_path / "encoder")
        spec = write_parquet(tmp_path / "new.parquet", 30, seed=2)
        alone, compared = (
            Request(data=spec, out=tmp_path / f"{name}.parquet", reference=given, views=0)
            for name, given in (("alone", "none"), ("compared", spec))
        )
        stop_before_joining(own, alone, monkeypatch)
        embed(own, compared)
        load(own).fit_reference(coloured(12, seed=6).images).save(own)
        with pytest.raises(ProsminError, match=r"alone\.parquet\.parts [^$]*uncertainty: [^$]*12 images"):
            embed(own, alone)
        embed(own, compared)
        monkeypatch.setattr(requests, "UNCERTAINTY", "by another formula")
        with pytest.raises(ProsminError, match=r"compared\.parquet [^$]*uncertainty: [^$]* -> by another formula"):
            embed(own, compared)

    def test_a_file_of_another_program_stays(self, encoder, specs, tmp_path):
        pq.write_table(pa.table({"a": [1]}), tmp_path / "x.parquet")
        before = (tmp_path / "x.parquet").read_bytes()
        with pytest.raises(ProsminError, match=r"x\.parquet exists"):
            embed(encoder, Request(data=specs[1], out=tmp_path / "x.parquet"))
        assert (tmp_path / "x.parquet").read_bytes() == before

    def test_two_commands_do_not_write_one_file(self, encoder, specs, tmp_path, monkeypatch):
        request = Request(data=specs[1], out=tmp_path / "x.parquet", reference="none")

        def again(*_):
            with pytest.raises(ProsminError, match="Another process is writing to"):
                embed(encoder, request)
            raise ProsminError("seen")

        monkeypatch.setattr(run, "_write_rows", again)
        with pytest.raises(ProsminError, match="seen"):
            embed(encoder, request)
        assert list(tmp_path.iterdir()) == []

    def test_a_damaged_part_is_named(self, encoder, specs, tmp_path, small_parts, monkeypatch):
        request = Request(data=specs[1], out=tmp_path / "x.parquet", reference="none", views=0)
        stop_before_joining(encoder, request, monkeypatch)
        part = tmp_path / "x.parquet.parts" / "part-00002.parquet"
        part.write_bytes(part.read_bytes()[:-20])
        with pytest.raises(ProsminError, match=r"part-00002\.parquet is damaged.*Remove"):
            embed(encoder, request)
        part.unlink()
        assert len(pq.read_table(embed(encoder, request))) == 300

    @pytest.mark.parametrize(
        ("options", "status", "words"),
        [
            (["--out", "x.csv"], 2, "a file named *.parquet"),
            (["--out", "x.parquet", "--false-alarms", "1"], 2, "a share above 0 and below 1"),
            (["--out", "x.parquet", "--reference", "none", "--false-alarms", "0.01"], 2, "--reference none"),
            (["--out", "x.parquet", "--views", "1"], 2, "2 or more, or 0"),
            (["--out", "x.parquet", "--batch", "0"], 2, "1 to 512"),
            (["--out", "x.parquet", "--batch", "513"], 2, "1 to 512"),
            (["--out", "x.parquet", "--max-bad", "2"], 2, "a share from 0 to 1"),
            (["--out", "x.parquet", "--precision", "half"], 2, "32-true, bf16-mixed"),
            (["--out", "x.parquet", "--data", "nowhere"], 2, "nowhere"),
            (["--out", "x.parquet", "--reference", "folder:nowhere"], 2, "nowhere"),
            (["--out", "x.parquet", "--training.epochs", "2"], 2, "--training.epochs"),
        ],
    )
    def test_wrong_options(self, encoder, tmp_path, monkeypatch, capsys, options, status, words):
        monkeypatch.chdir(tmp_path)
        data = [] if "--data" in options else ["--data", "photos@test"]
        assert main(["embed", str(encoder), *data, *options]) == status
        printed = capsys.readouterr().err
        assert words in printed
        assert printed.startswith("prosmin: ")
        assert list(tmp_path.iterdir()) == []

    def test_out_is_a_folder(self, encoder, tmp_path, capsys):
        (tmp_path / "x.parquet").mkdir()
        assert main(["embed", str(encoder), "--data", "photos@test", "--out", str(tmp_path / "x.parquet")]) == 2
        assert f"--out {tmp_path}/x.parquet is a folder" in capsys.readouterr().err

    @pytest.mark.parametrize(("reference", "file"), [("own", "reference-00000.safetensors"), ("none", ".parquet")])
    def test_files_larger_than_allowed(self, encoder, specs, tmp_path, capsys, reference, file):
        """As under `ulimit -f 8`: safetensors and pyarrow raise different errors."""
        request = ["--data", specs[1], "--reference", specs[0] if reference == "own" else "none"]
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
        try:
            assert main(["embed", str(encoder), *request, "--out", str(tmp_path / "x.parquet")]) == 1
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        printed = capsys.readouterr().err
        assert all(words in printed for words in (file, "File too large", "`ulimit -f`"))
        assert "unexpected" not in printed
        assert not (tmp_path / "x.parquet").exists()

    def test_a_card_without_its_weights(self, encoder, specs, tmp_path, capsys):
        """An incomplete copy, and a folder of results, which never has weights."""
        card = json.loads((encoder / "encoder.json").read_text())
        (tmp_path / "half").mkdir()
        (tmp_path / "half" / "encoder.json").write_text(json.dumps(card))
        command = ["embed", str(tmp_path / "half"), "--data", specs[1], "--out", str(tmp_path / "x.parquet")]
        assert main(command) == 1
        assert "half has a card encoder.json but not its weights encoder.safetensors" in capsys.readouterr().err
        (tmp_path / "half" / "encoder.json").write_text(json.dumps(card | {"run": "/data/run"}))
        assert main(command) == 1
        assert "/data/run" in capsys.readouterr().err

    @pytest.mark.parametrize(("spec", "hint"), [("folder:gone", "relative"), ("folder:/gone", "")])
    def test_missing_training_images(self, specs, tmp_path, spec, hint):
        """A relative path is that of the directory of the training, which the command cannot know."""
        folder = untrained(tiny_method("prosmin", data__spec=spec)).save(tmp_path / "encoder")
        request = Request(data=specs[1], out=tmp_path / "x.parquet")
        with pytest.raises(UsageError, match=rf"{spec}.*{hint}.*--reference SPEC.*--reference none"):
            embed(folder, request)
