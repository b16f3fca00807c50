"""What commands have in common: our kind of argparse, the fields of a configuration, names that may be misspelt."""

import argparse
import itertools
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn

from prosmin.errors import UsageError
from prosmin.evaluation.options import split_names
from prosmin.messages import closest, did_you_mean, meant_option, suggest

ENCODER = "a run folder, one of Encoder.save, the name of a shipped encoder, or one of others: timm:NAME[@FILE]"
"""What a command takes that needs an encoder alone."""


class Parser(argparse.ArgumentParser):
    """argparse, with our kind of error, and the fields in the help of a command that takes them."""

    takes_fields = False
    commands: Collection[str] = ()

    def flags(self) -> list[str]:
        """The options it knows, such as --out."""
        return [flag for flag in self._option_string_actions if flag.startswith("--")]

    def format_help(self) -> str:
        """The fields are looked up when somebody asks for them."""
        self.epilog = _field_help() if self.takes_fields else None
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Wrong use ends with status 2 and one sentence."""
        unknown = re.search(r"argument COMMAND: invalid choice: '([^']*)'", message)
        hint = did_you_mean(closest(unknown[1], self.commands)) if unknown else ""
        raise UsageError(f"{message[0].upper()}{message[1:]}.{hint} `{self.prog} --help` lists what there is.")


class Joined(argparse.Action):
    """A list with commas; given twice, the option has both lists."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        """Add to what was given before."""
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, values if before is None else f"{before},{values}")


def path(text: str) -> Path:
    """A path as it was given; `~` is the home folder also where the shell left it, as in --out=~/runs."""
    return Path(text).expanduser()


def recipe_name(text: str) -> str:
    """The name of a recipe; an empty one, as from a shell variable that is not set, is refused."""
    if not text:
        raise argparse.ArgumentTypeError(
            "it is empty; allowed: a name listed by `prosmin recipes`, or a file NAME.yaml"
        )
    return text


def add_configuration(parser: argparse.ArgumentParser, *, data: str) -> None:
    """The options --recipe or --config, and --data for what is done with the images."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--recipe",
        type=recipe_name,
        metavar="NAME",
        help="one of `prosmin recipes`, or a file NAME.yaml (default: demo)",
    )
    source.add_argument("--config", type=path, metavar="FILE", help="a configuration file, such as a run's config.yaml")
    parser.add_argument("--data", metavar="SPEC", help=f"images to {data}: the same as --data.spec")


def with_data(fields: dict[str, str], data: str | None) -> dict[str, str]:
    """The fields with what --data says; an error where --data.spec says something else."""
    if data is None:
        return fields
    if fields.get("data.spec", data) != data:
        raise UsageError(
            f"--data is {data!r} and --data.spec is {fields['data.spec']!r}, which are the same field. "
            "Give one of them."
        )
    return {**fields, "data.spec": data}


def read_fields(rest: list[str], parser: Parser) -> dict[str, str]:
    """What argparse did not know: --group.field VALUE or --group.field=VALUE."""
    fields: dict[str, str] = {}
    words = iter(rest)
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or "." not in name or not parser.takes_fields:
            hint = (
                _meant_option(name.lstrip("-"), parser) if word.startswith("-") else _meant_list(fields, [word, *words])
            )
            raise UsageError(
                f"`{parser.prog}` does not take {word!r}.{hint} `{parser.prog} --help` lists what there is."
            )
        if not equals:
            value = next(words, "--")
            if value.startswith("--"):
                raise UsageError(f"--{name} needs a value: --{name} VALUE.")
        fields[name] = value
    return fields


def _meant_option(name: str, parser: Parser) -> str:
    if not parser.takes_fields:
        return meant_option(name, flags=parser.flags(), fields=())
    from prosmin import config as configs

    fields = [field for method in configs.METHOD_GROUPS for field, _, _ in configs.describe(method)]
    return meant_option(name, flags=parser.flags(), fields=fields)


def _meant_list(fields: dict[str, str], words: list[str]) -> str:
    """Numbers that follow the number of a field were meant to be one list with it."""
    name, value = next(reversed(fields.items()), ("", ""))
    numbers = list(itertools.takewhile(re.compile(r"[\d.,]+").fullmatch, [value, *words]))
    if len(numbers) < 2:
        return ""
    return f" A list is written with commas and no spaces: `--{name} {','.join(n.strip(',') for n in numbers)}`."


def read_names(text: str | None, *, option: str) -> list[str] | None:
    """The names of an option that takes several; None where it was not given."""
    if text is None:
        return None
    names = [name.strip() for name in split_names(text)]
    if not all(names):
        raise UsageError(
            f"{option} is {text!r}, in which a name is empty. Write one name, or several with a comma between."
        )
    return names


def check_known(kind: str, names: Sequence[str] | None, known: Collection[str]) -> None:
    """An error, with what may have been meant, where there is no such thing."""
    for name in names or ():
        if name not in known:
            raise UsageError(f"There is no {kind} {name!r}.{suggest(name, known)}")


def check_folder(spec: str) -> None:
    """A folder that there is not is told before torch is imported."""
    from prosmin.data.sources.folder import find_folder

    if spec.startswith("folder:"):
        find_folder(spec.removeprefix("folder:"))


def _field_help() -> str:
    """The fields that all methods have alike, then what each has of its own."""
    from prosmin import config as configs

    fields = {method: list(configs.describe(method)) for method in configs.METHOD_GROUPS}
    common = [row for row in next(iter(fields.values())) if all(row in rows for rows in fields.values())]
    heading = (
        "any field of the configuration, as --group.field VALUE. A recipe, demo unless another is named, has values\n"
        "of its own, which replace these defaults; RUN/config.yaml holds what a run has:"
    )
    lines = [heading, *_field_lines(common)]
    for method, rows in fields.items():
        title = f"{configs.METHOD_TITLES.get(method, method)}, with --method.name {method}:"
        lines += ["", title, *_field_lines([row for row in rows if row not in common])]
    return "\n".join(lines)


def _field_lines(rows: list[tuple[str, str, str]]) -> list[str]:
    return [f"  --{name} (default {default})\n      {doc}" for name, default, doc in rows]
