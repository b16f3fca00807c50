"""`python -m prosmin ...` as a process of its own that need not import torch first: a server that has forks it.

Signals and status are real. What is not: the end of the interpreter, since such a process leaves at once when the
command is done; where that is looked at, the program is started as a shell does.
"""

import atexit
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest

_PROCESSES = multiprocessing.get_context("forkserver")


class Started:
    """A command under way, asked as a subprocess.Popen is; its output is a file, so it never waits for a reader."""

    def __init__(self, words: list[str], folder: Path | None = None) -> None:
        _PROCESSES.set_forkserver_preload(["prosmin.cli", "prosmin.training.pretrain"])
        handle, name = tempfile.mkstemp()
        os.close(handle)
        self._output = Path(name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OMP_NUM_THREADS", "1")  # also for the server, which starts with the first command
            arguments = (words, name, str(folder or Path.cwd()), dict(os.environ))
            self._process = _PROCESSES.Process(target=_command, args=arguments)
            self._process.start()
        atexit.register(self.kill)  # a test that fails leaves nothing that Python would wait for at its end

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def printed(self) -> str:
        """All that it has printed so far."""
        return self._output.read_text()

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """All that it printed, when it has ended; after too long it is killed, and its status tells."""
        self._process.join(timeout)
        if self.poll() is None:
            self.kill()
            self._process.join()
        output = self._output.read_text()
        self._output.unlink()
        return output, None


def _command(words: list[str], output: str, folder: str, environment: dict[str, str]) -> None:
    """What the new process does."""
    handle = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background ignores it
    sys.argv = ["prosmin", *words]
    runpy.run_module("prosmin", run_name="__main__", alter_sys=True)


def wait_until(condition, process, seconds=120):
    end = time.monotonic() + seconds
    while not condition() and process.poll() is None:
        assert time.monotonic() < end, "it neither got there nor ended"
        time.sleep(0.002)
