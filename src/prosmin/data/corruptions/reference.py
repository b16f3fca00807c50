"""Corruptions by imagecorruptions-imaug, on the CPU, image by image.

The library draws from numpy's global state, so images go to processes, not threads, and every image has its own
seed: the result is the same for any number of processes. This module imports neither torch nor, before it is used,
the library, so that the processes start fast.
"""

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import metadata
from queue import SimpleQueue
from typing import Any

import numpy as np

from prosmin.errors import ProsminError
from prosmin.interrupts import if_interrupted

PACKAGE = "imagecorruptions-imaug"
INSTALL = "pip install 'prosmin[corruptions]'"
SMALLEST = 32
"""The smallest height and width that the library allows, in pixels."""

_FEW = 2**22
"""Pixels up to which starting processes takes longer than the work."""
_CHUNK = 2**18
"""Pixels per task."""

_state = threading.Lock()


def version() -> str | None:
    """The library's version, without importing it; None if it is not installed.

    The older package imagecorruptions has a module of the same name and does not work with current numpy.
    """
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return None


def library() -> Any:
    """The library. Raises ProsminError if it, or a package that it needs, is missing."""
    if version() is None:
        raise ProsminError(f"{PACKAGE} is not installed: {INSTALL}.")
    try:
        import imagecorruptions
    except ImportError as error:  # OpenCV's wheel needs desktop libraries, which servers often lack
        raise ProsminError(
            f"{PACKAGE} cannot be imported: {error}. If a library such as libGL is missing, install "
            "opencv-python-headless instead of opencv-python."
        ) from None
    return imagecorruptions


def corrupt_arrays(
    pictures: np.ndarray,
    name: str,
    severity: int,
    seeds: np.ndarray,
    *,
    workers: int,
    progress: Callable[[int], None] = lambda done: None,
) -> np.ndarray:
    """Images (N, H, W, 3) uint8 with seeds (N, 4), corrupted; `progress` gets the number just finished."""
    pixels = pictures.shape[1] * pictures.shape[2]
    step = max(1, _CHUNK // pixels)
    tasks = [
        (pictures[start : start + step], name, severity, seeds[start : start + step])
        for start in range(0, len(pictures), step)
    ]
    parts: list[np.ndarray] = []
    with _processes(min(workers, len(tasks)) if len(pictures) * pixels > _FEW else 1) as work:
        for part in work(tasks):
            parts.append(part)
            progress(len(part))
    return np.concatenate(parts)


def corrupt_some(pictures: np.ndarray, name: str, severity: int, seeds: np.ndarray) -> np.ndarray:
    """A few images, in this process. numpy's global state is restored afterwards."""
    corruption = library().corruption_dict[name]
    done = np.empty_like(pictures)
    with _state, np.errstate(invalid="ignore"):
        before = np.random.get_state()  # noqa: NPY002  (the library has no other generator)
        try:
            for i, (picture, seed) in enumerate(zip(pictures, seeds, strict=True)):
                done[i] = _corrupt_one(corruption, picture, severity, seed)
        finally:
            np.random.set_state(before)  # noqa: NPY002
    return done


def _corrupt_one(corruption: Any, picture: np.ndarray, severity: int, seed: np.ndarray) -> np.ndarray:
    from PIL import Image

    np.random.seed(seed)  # noqa: NPY002
    # These two have a separate generator, which would be seeded from the clock.
    seeded = corruption.__name__ in ("impulse_noise", "glass_blur")
    values = np.asarray(corruption(Image.fromarray(picture), severity, **({"seed": int(seed[0])} if seeded else {})))
    if values.dtype.kind == "f":
        # A spatter without drops divides 0 by 0, which would become a black image instead of the clean one.
        values = np.where(np.isnan(values), picture, values)
    return values.astype(np.uint8)


@contextmanager
def _processes(count: int) -> Iterator[Callable[[list[tuple]], Iterator[np.ndarray]]]:
    """A function that works through tasks in order, in `count` processes; a count of 1 means this process.

    Plain processes that exchange pickles: `multiprocessing` would run the user's script again.
    """
    if count <= 1:
        yield lambda tasks: (corrupt_some(*task) for task in tasks)
        return
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, "-m", "prosmin.data.corruptions.worker"]
    pipe = subprocess.PIPE
    started = [  # each in a group of its own, which Ctrl-C does not reach: it ends when its input does
        subprocess.Popen(command, stdin=pipe, stdout=pipe, env=os.environ | single, process_group=0)
        for _ in range(count)
    ]
    idle: SimpleQueue[subprocess.Popen] = SimpleQueue()
    for process in started:
        idle.put(process)

    def ask(task: tuple) -> np.ndarray:
        process = idle.get()
        try:
            return _ask(process, task)
        finally:
            idle.put(process)

    def kill() -> None:
        for process in started:
            process.kill()

    pool = ThreadPoolExecutor(count)
    try:
        with if_interrupted(kill):
            yield lambda tasks: pool.map(ask, tasks)
    finally:
        pool.shutdown(cancel_futures=True)
        for process in started:
            process.communicate()  # closes its input, which ends it


def _ask(process: subprocess.Popen, task: tuple) -> np.ndarray:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        pickle.dump(task, process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
        process.stdin.flush()
        answer = pickle.load(process.stdout)
    except (OSError, EOFError, pickle.UnpicklingError):
        raise ProsminError(
            f"A process that corrupts images ended with status {process.poll()}; its message is printed above. "
            "Check that there is enough memory."
        ) from None
    if isinstance(answer, ProsminError):
        raise answer
    return answer
