"""`prosmin benchmark`: how fast a recipe trains, and what limits it."""

import argparse
from pathlib import Path

from prosmin.commands.parsing import add_configuration, path, read_names, with_data

LINE = "how fast a recipe trains, and what limits it"
TAKES_FIELDS = True


def declare(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    add_configuration(parser, data="train on")
    parser.add_argument("--methods", metavar="NAME,...", help="one row per method (default: the recipe's method)")
    parser.add_argument(
        "--out",
        type=path,
        default=Path("benchmark.json"),
        metavar="FILE.json",
        help="output file (default: %(default)s)",
    )


def run(options: argparse.Namespace, fields: dict[str, str]) -> None:
    """Measure, print, write."""
    from prosmin.benchmark import benchmark

    benchmark(
        recipe=None if options.config else options.recipe or "demo",
        file=options.config,
        overrides=with_data(fields, options.data),
        methods=read_names(options.methods, option="--methods") or [],
        out=options.out,
        command=options.line,
    )
    print(f"wrote {options.out}")
