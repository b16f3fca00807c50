"""`prosmin explore`: open a Parquet file in Embedding Atlas."""

import argparse
import os
import shlex
import shutil
import sys
from pathlib import Path

from prosmin.commands.parsing import path
from prosmin.errors import ProsminError

LINE = "open an inspected folder or a file of embeddings in Embedding Atlas"
TAKES_FIELDS = False
PROGRAM = "embedding-atlas"


def declare(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    text = "a folder that `prosmin inspect` wrote, or a file of `prosmin embed`"
    parser.add_argument("within", type=path, metavar="DIR|FILE.parquet", help=text)


def run(options: argparse.Namespace, fields: dict[str, str]) -> None:
    """Replace this process by Embedding Atlas, which serves a page until it is stopped."""
    arguments = atlas_arguments(options.within)
    beside = str(Path(sys.executable).parent)  # its environment may not be activated
    program = shutil.which(PROGRAM, path=os.pathsep.join([beside, os.environ.get("PATH", os.defpath)]))
    if program is None:
        raise ProsminError(
            f"Embedding Atlas is not installed: there is no program {PROGRAM}. Install it in an environment of its own "
            f"with `pipx install {PROGRAM}`, or in this one with `pip install {PROGRAM}`."
        )
    print(shlex.join([PROGRAM, *arguments]), flush=True)  # to be repeated with other options
    os.execv(program, [program, *arguments])


def atlas_arguments(within: Path) -> list[str]:
    """The arguments of Embedding Atlas for the columns that the file has; without a map it computes one."""
    import pyarrow.parquet as pq

    from prosmin.encoder.stored import open_stored

    file = open_stored(within).path
    columns = pq.read_schema(file).names
    places = {"--x": "x", "--y": "y", "--neighbors": "neighbors"} if "x" in columns else {"--vector": "features"}
    shown = {"--image": "image"} if "image" in columns else {}
    options = places | shown | {"--text": "key"}
    return [str(file.absolute()), *(word for pair in options.items() for word in pair)]
