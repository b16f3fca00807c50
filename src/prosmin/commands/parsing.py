"""What commands share: argparse with our errors, configuration fields as options, suggestions for misspelt names."""

import argparse
import itertools
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn

from prosmin.errors import UsageError
from prosmin.messages import closest, did_you_mean, suggest, suggest_option

ENCODER = "a run folder, a folder written by Encoder.save, a shipped encoder's name, or timm:NAME[@FILE]"
"""The help of the argument RUN of commands that need only an encoder."""


class Parser(argparse.ArgumentParser):
    """argparse that raises UsageError, and lists the fields in the help of commands that take them."""

    takes_fields = False
    commands: Collection[str] = ()

    def flags(self) -> list[str]:
        """Its options, such as --out."""
        return [flag for flag in self._option_string_actions if flag.startswith("--")]

    def format_help(self) -> str:
        """The help; fields are looked up only here, because that takes time."""
        self.epilog = _field_help() if self.takes_fields else None
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Raise an error instead of leaving the program."""
        unknown = re.search(r"argument COMMAND: invalid choice: '([^']*)'", message)
        hint = did_you_mean(closest(unknown[1], self.commands)) if unknown else ""
        raise UsageError(f"{message[0].upper()}{message[1:]}.{hint} See `{self.prog} --help`.")


class Joined(argparse.Action):
    """A list with commas; an option given twice has both lists."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        """Append to the earlier value."""
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, values if before is None else f"{before},{values}")


def path(text: str) -> Path:
    """A path; `~` is the home folder also where the shell does not replace it, as in --out=~/runs."""
    return Path(text).expanduser()


def recipe_name(text: str) -> str:
    """The name of a recipe; an empty one, as from a shell variable that is not set, is refused."""
    if not text:
        raise argparse.ArgumentTypeError(
            "it is empty; allowed: a name listed by `prosmin recipes`, or a file NAME.yaml"
        )
    return text


def add_configuration(parser: argparse.ArgumentParser, *, data: str) -> None:
    """Add --recipe, --config and --data; `data` says what the images are for."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--recipe",
        type=recipe_name,
        metavar="NAME",
        help="one of `prosmin recipes`, or a file NAME.yaml (default: demo)",
    )
    source.add_argument("--config", type=path, metavar="FILE", help="a configuration file, such as a run's config.yaml")
    parser.add_argument("--data", metavar="SPEC", help=f"images to {data}; the same as --data.spec")


def with_data(fields: dict[str, str], data: str | None) -> dict[str, str]:
    """The fields, with --data as data.spec; an error if both are given and differ."""
    if data is None:
        return fields
    if fields.get("data.spec", data) != data:
        raise UsageError(
            f"--data is {data!r} and --data.spec is {fields['data.spec']!r}; they are the same field. Give only one."
        )
    return {**fields, "data.spec": data}


def read_fields(rest: list[str], parser: Parser) -> dict[str, str]:
    """The fields among the arguments that argparse did not know: --group.field VALUE or --group.field=VALUE."""
    fields: dict[str, str] = {}
    words = iter(rest)
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or "." not in name or not parser.takes_fields:
            is_option = word.startswith("-")
            hint = _suggest(name.lstrip("-"), parser) if is_option else _suggest_list(fields, [word, *words])
            raise UsageError(f"`{parser.prog}` does not take {word!r}.{hint} See `{parser.prog} --help`.")
        if not equals:
            value = next(words, "--")
            if value.startswith("--"):
                raise UsageError(f"--{name} needs a value: --{name} VALUE.")
        fields[name] = value
    return fields


def _suggest(name: str, parser: Parser) -> str:
    fields: list[str] = []
    if parser.takes_fields:
        from prosmin import config as configs

        fields = [field for method in configs.METHOD_GROUPS for field, _, _ in configs.describe(method)]
    return suggest_option(name, flags=parser.flags(), fields=fields)


def _suggest_list(fields: dict[str, str], words: list[str]) -> str:
    """A hint for numbers with spaces between them, which should be one list with commas."""
    name, value = next(reversed(fields.items()), ("", ""))
    numbers = list(itertools.takewhile(re.compile(r"[\d.,]+").fullmatch, [value, *words]))
    if len(numbers) < 2:
        return ""
    return f" Write a list with commas and without spaces: `--{name} {','.join(n.strip(',') for n in numbers)}`."


def read_names(text: str | None, *, option: str) -> list[str] | None:
    """The names of an option that takes several; None if it was not given."""
    from prosmin.config.values import convert

    return None if text is None else list(convert(option, text, tuple[str, ...]))


def check_known(kind: str, names: Sequence[str] | None, known: Collection[str]) -> None:
    """Refuse unknown names; the error suggests the closest one."""
    for name in names or ():
        if name not in known:
            raise UsageError(f"There is no {kind} {name!r}.{suggest(name, known)}")


def check_folder(spec: str) -> None:
    """Refuse a missing folder at once, before torch is imported."""
    from prosmin.data.sources.folder import find_folder

    if spec.startswith("folder:"):
        find_folder(spec.removeprefix("folder:"))


def _field_help() -> str:
    """The fields that all methods share, then those of each method."""
    from prosmin import config as configs

    fields = {method: list(configs.describe(method)) for method in configs.METHOD_GROUPS}
    common = [row for row in next(iter(fields.values())) if all(row in rows for rows in fields.values())]
    heading = (
        "any field of the configuration, as --group.field VALUE. A recipe (default: demo) replaces these defaults;\n"
        "RUN/config.yaml has the values of a run:"
    )
    lines = [heading, *_field_lines(common)]
    for method, rows in fields.items():
        title = f"{configs.METHOD_TITLES.get(method, method)}, with --method.name {method}:"
        lines += ["", title, *_field_lines([row for row in rows if row not in common])]
    return "\n".join(lines)


def _field_lines(rows: list[tuple[str, str, str]]) -> list[str]:
    return [f"  --{name} (default {default})\n      {doc}" for name, default, doc in rows]
