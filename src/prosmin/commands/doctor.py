"""`prosmin doctor`: check that everything a run needs is installed and works."""

import argparse

LINE = "check that everything a run needs is installed and works"
TAKES_FIELDS = False


def declare(parser: argparse.ArgumentParser) -> None:
    """It has no options."""


def run(options: argparse.Namespace, fields: dict[str, str]) -> None:
    """Print the checks."""
    from prosmin.doctor import doctor

    doctor()
