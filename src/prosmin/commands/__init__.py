"""The commands, one file each: a line for the help, its options, whether it takes fields of the configuration
(--group.field VALUE), and `run`, which calls one function and prints.

`run` imports the modules that need torch: `prosmin --help` does not wait for torch, and `prosmin doctor` can report
that torch is broken. A misspelt option is reported before torch is imported.
"""

import argparse

from prosmin import __version__
from prosmin.commands import (
    ablate,
    benchmark,
    calibrate,
    demo,
    doctor,
    embed,
    evaluate,
    explore,
    export,
    inspect,
    pretrain,
    recipes,
    report,
    search,
    views,
)
from prosmin.commands.parsing import Parser

COMMANDS = {
    "demo": demo,
    "inspect": inspect,
    "pretrain": pretrain,
    "calibrate": calibrate,
    "evaluate": evaluate,
    "export": export,
    "ablate": ablate,
    "embed": embed,
    "search": search,
    "explore": explore,
    "report": report,
    "benchmark": benchmark,
    "views": views,
    "recipes": recipes,
    "doctor": doctor,
}
"""In the order of the help."""


def make_parser() -> Parser:
    """The parser of all commands."""
    parser = Parser(
        prog="prosmin",
        description="Self-supervised image representations with uncertainty.",
    )
    parser.add_argument("--version", action="version", version=f"prosmin {__version__}")
    # Only for the help: `main` removes --debug first, because it is allowed anywhere.
    parser.add_argument("--debug", action="store_true", help="anywhere in a command: show the traceback of an error")
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
