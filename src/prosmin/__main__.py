"""The program `prosmin`, also as `python -m prosmin`. Signals are handled before anything else is imported."""

import sys
from typing import NoReturn

from prosmin import interrupts


def program() -> NoReturn:
    """Run the command of this process and end with its status."""
    interrupts.handle_signals()
    from prosmin.cli import main

    status = main()
    interrupts.finish(status)
    sys.exit(status)


if __name__ == "__main__":
    program()
