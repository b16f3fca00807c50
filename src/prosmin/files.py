"""Writing files so that a reader, or the next start, never finds half of one."""

import errno
import glob
import hashlib
import os
import pwd
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from prosmin.errors import ProsminError
from prosmin.interrupts import if_interrupted

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM)


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A temporary path to write to; renamed to `path` when the block succeeds, removed when it fails.

    Each process has its own: if two write the same file at once, the later one wins and neither is mixed into the
    other. The file gets the permissions of the umask, as safetensors makes files that only the owner can read.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        with if_interrupted(part.unlink):
            yield part
            part.chmod(_umask_mode())
            flush(part)
            part.replace(path)
        flush(path.parent)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):  # it may not exist
            part.unlink(missing_ok=True)
        raise ProsminError(f"{path} cannot be written: {reason(error)}. {advice(error, path)}") from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files of processes that were killed."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        writer = left.name.removesuffix(".part").rpartition(".")[2]
        if writer.isdigit() and not _is_running(int(writer)):
            with suppress(OSError):
                left.unlink()


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's process, or no valid number
        return True
    return True


def _umask_mode() -> int:
    """The permissions of new files. Not by os.umask, which can only be read by setting it, for all threads."""
    try:
        found = re.search(r"^Umask:\s*([0-7]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return 0o666 & ~(int(found[1], 8) if found else 0o022)


def check_writable(folder: Path) -> None:
    """An error, before long work, if files cannot be made in a folder, or the folder itself if it is missing."""
    try:
        place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        with tempfile.TemporaryFile(dir=place) as file:  # without a name: nothing is left behind
            file.write(bytes(4096))
    except OSError as error:
        raise ProsminError(f"{folder} cannot be written: {reason(error)}. {advice(error, folder / 'x')}") from error


def reason(error: Exception) -> str:
    """Why a file could not be written, in the words of the operating system if known."""
    number = _number(error)
    return str(error) if number is None else os.strerror(number)


def _number(error: Exception) -> int | None:
    found = re.search(r"os error (\d+)", str(error))  # in the messages of safetensors
    return getattr(error, "errno", None) or (int(found[1]) if found else None)


def advice(error: Exception, path: Path) -> str:
    """What to do if `path` could not be written."""
    number = _number(error)
    if number in _FULL:
        return "Free some space or choose another folder."
    if number == errno.EFBIG:
        return "Raise the limit on the size of a file, `ulimit -f`, or choose another folder."
    if number not in _FORBIDDEN:
        return "Choose another folder."
    place = next((parent for parent in path.absolute().parents if parent.exists()), path)
    owner, user = place.stat().st_uid, os.geteuid()
    if owner == user:
        return f"{place} is yours but not writable: change its permissions, or choose another folder."
    owners = f"{place} belongs to {_user(owner)} and you are {_user(user)}"
    return f"{owners}: ask for write permission, or choose another folder."


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # no name, as in many containers
        return f"user {number}"


def write_text(path: Path, text: str) -> None:
    """Write the whole text or nothing."""
    with writing(path) as part:
        part.write_text(text, encoding="utf-8")


def flush(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_hash(path: Path) -> str:
    """A hash of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


@contextmanager
def staged(out: Path, *, folder: Path) -> Iterator[Path]:
    """An empty temporary folder; its files move to `folder` when the block succeeds and are removed when it fails."""
    part = out.with_name(f".{out.name}.part")
    new = [parent for parent in part.parents if not parent.exists()]

    def remove() -> None:
        shutil.rmtree(part, ignore_errors=True)
        for parent in new:
            with suppress(OSError):  # not empty if something was written
                parent.rmdir()

    try:
        with if_interrupted(remove):
            shutil.rmtree(part, ignore_errors=True)  # from an export that was killed
            part.mkdir(parents=True)
            yield part
            _move_files(part, folder)
    except (OSError, SafetensorError, ProsminError) as error:
        cause = error.__cause__ if isinstance(error, ProsminError) else error  # `writing` has wrapped it already
        if not isinstance(cause, OSError | SafetensorError):
            raise
        raise ProsminError(f"{out} cannot be written: {reason(cause)}. {advice(cause, out)}") from cause
    finally:
        remove()


def _move_files(part: Path, folder: Path) -> None:
    """Move the files of one folder to another; the card is last, as it describes the others."""
    files = sorted(part.iterdir(), key=lambda file: file.suffix == ".json")
    for file in files:
        flush(file)
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        file.replace(folder / file.name)
    flush(folder)
