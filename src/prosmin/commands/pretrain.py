"""`prosmin pretrain`: train an encoder, or continue the run in a folder."""

import argparse
from pathlib import Path

from prosmin.commands.parsing import add_configuration, check_folder, path, with_data
from prosmin.errors import UsageError

LINE = "train an encoder, or continue the run in a folder"
TAKES_FIELDS = True


def declare(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    add_configuration(parser, data="learn from")
    parser.add_argument("--out", type=path, metavar="RUN", help="run folder (default: runs/NAME)")


def run(options: argparse.Namespace, fields: dict[str, str]) -> None:
    """Train, or continue."""
    from prosmin import config as configs

    if options.config is not None and options.out is None and options.config.name == "config.yaml":
        raise UsageError(
            f"--config {options.config} is the file of a run: name the new run with --out RUN. "
            f"To continue that run, leave --config out: --out {options.config.parent}."
        )
    name = Path(options.recipe or options.config or "demo").name.removesuffix(".yaml").removesuffix(".yml")
    out = options.out or Path("runs") / name
    file = options.config
    if options.recipe is None and file is None:
        existing = out / "config.yaml"
        file, options.recipe = (existing, None) if existing.is_file() else (None, "demo")
    config = configs.resolve(recipe=options.recipe, file=file, overrides=with_data(fields, options.data))
    if not (out / "config.yaml").exists():  # a finished run no longer needs its images
        check_folder(config.data.spec)
    from prosmin.training.pretrain import pretrain

    pretrain(config, out)
