"""The command line from words to an exit status. Errors are one sentence; `--debug` shows where they came from."""

import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Sequence

from prosmin.commands import make_parser
from prosmin.commands.parsing import read_fields
from prosmin.errors import Interrupted, ProsminError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 1 (it failed), 2 (wrong use) or 130 (Ctrl-C)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    arguments = [a for a in given if a != "--debug"]
    warnings.showwarning = _show_warning
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
        print(f"prosmin: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("prosmin: interrupted; finished work is saved, the same command continues.", file=sys.stderr)
        return Interrupted.exit_status
    except BrokenPipeError:  # the reader of our output has gone: nothing is left to say
        _give_up_output()
        return 1
    except Exception as error:
        if debug:
            traceback.print_exc()
        print(f"prosmin: {_unexpected(error)}", file=sys.stderr)
        return 1
    return 0


def _flush() -> None:
    """Write what was printed: what Python finds when it ends comes out as lines about an ignored exception."""
    if sys.stdout is not None:  # None where a program was started without one
        sys.stdout.flush()


def _give_up_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unexpected(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is None:  # of no file: of the output, if that fails again
        try:
            print()
            _flush()
        except OSError:
            _give_up_output()
            return f"The output cannot be written: {error.strerror}. Free some space, or send it somewhere else."
    if type(error).__name__ == "OutOfMemoryError":  # torch's, which is not imported for its name
        return (
            f"The GPU's memory is not enough: {str(error).partition('. ')[0]}. Training: a smaller training.batch_size,"
            " a larger training.accumulate, compute.checkpoint_activations true, or a smaller compute.resident_gib; "
            "embed: a smaller --batch, fewer --processes. `nvidia-smi` shows what else uses the GPU."
        )
    if isinstance(error, RuntimeError) and any(f"onnection {end} by peer" in str(error) for end in ("closed", "reset")):
        return "Another process of this run has ended: what it said tells why."
    return f"unexpected {type(error).__name__}: {error}. Run again with --debug for the place."


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    if issubclass(category, UserWarning):
        print(f"warning: {message}", file=sys.stderr)
