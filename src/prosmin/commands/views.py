"""`prosmin views`: draw the views of a training step."""

import argparse
from pathlib import Path

from prosmin.commands.parsing import add_configuration, check_folder, path, with_data

LINE = "draw the views of a training step"
TAKES_FIELDS = True


def declare(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    add_configuration(parser, data="show")
    parser.add_argument(
        "--out", type=path, default=Path("views.png"), metavar="FILE.png", help="output file (default: %(default)s)"
    )
    parser.add_argument("--pictures", type=int, default=8, metavar="N", help="number of images (default: %(default)s)")
    parser.add_argument("--step", type=int, default=0, metavar="N", help="training step, from 0 (default: %(default)s)")


def run(options: argparse.Namespace, fields: dict[str, str]) -> None:
    """Write the image."""
    from prosmin import config as configs

    name = options.recipe or (str(options.config) if options.config else "demo")
    config = configs.resolve(
        recipe=None if options.config else name, file=options.config, overrides=with_data(fields, options.data)
    )
    check_folder(config.data.spec)
    from prosmin.preview import write_views

    print(write_views(config, options.out, name=name, pictures=options.pictures, step=options.step))
