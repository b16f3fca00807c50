"""`prosmin recipes`: list the recipes with their headers."""

import argparse

LINE = "list the recipes with their headers"
TAKES_FIELDS = False


def declare(parser: argparse.ArgumentParser) -> None:
    """It has no options."""


def run(options: argparse.Namespace, fields: dict[str, str]) -> None:
    """Print the headers."""
    from prosmin import config as configs

    for name in configs.recipe_names():
        header = [line for line in configs.recipe_text(name).splitlines() if line.startswith("#")]
        print("\n".join(line.removeprefix("#").removeprefix(" ") for line in header), end="\n\n")
