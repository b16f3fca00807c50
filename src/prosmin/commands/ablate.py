"""`prosmin ablate`: train a grid of runs and compare them, without test images."""

import argparse

from prosmin.commands.parsing import path, recipe_name, with_data

LINE = "train a grid of runs and compare them, without test images"
TAKES_FIELDS = True


def declare(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument(
        "--recipe",
        type=recipe_name,
        metavar="NAME",
        help="a name from `prosmin recipes`, or a file NAME.yaml (default: the grid's recipe, or demo)",
    )
    parser.add_argument("--grid", metavar="NAME", help="a grid of the package, or a file NAME.yaml")
    parser.add_argument(
        "--over",
        action="append",
        default=[],
        metavar="group.field=A,B,...",
        help="values of a field to compare; several --over give all combinations; `;` separates values with commas",
    )
    parser.add_argument("--data", metavar="SPEC", help="images to train on; the same as --data.spec")
    parser.add_argument("--out", type=path, required=True, metavar="DIR", help="folder for the runs, table and plot")


def run(options: argparse.Namespace, fields: dict[str, str]) -> None:
    """Train the cells, write table and plot."""
    from prosmin.ablation.grid import combine
    from prosmin.ablation.run import ablate

    given = with_data(fields, options.data)
    ablate(combine(grid=options.grid, recipe=options.recipe, over=options.over, fields=given), options.out)
