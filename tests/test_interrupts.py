"""What Ctrl-C and SIGTERM do to the program, in small programs that need no torch."""

import os
import signal
import subprocess
import sys
import textwrap
from contextlib import contextmanager

import pytest

from prosmin.interrupts import MESSAGE

HEAD = """
import os, signal, sys, threading, time
from prosmin.interrupts import finish, handle_signals, if_interrupted

def say(text):
    os.write(1, f"{text}\\n".encode())

handle_signals()
"""
SECONDS = 60
"""A program that takes longer does not end."""


@contextmanager
def running(body, *, ignored=False, **variables):
    """The program, when it has said that it is ready; it is killed at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD + textwrap.dedent(body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"} | variables,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.SIG_DFL),
    )
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def interrupted(body, number=signal.SIGINT, **variables):
    """Status, output and messages of the program after one signal."""
    with running(body, **variables) as process:
        process.send_signal(number)
        output, messages = process.communicate(timeout=SECONDS)
        return process.returncode, output.split(), messages


def test_the_newest_action_comes_first_and_a_failing_one_stops_no_other():
    status, output, messages = interrupted("""
        with if_interrupted(lambda: say("oldest")), if_interrupted(lambda: 1 / 0), if_interrupted(lambda: say("new")):
            with if_interrupted(lambda: say("over")):
                pass
            say("ready")
            time.sleep(600)
    """)
    assert (status, output, messages) == (130, ["new", "oldest"], f"prosmin: {MESSAGE}\n")


def test_buffered_output_is_kept():
    status, output, _ = interrupted('print("kept"); say("ready"); time.sleep(600)')
    assert (status, output) == (130, ["kept"])


def test_a_library_that_catches_everything_is_ended_too():
    status, _, messages = interrupted("""
        say("ready")
        while True:
            try:
                time.sleep(600)
            except BaseException:
                pass
    """)
    assert (status, messages) == (130, f"prosmin: {MESSAGE}\n")


@pytest.mark.skipif(sys.platform != "linux", reason="needs a mutex that is free when all of its bytes are 0")
def test_code_that_never_returns_to_python_is_ended_too():
    """The second lock waits in C for what does not come, and no signal ends the wait."""
    status, output, messages = interrupted("""
        import ctypes
        mutex, c = ctypes.create_string_buffer(64), ctypes.CDLL(None)
        with if_interrupted(lambda: say("tidied")):
            c.pthread_mutex_lock(mutex)
            print("kept")
            say("ready")
            c.pthread_mutex_lock(mutex)
    """)
    assert (status, output, messages) == (130, ["tidied", "kept"], f"prosmin: {MESSAGE}\n")


def test_a_second_ctrl_c_does_not_wait_for_the_actions():
    with running("""
        with if_interrupted(lambda: (say("tidies"), time.sleep(600))):
            say("ready")
            time.sleep(600)
    """) as process:
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "tidies\n"
        process.send_signal(signal.SIGINT)
        _, messages = process.communicate(timeout=SECONDS)
        assert (process.returncode, messages) == (130, f"prosmin: {MESSAGE}\n")


def test_an_action_that_never_ends_ends_with_the_program():
    status, _, _ = interrupted("""
        import prosmin.interrupts
        prosmin.interrupts.PATIENCE = 0.05
        with if_interrupted(lambda: time.sleep(600)):
            say("ready")
            time.sleep(600)
    """)
    assert status == 130


def test_an_action_may_write_files_which_have_actions_of_their_own(tmp_path):
    status, _, _ = interrupted(f"""
        from pathlib import Path
        from prosmin.files import write_text
        with if_interrupted(lambda: write_text(Path({str(tmp_path / "end.txt")!r}), "whole")):
            say("ready")
            time.sleep(600)
    """)
    assert status == 130
    assert [path.read_text() for path in tmp_path.iterdir()] == ["whole"]


def test_a_file_that_is_being_written_is_removed(tmp_path):
    (tmp_path / "old.txt").write_text("old")
    status, _, _ = interrupted(f"""
        from pathlib import Path
        from prosmin.files import writing
        with writing(Path({str(tmp_path / "old.txt")!r})) as part:
            part.write_text("ne")
            say("ready")
            time.sleep(600)
    """)
    assert status == 130
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"old.txt": "old"}


def test_sigterm_has_a_status_of_its_own():
    status, output, messages = interrupted(
        'with if_interrupted(lambda: say("tidied")): say("ready"); time.sleep(600)', signal.SIGTERM
    )
    assert (status, output) == (128 + signal.SIGTERM, ["tidied"])
    assert messages.startswith("prosmin: ended by SIGTERM")


def test_only_the_first_process_of_a_command_has_a_message():
    """It has the variable, too, while it starts the others."""
    assert interrupted('say("ready"); time.sleep(600)', PROSMIN_PARENT="1") == (130, [], "")
    first = 'os.environ["PROSMIN_PARENT"] = str(os.getpid()); say("ready"); time.sleep(600)'
    assert interrupted(first) == (130, [], f"prosmin: {MESSAGE}\n")


def test_a_finished_command_keeps_its_status():
    assert interrupted('finish(3); say("ready"); time.sleep(600)') == (3, [], "")


def test_what_was_ignored_stays_ignored():
    """As in a job that a shell script starts in the background."""
    with running('say("ready"); time.sleep(600)', ignored=True) as process:
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)


def test_a_forked_process_has_pythons_own_handlers():
    status, output, _ = interrupted("""
        child = os.fork()
        if not child:
            mine = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
            os._exit(mine == [signal.default_int_handler, signal.SIG_DFL])
        right = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print("own" if right else "ours")  # at the end
        say("ready")
        time.sleep(600)
    """)
    assert (status, output) == (130, ["own"])
