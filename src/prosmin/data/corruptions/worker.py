"""One process of `reference`: reads tasks as pickles from standard input, writes images to standard output."""

import os
import pickle
import sys

from prosmin.data.corruptions.reference import corrupt_some
from prosmin.errors import ProsminError


def main() -> None:
    """Work until the input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the library prints
    while True:
        try:
            task = pickle.load(sys.stdin.buffer)
        except (EOFError, pickle.UnpicklingError):  # the other process has ended, perhaps in the middle of a task
            return
        try:
            answer: object = corrupt_some(*task)
        except ProsminError as error:
            answer = error
        try:
            pickle.dump(answer, answers, protocol=pickle.HIGHEST_PROTOCOL)
            answers.flush()
        except BrokenPipeError:
            os._exit(1)  # not `return`: Python would try to write the rest again and report it


if __name__ == "__main__":
    main()
