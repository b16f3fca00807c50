"""`prosmin embed`: one row per image: features, uncertainty, out-of-distribution score and flag."""

import argparse

from prosmin.commands.parsing import ENCODER, check_folder, path
from prosmin.local_processes import Helpers, helpers

LINE = "one row per image: features, uncertainty, out-of-distribution score and flag"
TAKES_FIELDS = False


def declare(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    add = parser.add_argument
    add("run_folder", metavar="RUN", help=ENCODER)
    add("--data", required=True, metavar="SPEC", help="the images")
    text = "the same command continues an unfinished file"
    add("--out", type=path, required=True, metavar="FILE.parquet", help=text)
    add("--reference", metavar="SPEC", help="images that belong (default: the run's training images; none: no score)")
    text = "share of images like the reference that may be flagged (default: 0.05; with n < 19 images 1 / (n + 1))"
    add("--false-alarms", type=float, metavar="SHARE", help=text)
    text = "random views for view_variance; each takes as long as the image itself (default: 2; 0: none)"
    add("--views", type=int, default=2, metavar="N", help=text)
    text = "features of each patch too, in the column patches; ViT only; float16 or float32 (default: none)"
    add("--patches", metavar="TYPE", help=text)
    text = "images computed at once, 1 to 512 (default: chosen for the device)"
    add("--batch", type=int, metavar="N", help=text)
    text = "allowed share of unreadable images (default: that of the run, usually 0.01)"
    add("--max-bad", type=float, metavar="SHARE", help=text)
    add("--precision", default="32-true", metavar="NAME", help="32-true (default), or bf16-mixed on a GPU")
    text = "processes that share the images and the GPUs, at most one per core, for large images one per four cores"
    add("--processes", type=int, default=1, metavar="N", help=f"{text} (default: 1)")


def run(options: argparse.Namespace, fields: dict[str, str]) -> None:
    """Write the rows, with the requested number of processes."""
    check_folder(options.data)
    with helpers(options.processes, options.given) as others:  # before the imports, which take seconds
        _embed(others, options)


def _embed(others: Helpers, options: argparse.Namespace) -> None:
    from prosmin.embed import Request, embed

    request = Request(
        data=options.data,
        out=options.out,
        reference=options.reference,
        false_alarms=options.false_alarms,
        views=options.views,
        batch=options.batch,
        max_bad=options.max_bad,
        precision=options.precision,
        patches=options.patches,
    )
    embed(options.run_folder, request, command=options.line, helpers=others)
