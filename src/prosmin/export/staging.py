"""Files that belong together, written to the side: all of them appear, or none."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from prosmin.errors import ProsminError
from prosmin.files import advice, flush, reason


@contextmanager
def staged(out: Path, *, folder: Path) -> Iterator[Path]:
    """An empty folder beside `out`; its files move to `folder` when the block ends well, else they are removed."""
    part = out.with_name(f".{out.name}.part")
    new = [parent for parent in part.parents if not parent.exists()]
    try:
        shutil.rmtree(part, ignore_errors=True)  # of an export that was killed
        part.mkdir(parents=True)
        yield part
        files = sorted(part.iterdir(), key=lambda file: file.suffix == ".json")  # the card last: it vouches for them
        for file in files:
            flush(file)
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            file.replace(folder / file.name)
        flush(folder)
    except (OSError, SafetensorError, ProsminError) as error:
        cause = error.__cause__ if isinstance(error, ProsminError) else error  # of a single file it is told already
        if not isinstance(cause, OSError | SafetensorError):
            raise
        raise ProsminError(f"{out} cannot be written: {reason(cause)}. {advice(cause, out)}") from cause
    finally:
        shutil.rmtree(part, ignore_errors=True)
        for parent in new:
            with suppress(OSError):  # it is empty only where nothing was written
                parent.rmdir()
