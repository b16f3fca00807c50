"""`prosmin embed`: one row per image: features, uncertainty, out-of-distribution score and flag."""

import argparse

from prosmin.commands.parsing import ENCODER, check_folder, path
from prosmin.local_processes import Helpers, helpers

LINE = "one row per image: features, uncertainty, out-of-distribution score and flag"
TAKES_FIELDS = False


def declare(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("run_folder", metavar="RUN", help=ENCODER)
    parser.add_argument("--data", required=True, metavar="SPEC", help="the images")
    parser.add_argument("--out", type=path, required=True, metavar="FILE.parquet", help="run again, it is continued")
    parser.add_argument(
        "--reference", metavar="SPEC", help="images that belong (default: the run's own; none: no score)"
    )
    parser.add_argument(
        "--false-alarms",
        type=float,
        metavar="SHARE",
        help="of images like the reference that may be flagged (default: 0.05; 1 / (n + 1) if there are n < 19)",
    )
    parser.add_argument(
        "--views",
        type=int,
        default=2,
        metavar="N",
        help="random views whose variance is told; each takes as long as the image itself (default: 2; 0: none)",
    )
    parser.add_argument(
        "--batch", type=int, metavar="N", help="images at once, 1 to 512 (default: as the device suggests)"
    )
    parser.add_argument(
        "--max-bad", type=float, metavar="SHARE", help="unreadable images (default: as the run, usually 0.01)"
    )
    parser.add_argument(
        "--precision", default="32-true", metavar="NAME", help="32-true (default), or bf16-mixed on a GPU"
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=1,
        metavar="N",
        help="that share the images and this machine's GPUs, at most one a core; for large images one for four "
        "(default: 1)",
    )


def run(options: argparse.Namespace, fields: dict[str, str]) -> None:
    """Write the rows, with the processes asked for."""
    check_folder(options.data)
    with helpers(options.processes, options.given) as others:  # before the imports: they take seconds
        _embed_beside(others, options)


def _embed_beside(others: Helpers, options: argparse.Namespace) -> None:
    from prosmin.embed import embed
    from prosmin.embed.run import Request

    request = Request(
        data=options.data,
        out=options.out,
        reference=options.reference,
        false_alarms=options.false_alarms,
        views=options.views,
        batch=options.batch,
        max_bad=options.max_bad,
        precision=options.precision,
    )
    embed(options.run_folder, request, command=options.line, helpers=others)
