"""Writing files so that a reader, or the next start, never meets half of one."""

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

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM)


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A place beside `path` to write to; renamed onto it when the block ends well, removed when it does not.

    It is this process's own: of two that write the same file at a time the later one wins, and neither is mixed into
    the other. Whoever writes it, it has the permissions that the umask grants: safetensors makes files that only the
    owner reads.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_left(path)
        yield beside
        beside.chmod(_granted())
        flush(beside)
        beside.replace(path)
        flush(path.parent)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):  # where nothing can be written there may be nothing to remove either
            beside.unlink(missing_ok=True)
        raise ProsminError(f"{path} cannot be written: {reason(error)}. {advice(error, path)}") from error
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _remove_left(path: Path) -> None:
    """Remove what processes that were killed have left beside a file."""
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
    except (OSError, OverflowError):  # it is another user's, or no process at all
        return True
    return True


def _granted() -> int:
    """The permissions that the umask grants. Asking os.umask would set it for a moment, for all threads."""
    try:
        told = re.search(r"^Umask:\s*([0-7]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        told = None
    return 0o666 & ~(int(told[1], 8) if told else 0o022)


def check_writable(folder: Path) -> None:
    """Find out before long work whether files can be made in a folder, or the folder itself where it is missing."""
    try:
        place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        with tempfile.TemporaryFile(dir=place) as file:  # which never has a name: nothing is left behind
            file.write(bytes(4096))
    except OSError as error:
        raise ProsminError(f"{folder} cannot be written: {reason(error)}. {advice(error, folder / 'x')}") from error


def reason(error: Exception) -> str:
    """Why a file could not be written, in the system's words where they are known."""
    number = _number(error)
    return str(error) if number is None else os.strerror(number)


def _number(error: Exception) -> int | None:
    told = re.search(r"os error (\d+)", str(error))  # as safetensors tells of it
    return getattr(error, "errno", None) or (int(told[1]) if told else None)


def advice(error: Exception, path: Path) -> str:
    """What helps where `path` could not be written: room, permission, or another place."""
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
        return f"{place} is yours but closed for writing: open it, or choose another folder."
    whose = f"{place} belongs to {_user(owner)} and you are {_user(user)}"
    return f"{whose}: have it opened for you, or choose another folder."


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # a number without a name, as in many containers
        return f"user {number}"


def write_text(path: Path, text: str) -> None:
    """The whole text or nothing."""
    with writing(path) as part:
        part.write_text(text, encoding="utf-8")


def flush(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
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
