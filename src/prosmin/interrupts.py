"""Ctrl-C and SIGTERM in a command: the process tidies up and ends at once, whatever it is doing.

Python's way is a KeyboardInterrupt at a random place. Libraries turn it into other errors, a destructor prints and
forgets it, and C++ code that waits for another process never sees it. Ending at once is safe, because every file is
written so that a killed process leaves it whole or absent; what else has to be done first is registered with
`if_interrupted`. Only the program does this (`prosmin.__main__`): in a notebook Ctrl-C remains a KeyboardInterrupt.
"""

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

MESSAGE = "interrupted; finished work is saved, the same command continues."
PARENT = "PROSMIN_PARENT"
"""In the environment of a process that another process of the same command started: the number of that process."""

PATIENCE = 1.0
"""Seconds that the main thread has to receive a signal; in C++ code it never does, and the watching thread ends it."""

_actions: dict[object, Callable[[], object]] = {}
# Plain values: a signal may arrive while the main thread holds any lock.
_leaving: threading.Thread | None = None
_received = False
_finished: int | None = None


@contextmanager
def if_interrupted(action: Callable[[], object]) -> Iterator[None]:
    """Within the block, a command that is interrupted does this before it ends; the newest action comes first.

    It may run between any two steps of the main thread, so it must not wait for locks. Its errors are not reported.
    """
    if _leaving not in (None, threading.current_thread()):  # this thread starts something new while the process ends
        threading.Event().wait()
    key = object()
    _actions[key] = action
    try:
        yield
    finally:
        _actions.pop(key, None)


def was_received() -> bool:
    """Whether Ctrl-C was pressed: an unexpected error after it is most likely its consequence."""
    return _received


def is_further_process() -> bool:
    """Whether another process of the same command has started this one; that one tells the user what happened."""
    return os.environ.get(PARENT) not in (None, str(os.getpid()))  # its own number while it starts the others


def leave(status: int) -> NoReturn:
    """Tidy up and end this process; it does not return to the code that was interrupted."""
    global _leaving
    this = threading.current_thread()
    if _leaving is None:
        _leaving = this
        for action in reversed(list(_actions.values())):
            with suppress(Exception):
                action()
        _flush(waits=this is not threading.main_thread())
    elif _leaving is not this:
        threading.Event().wait(10 * PATIENCE)  # the other thread ends the process
    os._exit(status)  # at once if this is the second Ctrl-C


def _flush(*, waits: bool) -> None:
    """Write buffered output; another thread than the main one may wait for it here, but not for long."""

    def flush() -> None:
        with suppress(Exception):  # nobody reads it, or the main thread was interrupted in the middle of it
            sys.stdout.flush()

    if waits:
        flushing = threading.Thread(target=flush, daemon=True)
        flushing.start()
        flushing.join(PATIENCE)
    else:
        flush()


def handle_signals() -> None:
    """From now on Ctrl-C and SIGTERM end this process as described above; what it was told to ignore stays ignored."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _receive)
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # runs last: nothing is left to interrupt
    os.register_at_fork(after_in_child=_forget)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reading,), daemon=True, name="prosmin-signals").start()


def finish(status: int) -> None:
    """The command is done: Ctrl-C ends the process without a message and with its own status."""
    global _finished
    _finished = status


def _receive(number: int, frame: FrameType | None) -> NoReturn:
    if _finished is not None:
        leave(_finished)
    if _leaving is None and not is_further_process():
        text = MESSAGE if number == signal.SIGINT else "ended by SIGTERM; finished work is saved."
        shown = "\x1b[?25h\n" if os.isatty(2) else ""  # a progress bar hides the cursor
        with suppress(OSError):
            os.write(2, f"{shown}prosmin: {text}\n".encode())  # not print: the main thread may be in it
    leave(128 + number)


def _watch(reading: int) -> None:
    """End the process where the main thread does not: it may wait in C++ code for something that does not come."""
    global _received
    while byte := os.read(reading, 1):
        number, again = byte[0], _received
        _received = _received or number == signal.SIGINT
        ours = signal.getsignal(number) is _receive
        if ours or (again and number == signal.SIGINT):  # training saves after the first Ctrl-C and then ends
            time.sleep(PATIENCE)
            _receive(number, None)


def _forget() -> None:
    """A forked process has the signals of any other process."""
    _actions.clear()
    signal.set_wakeup_fd(-1)
    for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is _receive:
            signal.signal(number, default)
