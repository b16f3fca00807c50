"""`prosmin calibrate` with bad input, on a full disk, interrupted and continued."""

import errno
import json
import shutil
import signal
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file
from torch import nn

import prosmin
from embedding import write_folder, write_parquet
from prosmin import files
from prosmin.calibrate import Request, calibrate, heads, run, views
from prosmin.cli import main
from prosmin.data.sources.folder import FolderSource
from prosmin.embed import parts
from prosmin.encoder import untrained
from prosmin.errors import ProsminError, UsageError
from started import Started, wait_until
from tiny_methods import tiny_method


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def stopped(encoder, request, monkeypatch, command=""):
    """All features are written, then it fails."""
    with monkeypatch.context() as patch:
        patch.setattr(run, "_fit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            calibrate(encoder, request, command=command)
    assert (request.out / "views.parts").exists()


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of 32 images."""
    monkeypatch.setattr(parts, "PART", 32)
    monkeypatch.setattr(views, "PART", 32)


class TestEncoders:
    def test_a_network_without_pooled_features(self, foreign, data, tmp_path, monkeypatch):
        """Such as one that returns a map of features."""
        create = timm.create_model
        monkeypatch.setattr(timm, "create_model", lambda *given, **more: create(*given, **more, global_pool=""))
        with pytest.raises(ProsminError, match=r"gives \(1, 96, 5, 5\) for one image; allowed: one vector") as error:
            calibrate(foreign, Request(data=data, out=tmp_path / "out"))
        assert "pooled features" in str(error.value)
        assert not (tmp_path / "out").exists()

    def test_weights_of_another_architecture(self, weights, data, tmp_path, capsys):
        assert main(["calibrate", f"timm:test_vit@{weights}", "--data", data, "--out", str(tmp_path / "out")]) == 1
        assert "Choose the network that the file was made with" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()

    def test_features_that_are_not_finite(self, data, tmp_path):
        network = timm.create_model("test_resnet", num_classes=0)
        nn.init.constant_(network.conv1[0].weight, 3e38)  # finite, but no sum of two is
        torch.save(network.state_dict(), tmp_path / "large.pth")
        with pytest.raises(ProsminError, match=r"features of .* are not finite .* Check its weights"):
            calibrate(f"timm:test_resnet@{tmp_path / 'large.pth'}", Request(data=data, out=tmp_path / "out"))
        assert not (tmp_path / "out").exists()

    def test_features_of_some_images_that_are_not_finite(self, dino, data, tmp_path, monkeypatch, small_parts):
        """The finite ones of other parts are not kept: the corrected command would refuse them."""
        made = views.view_features

        def damaged(encoder, batch, **more):
            return made(encoder, batch, **more).masked_fill((batch.index >= 64)[:, None, None], torch.nan)

        monkeypatch.setattr(views, "view_features", damaged)
        with pytest.raises(ProsminError, match="not finite"):
            calibrate(dino, Request(data=data, out=tmp_path / "out", views=2))
        assert not (tmp_path / "out").exists()

    def test_features_that_differ_by_rounding_alone(self, dino, data, tmp_path, monkeypatch):
        request = Request(data=data, out=tmp_path / "out", views=2)
        with monkeypatch.context() as patch:
            patch.setattr(heads, "CONSTANT", 1e9)
            with pytest.raises(ProsminError, match="same for all images"):
                calibrate(dino, request)
        assert not (tmp_path / "out").exists()
        assert calibrate(dino, Request(data=data, out=tmp_path / "out", views=3))["views"] == 3  # another command

    def test_one_that_is_calibrated_already(self, dino, data, tmp_path):
        calibrate(dino, Request(data=data, out=tmp_path / "out", views=2))
        with pytest.raises(UsageError, match="calibrated already"):
            calibrate(tmp_path / "out", Request(data=data, out=tmp_path / "again"))

    def test_an_encoder_that_does_not_exist(self, data, tmp_path):
        with pytest.raises(ProsminError, match="is not a run folder"):
            calibrate(tmp_path / "nothing", Request(data=data, out=tmp_path / "out"))


class TestPlaces:
    def test_the_current_folder(self, dino, data, tmp_path, monkeypatch):
        """Nothing is written beside the folder: its parent may be another file system, or not writable."""
        out, write, made = tmp_path / "out", run.write_encoder, []
        out.mkdir()
        monkeypatch.chdir(out)
        monkeypatch.setattr(
            run, "write_encoder", lambda part, *given, **more: made.append(part) or write(part, *given, **more)
        )
        calibrate(dino, Request(data=data, out=Path("."), views=2))
        assert set(bytes_of(out)) == {"encoder.json", "encoder.safetensors", "background.safetensors"}
        assert made[0].parent.resolve() == out

    def test_weights_that_were_truncated_are_made_again(self, dino, data, tmp_path, capsys):
        request = Request(data=data, out=tmp_path / "out", views=2)
        calibrate(dino, request)
        weights = tmp_path / "out/encoder.safetensors"
        before = weights.read_bytes()
        weights.write_bytes(before[:-8])
        calibrate(dino, request)
        assert "was changed or truncated" in capsys.readouterr().out
        assert weights.read_bytes() == before
        calibrate(dino, request)
        assert "has already been written" in capsys.readouterr().out

    def test_the_folder_of_a_run(self, dino, data):
        before = bytes_of(dino)
        with pytest.raises(UsageError, match="whose encoder would be lost"):
            calibrate(dino, Request(data=data, out=dino))
        assert bytes_of(dino) == before

    def test_a_file(self, dino, data, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(UsageError, match="is a file"):
            calibrate(dino, Request(data=data, out=tmp_path / "file"))

    def test_a_folder_with_other_files(self, dino, data, tmp_path):
        (tmp_path / "precious").mkdir()
        (tmp_path / "precious/encoder.safetensors").write_bytes(b"of somebody")
        with pytest.raises(UsageError, match="other files"):
            calibrate(dino, Request(data=data, out=tmp_path / "precious"))
        assert bytes_of(tmp_path / "precious") == {"encoder.safetensors": b"of somebody"}

    @pytest.mark.parametrize("seed", [-1, 2**63])
    def test_a_seed_that_is_none(self, tmp_path, seed):
        with pytest.raises(UsageError, match="--seed"):
            Request(data="photos", out=tmp_path / "out", seed=seed)

    def test_a_result_of_other_settings(self, dino, data, tmp_path):
        calibrate(dino, Request(data=data, out=tmp_path / "out", views=2))
        before = bytes_of(tmp_path / "out")
        with pytest.raises(ProsminError, match=r"seed: 0 -> 1\nGive another folder with --out"):
            calibrate(dino, Request(data=data, out=tmp_path / "out", views=2, seed=1))
        assert bytes_of(tmp_path / "out") == before


class TestImages:
    def test_too_few(self, dino, tmp_path):
        with pytest.raises(ProsminError, match="has 40 images; allowed: 100 or more"):
            calibrate(dino, Request(data=write_folder(tmp_path / "few", 40), out=tmp_path / "out"))
        assert not (tmp_path / "out").exists()

    def test_unreadable_ones_are_left_out_and_named(self, dino, tmp_path, capsys):
        spec = write_folder(tmp_path / "images", 120, broken=(3, 70))
        request = Request(data=spec, out=tmp_path / "out", views=2, max_bad=0.1)
        assert calibrate(dino, request)["held_out"]["images"] == 10
        assert "003.png" in capsys.readouterr().err

    def test_too_many_unreadable_ones(self, dino, tmp_path):
        spec = write_folder(tmp_path / "images", 120, broken=(3, 70))
        for out in (tmp_path / "new" / "out", tmp_path / "empty"):
            if out.name == "empty":
                out.mkdir()
            with pytest.raises(ProsminError, match="--max-bad"):
                calibrate(dino, Request(data=spec, out=out, views=2, max_bad=0.01))
        assert not (tmp_path / "new").exists()
        assert not list((tmp_path / "empty").iterdir())  # the user made it

    def test_unreadable_ones_in_parts_of_an_earlier_command_count(
        self, dino, tmp_path, monkeypatch, small_parts, capsys
    ):
        """One of 120 images in the first part, another in the third."""
        spec = write_folder(tmp_path / "images", 120, broken=(3, 70))
        some, few = (Request(data=spec, out=tmp_path / "out", views=2, max_bad=share) for share in (0.1, 0.01))
        stopped(dino, some, monkeypatch)
        with pytest.raises(ProsminError, match="At least 2 of 120 images"):
            calibrate(dino, few)
        (tmp_path / "out/views.parts/views-00002.safetensors").unlink()
        with pytest.raises(ProsminError, match="At least 2 of 120 images"):
            calibrate(dino, few)
        capsys.readouterr()
        calibrate(dino, some)
        output = capsys.readouterr().err
        assert "003.png" in output
        assert "070.png" in output

    def test_one_that_is_readable_by_now_is_used(self, dino, tmp_path, monkeypatch):
        """A disk of the network failed once."""
        request = Request(data=write_folder(tmp_path / "images", 120), out=tmp_path / "out", views=2)
        read = FolderSource.read

        def failing(source, i):
            if i == 3:
                raise OSError(errno.EIO, "Input/output error")
            return read(source, i)

        with monkeypatch.context() as patch:
            patch.setattr(FolderSource, "read", failing)
            stopped(dino, request, monkeypatch)
        part = tmp_path / "out/views.parts/views-00000.safetensors"
        assert len(load_file(part)["numbers"]) == 119
        stopped(dino, request, monkeypatch)
        assert len(load_file(part)["numbers"]) == 120

    def test_too_few_readable_ones(self, dino, tmp_path):
        spec = write_folder(tmp_path / "images", 120, broken=range(30))
        with pytest.raises(ProsminError, match=r"has 90 different readable images; allowed: 100 or more"):
            calibrate(dino, Request(data=spec, out=tmp_path / "out", views=2, max_bad=0.5))
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize("count", [1, 90])
    def test_too_few_different_ones(self, dino, tmp_path, count):
        spec = write_folder(tmp_path / "images", count)
        for i in range(110 - count):
            shutil.copy(tmp_path / f"images/{i % count:03d}.png", tmp_path / f"images/copy-{i:03d}.png")
        with pytest.raises(ProsminError, match=rf"has {count} different readable images; .*Copies count once"):
            calibrate(dino, Request(data=spec, out=tmp_path / "out", views=2))
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("images", 99),
            ("views", 1),
            ("views", 101),
            ("batch", 0),
            ("batch", 513),
            ("max_bad", 1.5),
            ("precision", "half"),
        ],
    )
    def test_options_out_of_range(self, data, tmp_path, field, value):
        with pytest.raises(UsageError, match=f"--{field.replace('_', '-')} is .*; allowed: "):
            Request(data=data, out=tmp_path, **{field: value})

    def test_a_precision_for_a_gpu_without_one(self, dino, data, tmp_path, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(UsageError, match=r"bf16-mixed, which needs a GPU.*allowed on a CPU: 32-true"):
            calibrate(dino, Request(data=data, out=tmp_path / "out", precision="bf16-mixed"))
        assert not (tmp_path / "out").exists()


class TestContinuing:
    def test_features_of_another_encoder_are_refused(self, dino, foreign, data, tmp_path, monkeypatch):
        request = Request(data=data, out=tmp_path / "out", views=2)
        stopped(dino, request, monkeypatch)
        with pytest.raises(ProsminError, match=r"(?s)other settings .*\n  encoder: .*\nGive another folder"):
            calibrate(foreign, request)

    def test_an_unfinished_one_says_how_to_finish_it(self, dino, data, tmp_path, monkeypatch):
        request = Request(data=data, out=tmp_path / "out", views=2)
        for command, remedy in (
            ("", "prosmin calibrate RUN"),
            ("prosmin calibrate x --data y", "calibrate x --data y"),
        ):
            stopped(dino, request, monkeypatch, command=command)
            with pytest.raises(ProsminError, match=f"out has not finished.*`.*{remedy}.*` continues it"):
                prosmin.load(tmp_path / "out")

    def test_features_of_other_views_are_refused(self, dino, data, tmp_path, monkeypatch):
        """The same weights, whose card has another size of the crops."""
        request = Request(data=data, out=tmp_path / "out", views=2)
        stopped(dino, request, monkeypatch)
        config = tiny_method("dino", views__global_size="16", views__global_scale="[0.7, 1.0]")
        other = untrained(config).save(tmp_path / "other")
        assert json.loads((other / "encoder.json").read_text())["hash"] == json.loads(
            (dino / "encoder.json").read_text()
        )["hash"]  # fmt: skip
        with pytest.raises(ProsminError, match=r"\n  view_settings: "):
            calibrate(other, request)

    def test_features_of_other_images_are_refused(self, dino, tmp_path, monkeypatch):
        spec = write_parquet(tmp_path / "x.parquet", 120, seed=1)
        request = Request(data=spec, out=tmp_path / "out", views=2)
        stopped(dino, request, monkeypatch)
        write_parquet(tmp_path / "x.parquet", 120, seed=2)
        with pytest.raises(ProsminError, match=r"\n  files: "):
            calibrate(dino, request)

    def test_it_goes_on_from_finished_parts_to_the_same_bits(self, dino, data, tmp_path, monkeypatch, small_parts):
        calibrate(dino, Request(data=data, out=tmp_path / "whole", views=2))
        request = Request(data=data, out=tmp_path / "out", views=2)
        stopped(dino, request, monkeypatch)
        (tmp_path / "out/views.parts/views-00001.safetensors").unlink()
        calibrate(dino, request)
        for name in ("encoder.json", "encoder.safetensors"):
            assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
        first, second = (load_file(tmp_path / name / "background.safetensors") for name in ("whole", "out"))
        assert all(torch.equal(first[name], second[name]) for name in first)  # its metadata have no fixed order

    def test_parts_that_a_killed_command_left_are_removed(self, dino, data, tmp_path, monkeypatch):
        """It was killed when the encoder was written and its parts were not yet removed."""
        request = Request(data=data, out=tmp_path / "out", views=2)
        with monkeypatch.context() as patch:
            patch.setattr(run.shutil, "rmtree", lambda *_, **__: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                calibrate(dino, request)
        assert (request.out / "views.parts").exists()
        calibrate(dino, request)
        assert not (request.out / "views.parts").exists()

    def test_on_a_full_disk(self, dino, data, tmp_path, monkeypatch, small_parts):
        request, flush = Request(data=data, out=tmp_path / "out", views=2), files.flush

        def refusing(path: Path) -> None:
            if path.is_file() and "views-00002" in path.name:
                raise OSError(errno.ENOSPC, "No space left on device")
            flush(path)

        with monkeypatch.context() as patch:
            patch.setattr(files, "flush", refusing)
            with pytest.raises(ProsminError, match=r"No space left on device\. Free some space"):
                calibrate(dino, request)
        kept = sorted(path.name for path in (tmp_path / "out/views.parts").glob("views-*"))
        assert "views-00000.safetensors" in kept
        assert "views-00002.safetensors" not in kept
        assert calibrate(dino, request)["images"] == 120  # and goes on when there is space

    def test_a_damaged_part_is_named(self, dino, data, tmp_path, monkeypatch):
        request = Request(data=data, out=tmp_path / "out", views=2)
        stopped(dino, request, monkeypatch)
        (tmp_path / "out/views.parts/views-00000.safetensors").write_bytes(b"half")
        with pytest.raises(ProsminError, match=r"views-00000.safetensors cannot be read: .* Remove it"):
            calibrate(dino, request)

    def test_after_ctrl_c_the_same_command_goes_on(self, dino, tmp_path):
        command = ["calibrate", str(dino), "--data", "photos@train", "--out", "out", "--images", "1600", "--views", "2"]
        process = Started(command, tmp_path)
        wait_until((tmp_path / "out/views.parts/views-00000.safetensors").exists, process)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(60)
        assert process.returncode == 130, output
        assert "interrupted" in output
        assert not (tmp_path / "out/encoder.json").exists()
        process = Started(command, tmp_path)
        output, _ = process.communicate(300)
        assert process.returncode == 0, output
        assert "parts are written" in output
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
            "background.safetensors", "encoder.json", "encoder.safetensors",
        ]  # fmt: skip
