"""The commands, one file each: its line of the help, its options, whether it takes fields of the configuration
(--group.field VALUE), and `run`, which calls one function and prints.

Modules that need torch, and that is nearly all, are imported by the `run` that needs them: `prosmin --help` does not
wait for it, and `prosmin doctor` can say that it is broken. What can be checked without it is checked before: a slip of
the hand is told at once.
"""

import argparse

from prosmin import __version__
from prosmin.commands import ablate, benchmark, demo, doctor, embed, evaluate, export, pretrain, recipes, report, views
from prosmin.commands.parsing import Parser

COMMANDS = {
    "demo": demo,
    "pretrain": pretrain,
    "evaluate": evaluate,
    "export": export,
    "ablate": ablate,
    "embed": embed,
    "report": report,
    "benchmark": benchmark,
    "views": views,
    "recipes": recipes,
    "doctor": doctor,
}
"""In the order of the help."""


def make_parser() -> Parser:
    """What the command line may say."""
    parser = Parser(
        prog="prosmin",
        description="Image representations, learned without labels, that know how sure they are.",
    )
    parser.add_argument("--version", action="version", version=f"prosmin {__version__}")
    # For its line in the help alone: `main` takes it out beforehand, since it may stand anywhere.
    parser.add_argument("--debug", action="store_true", help="anywhere in a command: an error shows where it came from")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for name, command in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=command.LINE,
            description=command.LINE,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        sub.set_defaults(run=command.run, parser=sub)
        sub.takes_fields = command.TAKES_FIELDS
        command.declare(sub)
    parser.commands = commands.choices
    return parser
