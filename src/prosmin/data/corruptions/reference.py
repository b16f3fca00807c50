"""Corruptions by imagecorruptions-imaug, on the CPU, image by image.

It draws from numpy's global state, so images go to processes and not to threads, and every image is seeded on
its own: the result is the same in any number of processes. This module imports neither torch nor the library until
it is used, which keeps those processes light.
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

PACKAGE = "imagecorruptions-imaug"
INSTALL = "pip install 'prosmin[corruptions]'"
SMALLEST = 32
"""Its least height and width, in pixels."""

_FEW = 2**22
"""Pixels up to which starting processes takes longer than the work."""
_CHUNK = 2**18
"""Pixels a process is given at once."""

_state = threading.Lock()


def version() -> str | None:
    """The library's version, without importing it; None where it is not installed.

    An older package, imagecorruptions, has the same module and does not work with present versions of numpy.
    """
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return None


def library() -> Any:
    """The library itself. Raises ProsminError where it, or what it needs, is missing."""
    if version() is None:
        raise ProsminError(f"{PACKAGE} is not installed: {INSTALL}.")
    try:
        import imagecorruptions
    except ImportError as error:  # OpenCV's wheel needs libraries of a desktop, which servers often lack
        raise ProsminError(
            f"{PACKAGE} cannot be imported: {error}. Where a library such as libGL is missing, install "
            "opencv-python-headless in the place of opencv-python."
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
    """Images (N, H, W, 3) uint8 with seeds (N, 4), corrupted; `progress` hears how many more are done."""
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
    """A few images, here and now. numpy's global state is afterwards what it was."""
    corruption = library().corruption_dict[name]
    done = np.empty_like(pictures)
    with _state, np.errstate(invalid="ignore"):
        before = np.random.get_state()  # noqa: NPY002  (the library knows no other generator)
        try:
            for i, (picture, seed) in enumerate(zip(pictures, seeds, strict=True)):
                done[i] = _corrupt_one(corruption, picture, severity, seed)
        finally:
            np.random.set_state(before)  # noqa: NPY002
    return done


def _corrupt_one(corruption: Any, picture: np.ndarray, severity: int, seed: np.ndarray) -> np.ndarray:
    from PIL import Image

    np.random.seed(seed)  # noqa: NPY002
    # These two have a generator of their own, which would start from the clock.
    own = corruption.__name__ in ("impulse_noise", "glass_blur")
    values = np.asarray(corruption(Image.fromarray(picture), severity, **({"seed": int(seed[0])} if own else {})))
    if values.dtype.kind == "f":
        # A spatter without a single drop divides 0 by 0, which as a byte is a black image: it is the clean one.
        values = np.where(np.isnan(values), picture, values)
    return values.astype(np.uint8)


@contextmanager
def _processes(count: int) -> Iterator[Callable[[list[tuple]], Iterator[np.ndarray]]]:
    """A function that corrupts tasks in order, in `count` processes; with one, in this one.

    Plain processes that read and write pickles. Those of `multiprocessing` would run the user's script again.
    """
    if count <= 1:
        yield lambda tasks: (corrupt_some(*task) for task in tasks)
        return
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, "-m", "prosmin.data.corruptions.worker"]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | single)
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

    pool = ThreadPoolExecutor(count)
    try:
        yield lambda tasks: pool.map(ask, tasks)
    finally:
        pool.shutdown(cancel_futures=True)
        for process in started:
            process.communicate()  # closes its input, at which it ends


def _ask(process: subprocess.Popen, task: tuple) -> np.ndarray:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        pickle.dump(task, process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
        process.stdin.flush()
        answer = pickle.load(process.stdout)
    except (OSError, EOFError, pickle.UnpicklingError):
        raise ProsminError(
            f"A process that corrupts images ended with status {process.poll()}; its message stands above. "
            "Is there memory enough?"
        ) from None
    if isinstance(answer, ProsminError):
        raise answer
    return answer
