"""`prosmin embed` killed and continued, and shared by several processes: the same rows in the end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from prosmin.cli import main
from prosmin.embed import Request, embed, parts, run, stream
from prosmin.embed.parts import Process, this_process
from prosmin.errors import ProsminError
from prosmin.local_processes import Helpers
from started import Started, wait_until

ARGUMENTS = ("--data", "photos@ood", "--reference", "photos@test", "--views", "2")  # 1200 and 840 images


def command(encoder):
    """With a relative --out, since the file has the command in its metadata."""
    return ["embed", str(encoder), "--out", "x.parquet", *ARGUMENTS]


def start(encoder, folder, *more):
    return Started([*command(encoder), *more], folder)


def start_program(encoder, folder, *launcher, more=()):
    """As a shell does, so that a helper starts as fast as the first process."""
    return subprocess.Popen(
        [sys.executable, *launcher, "-m", "prosmin", *command(encoder), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background processes ignore it
    )


@pytest.fixture(scope="module")
def undisturbed(encoder, tmp_path_factory):
    """The bytes of the file that one process writes without interruption."""
    folder = tmp_path_factory.mktemp("undisturbed")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(command(encoder)) == 0
    torch.set_num_threads(before)
    return (folder / "x.parquet").read_bytes()


class TestContinuing:
    def test_killed_twice_it_writes_the_same_bytes(self, encoder, undisturbed, tmp_path, monkeypatch, capsys):
        folder = tmp_path / "x.parquet.parts"
        for goal in ("reference-00000.safetensors", "part-00000.parquet"):
            process = start(encoder, tmp_path)
            wait_until((folder / goal).exists, process)
            process.kill()
            output, _ = process.communicate()
            assert process.returncode == -signal.SIGKILL, output
        there = len(list(folder.glob("part-*")))
        assert there in (1, 2)
        monkeypatch.chdir(tmp_path)
        assert main(command(encoder)) == 0
        printed = capsys.readouterr().out
        assert f"{there} of 3 parts" in printed
        assert "reference:" not in printed  # it is not computed again
        assert (tmp_path / "x.parquet").read_bytes() == undisturbed
        assert [path.name for path in tmp_path.iterdir()] == ["x.parquet"]

    def test_two_processes_write_the_same_bytes(self, encoder, undisturbed, tmp_path):
        process = start_program(
            encoder, tmp_path, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"
        )
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
        assert "share of 1 of 2 processes" in output
        assert (tmp_path / "x.parquet").read_bytes() == undisturbed
        assert [path.name for path in tmp_path.iterdir()] == ["x.parquet"]

    def test_two_processes_without_a_launcher_write_the_same_rows(self, encoder, undisturbed, tmp_path):
        """Killed in the middle, the first one ends the other; then the command continues."""
        folder = tmp_path / "x.parquet.parts"
        process = start_program(encoder, tmp_path, more=("--processes", "2"))
        wait_until((folder / "part-00000.parquet").exists, process)
        process.kill()
        process.communicate()
        process = start(encoder, tmp_path, "--processes", "2")
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
        assert pq.read_table(tmp_path / "x.parquet").equals(pq.read_table(pa.BufferReader(undisturbed)))
        assert [path.name for path in tmp_path.iterdir()] == ["x.parquet"]

    def test_a_helper_that_is_killed_ends_the_command(self, encoder, tmp_path):
        process = start(encoder, tmp_path, "--processes", "2")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until(lambda: children.read_text().split(), process)
        os.kill(int(children.read_text().split()[0]), signal.SIGKILL)
        output, _ = process.communicate(timeout=120)  # unless it checks the helper, it waits forever
        assert process.returncode == 1, output
        assert "SIGKILL" in output

    def test_ctrl_c_ends_the_helper(self, encoder, tmp_path):
        process = start_program(encoder, tmp_path, more=("--processes", "2"))
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until((tmp_path / "x.parquet.parts" / "reference-00000.safetensors").exists, process)
        [helper] = children.read_text().split()
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 130, output
        assert "interrupted" in output
        assert not Path(f"/proc/{helper}").exists()

    def test_images_repaired_in_the_part_of_a_late_process(self, encoder, tmp_path, small_parts, monkeypatch):
        """All parts of an earlier command are there, and the second process has not yet checked its own."""
        pictures = tmp_path / "pictures"
        pictures.mkdir()
        for i in range(300):
            Image.new("RGB", (8, 8), (i % 256, 0, 0)).save(pictures / f"{i:03d}.png")
        good = (pictures / "070.png").read_bytes()
        (pictures / "070.png").write_bytes(b"broken")
        request = Request(data=f"folder:{pictures}", out=tmp_path / "x.parquet", reference="none", views=0, max_bad=0.0)
        with monkeypatch.context() as patch:  # writes all parts and does not join them
            patch.setattr(stream, "check_readable", lambda *_, **__: None)
            with pytest.raises(ProsminError, match=r"070.png"):
                embed(encoder, request)
        (pictures / "070.png").write_bytes(good)
        monkeypatch.setattr(
            run, "this_process", lambda *_: Process(0, 2, 0)
        )  # part 1 is for another process, which never starts
        assert len(pq.read_table(embed(encoder, request))) == 300

    def test_a_process_that_starts_when_the_file_is_finished(self, tmp_path):
        """The first one has removed the folder before this one has the lock."""
        folder = tmp_path / "x.parquet.parts"
        with parts.open_folder(folder, {}, Process(1, 2, 1), finished=lambda: True):
            pass
        assert not folder.exists()

    def test_a_process_writes_only_its_own_parts(self, encoder, specs, tmp_path, small_parts, monkeypatch):
        """The second of three processes does not join the parts."""
        request = Request(data=specs[1], out=tmp_path / "x.parquet", reference="none", views=0)
        monkeypatch.setattr(run, "this_process", lambda *_: Process(1, 3, 1))
        folder = tmp_path / "x.parquet.parts"
        folder.mkdir()
        monkeypatch.setattr(run, "settings_of", lambda *_: {"a": 1})
        (folder / "settings.json").write_text('{"a": 1}')
        embed(encoder, request)
        assert sorted(path.name for path in folder.glob("part-*")) == ["part-00001.parquet", "part-00004.parquet"]
        assert not request.out.exists()
        monkeypatch.setattr(run, "this_process", lambda *_: Process(0, 1, 0))  # alone it writes the rest
        assert len(pq.read_table(embed(encoder, request))) == 300

    def test_finished_it_does_nothing(self, encoder, specs, tmp_path, capsys, monkeypatch):
        request = Request(data=specs[1], out=tmp_path / "x.parquet", reference="none", views=0)
        before = embed(encoder, request).read_bytes()
        capsys.readouterr()
        monkeypatch.setattr(run, "fill", None)
        embed(encoder, request)
        assert "already" in capsys.readouterr().out
        assert request.out.read_bytes() == before


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1, 0)),
        (
            {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8", "RANK": "5", "LOCAL_RANK": "1"},
            (5, 8, 1),
        ),
        ({"SLURM_STEP_NUM_TASKS": "6", "SLURM_PROCID": "4", "SLURM_LOCALID": "1"}, (4, 6, 1)),
        ({"PROSMIN_PROCESS": "1/3", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}, (1, 3, 1)),
    ],
)
def test_which_process_this_is(environment, expected):
    found = this_process(environment, Helpers())
    assert (found.rank, found.world, found.local) == expected
    by_launcher = {"TORCHELASTIC_RUN_ID", "SLURM_STEP_NUM_TASKS"} & environment.keys()
    assert found.launched == (bool(by_launcher) and "PROSMIN_PROCESS" not in environment)
