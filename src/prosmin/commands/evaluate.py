"""`prosmin evaluate`: measure a trained encoder."""

import argparse
import dataclasses
import shlex

from prosmin.commands.parsing import ENCODER, Joined, check_known, path, read_names
from prosmin.evaluation.options import PROTOCOLS_HELP, Options, flag, read_options

LINE = "measure a trained encoder with evaluation protocols"
TAKES_FIELDS = False


def declare(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("run_folder", metavar="RUN", help=ENCODER)
    parser.add_argument(
        "--protocols",
        action=Joined,
        metavar="NAME,...",
        help=PROTOCOLS_HELP,
    )
    parser.add_argument("--suite", metavar="NAME", help="paper: all tasks of the paper that the given images allow")
    parser.add_argument(
        "--data", metavar="SPEC", help="images, labelled for most protocols (default: the run's images)"
    )
    parser.add_argument("--test", metavar="SPEC", help="labelled test images, if --data has no split named test")
    parser.add_argument("--ood", action=Joined, metavar="SPEC,...", help="out-of-distribution images")
    parser.add_argument(
        "--out",
        type=path,
        metavar="DIR",
        help="folder for the results, to keep those of several sets (default: RUN; runs/shipped-NAME or runs/timm-NAME "
        "for encoders without a folder)",
    )
    parser.add_argument("--again", action="store_true", help="measure again, also where a result exists")
    parser.add_argument(
        "--max-bad",
        type=float,
        metavar="SHARE",
        help="share of images that may be unreadable (default: as the run, usually 0.01)",
    )
    for field in dataclasses.fields(Options):
        protocols = ", ".join(field.metadata["read_by"])
        parser.add_argument(
            flag(field.name),
            action=Joined if field.metadata["form"].endswith(",...") else "store",
            metavar=field.metadata["form"],
            help=f"{protocols}: {field.metadata['doc']}".replace("%", "%%"),
        )


def run(options: argparse.Namespace, fields: dict[str, str]) -> None:
    """Evaluate, and print the table."""
    from prosmin.data.corruptions.parameters import ALL
    from prosmin.evaluation.protocols import PROTOCOLS, SUITES
    from prosmin.evaluation.results import places
    from prosmin.evaluation.run import evaluate
    from prosmin.evaluation.table import print_table

    # Checked before the encoder is loaded, to suggest what a misspelt name may mean.
    names = read_names(options.protocols, option="--protocols")
    ood = read_names(options.ood, option="--ood")
    check_known("protocol", names, PROTOCOLS)
    check_known("suite", options.suite and [options.suite], SUITES)
    check_known("corruption", read_names(options.corruptions, option="--corruptions"), ALL)
    _, folder = places(options.run_folder, options.out)
    print_table(
        evaluate(
            options.run_folder,
            protocols=names,
            suite=options.suite,
            data=options.data,
            test=options.test,
            ood=ood,
            options=read_options({field.name: getattr(options, field.name) for field in dataclasses.fields(Options)}),
            out=options.out,
            again=options.again,
            max_bad=options.max_bad,
        )
    )
    print(f"results: {folder / 'results'}; one page of them: {shlex.join(['prosmin', 'report', str(folder)])}")
