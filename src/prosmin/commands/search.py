"""`prosmin search`: the images of a Parquet file that are most similar to an image."""

import argparse
import json

from prosmin.commands.parsing import ENCODER, path

LINE = "the images of a folder or file that are most similar to an image"
TAKES_FIELDS = False


def declare(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    add = parser.add_argument
    add("image", metavar="IMAGE", help="the path of an image, or the key of one in the file")
    text = "a folder that `prosmin inspect` wrote, or a file of `prosmin embed`"
    add("--in", dest="within", type=path, required=True, metavar="DIR|FILE.parquet", help=text)
    add("-k", type=int, default=24, metavar="N", help="how many images (default: 24)")
    add("--encoder", metavar="RUN", help=f"{ENCODER} (default: the one that the file names)")
    add("--json", action="store_true", help="one JSON object per line: key and distance")


def run(options: argparse.Namespace, fields: dict[str, str]) -> None:
    """Print the most similar images, nearest first."""
    from prosmin.search import search

    matches = search(options.image, options.within, options.k, encoder=options.encoder)
    if not options.json:
        print("distance  image")
    for match in matches:
        print(json.dumps(match._asdict()) if options.json else f"{match.distance:8.4f}  {_printable(match.key)}")


def _printable(key: str) -> str:
    """The key; quoted if it has characters that a terminal would obey or hide."""
    return key if key.isprintable() else json.dumps(key)
