"""`prosmin doctor`: is everything here that a run needs, and does it work."""

import argparse

LINE = "is everything here that a run needs, and does it work"
TAKES_FIELDS = False


def declare(parser: argparse.ArgumentParser) -> None:
    """It has no options."""


def run(options: argparse.Namespace, fields: dict[str, str]) -> None:
    """Look, and say."""
    from prosmin.doctor import doctor

    doctor()
