"""One process of `reference`: reads tasks as pickles from standard input, writes images to standard output."""

import os
import pickle
import signal
import sys

from prosmin.data.corruptions.reference import corrupt_some
from prosmin.errors import ProsminError


def main() -> None:
    """Work until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which closes the input
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the library prints
    while True:
        try:
            task = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: object = corrupt_some(*task)
        except ProsminError as error:
            answer = error
        pickle.dump(answer, answers, protocol=pickle.HIGHEST_PROTOCOL)
        answers.flush()


if __name__ == "__main__":
    main()
