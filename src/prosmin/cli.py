"""From the words of the command line to an exit status. Errors are one message; `--debug` adds the traceback."""

import logging
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Sequence

from prosmin.commands import make_parser
from prosmin.commands.parsing import read_fields
from prosmin.errors import Interrupted, ProsminError
from prosmin.interrupts import MESSAGE, is_further_process, was_received


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 1 (it failed), 2 (wrong use) or 130 (Ctrl-C)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    arguments = [a for a in given if a != "--debug"]
    warnings.showwarning = _show_warning
    logging.getLogger("prosmin").setLevel(logging.DEBUG if debug else logging.INFO)
    try:
        options, rest = make_parser().parse_known_args(arguments)
        options.given = given
        options.line = shlex.join(["prosmin", *arguments])
        fields = read_fields(rest, options.parser)
        options.run(options, fields)
        _flush()
    except ProsminError as error:
        if debug:
            traceback.print_exc()
        if not (isinstance(error, Interrupted) and is_further_process()):
            print(f"prosmin: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:  # nobody reads our output any more
        _give_up_output()
        return 1
    except Exception as error:
        if debug:
            traceback.print_exc()
        if was_received():  # such as the end of the other processes of a run, which got the signal, too
            return _interrupted()
        print(f"prosmin: {_unexpected(error)}", file=sys.stderr)
        return 1
    return 0


def _interrupted() -> int:
    if not is_further_process():
        print(f"prosmin: {MESSAGE}", file=sys.stderr)
    return Interrupted.exit_status


def _flush() -> None:
    """Write buffered output now: at exit Python would report a failure as an ignored exception."""
    if sys.stdout is not None:  # None in a program without standard output
        sys.stdout.flush()


def _give_up_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unexpected(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is None:  # not about a file: check whether our output fails
        try:
            print()
            _flush()
        except OSError:
            _give_up_output()
            return f"The output cannot be written: {error.strerror}. Free some space, or redirect it elsewhere."
    if type(error).__name__ == "OutOfMemoryError":  # torch's; torch may not be imported yet
        return (
            f"Not enough GPU memory: {str(error).partition('. ')[0]}. In training use a smaller training.batch_size, a "
            "larger training.accumulate, compute.checkpoint_activations true or a smaller compute.resident_gib; in "
            "embed a smaller --batch or fewer --processes. `nvidia-smi` shows what else uses the GPU."
        )
    if isinstance(error, RuntimeError) and any(f"onnection {end} by peer" in str(error) for end in ("closed", "reset")):
        return "Another process of this run has ended; see its error message."
    return f"unexpected {type(error).__name__}: {error}. Run it again with --debug for the traceback."


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    if issubclass(category, UserWarning):
        print(f"warning: {message}", file=sys.stderr)
