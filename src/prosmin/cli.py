"""The command: parses, calls one function, prints. Errors are one sentence; `--debug` shows where they came from."""

import argparse
import dataclasses
import itertools
import os
import re
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NoReturn

from prosmin import __version__
from prosmin.errors import ProsminError, UsageError
from prosmin.evaluation.options import Options, flag, read_options
from prosmin.meant import closest, did_you_mean, meant_option, suggest
from prosmin.own_processes import Helpers, helpers

# Modules that need torch, and that is nearly all, are imported by the command that needs them: `prosmin --help` does
# not wait for it, and `prosmin doctor` can say that it is broken. What can be checked without it is checked before: a
# slip of the hand is told at once.

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and give back its exit status: 0, 1 (it failed) or 2 (wrong use)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    arguments = [a for a in given if a != "--debug"]
    warnings.showwarning = _show_warning
    try:
        options, rest = _parser().parse_known_args(arguments)
        options.given = given
        options.line = shlex.join(["prosmin", *arguments])
        fields = _fields(rest, options.parser)
        options.run(options, fields)
        _flush()
    except ProsminError as error:
        if debug:
            traceback.print_exc()
        print(f"prosmin: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("prosmin: interrupted; what is finished is kept: the same command goes on from there.", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output has gone: nothing is left to say
        _give_up_output()
        return 1
    except Exception as error:
        if debug:
            traceback.print_exc()
        print(f"prosmin: {_unexpected(error)}", file=sys.stderr)
        return 1
    return 0


def _flush() -> None:
    """Write what was printed: what Python finds when it ends comes out as lines about an ignored exception."""
    if sys.stdout is not None:  # None where a program was started without one
        sys.stdout.flush()


def _give_up_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unexpected(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is None:  # of no file: of the output, if that fails again
        try:
            print()
            _flush()
        except OSError:
            _give_up_output()
            return f"The output cannot be written: {error.strerror}. Free some space, or send it somewhere else."
    if type(error).__name__ == "OutOfMemoryError":  # torch's, which is not imported for its name
        return (
            f"The GPU's memory is not enough: {str(error).partition('. ')[0]}. Training: a smaller training.batch_size,"
            " a larger training.accumulate, compute.checkpoint_activations true, or a smaller compute.resident_gib; "
            "embed: a smaller --batch, fewer --processes. `nvidia-smi` shows what else uses the GPU."
        )
    if isinstance(error, RuntimeError) and any(f"onnection {end} by peer" in str(error) for end in ("closed", "reset")):
        return "Another process of this run has ended: what it said tells why."
    return f"unexpected {type(error).__name__}: {error}. Run again with --debug for the place."


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    if issubclass(category, UserWarning):
        print(f"warning: {message}", file=sys.stderr)


def _parser() -> Parser:
    parser = Parser(
        prog="prosmin",
        description="Image representations, learned without labels, that know how sure they are.",
    )
    parser.add_argument("--version", action="version", version=f"prosmin {__version__}")
    # For its line in the help alone: `main` takes it out beforehand, since it may stand anywhere.
    parser.add_argument("--debug", action="store_true", help="anywhere in a command: an error shows where it came from")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)

    def command(
        name: str, run: Callable[..., None], line: str, *, takes_fields: bool = False
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=line,
            description=line,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        sub.set_defaults(run=run, parser=sub)
        sub.takes_fields = takes_fields
        return sub

    demo = command("demo", _demo, "pretrain, evaluate and report on the embedded photographs", takes_fields=True)
    demo.add_argument(
        "--out", type=Path, default=Path("runs/demo"), metavar="DIR", help="run folder (default: %(default)s)"
    )

    train = command(
        "pretrain", _pretrain, "train an encoder; on the same run folder again, continue", takes_fields=True
    )
    source = train.add_mutually_exclusive_group()
    source.add_argument("--recipe", metavar="NAME", help="a recipe of `prosmin recipes` (default: demo)")
    source.add_argument("--config", type=Path, metavar="FILE", help="a configuration file, such as a run's config.yaml")
    train.add_argument("--data", metavar="SPEC", help="pictures to learn from: the same as --data.spec")
    train.add_argument("--out", type=Path, metavar="RUN", help="run folder (default: runs/NAME)")

    judge = command("evaluate", _evaluate, "measure a trained encoder")
    judge.add_argument("run_folder", metavar="RUN", help=ENCODER)
    judge.add_argument("--protocols", metavar="NAME,...", help="which to run (default: the quick ones)")
    judge.add_argument("--suite", metavar="NAME", help="paper: all tasks of the paper that the data given allow")
    judge.add_argument("--data", metavar="SPEC", help="pictures, labelled for most protocols (default: the run's)")
    judge.add_argument("--test", metavar="SPEC", help="labelled test pictures, where --data has no split named test")
    judge.add_argument("--ood", metavar="SPEC,...", help="out-of-distribution pictures")
    judge.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder of the results, to keep those of several sets apart (default: RUN itself; runs/shipped-NAME or "
        "runs/timm-NAME for encoders without a folder)",
    )
    judge.add_argument("--again", action="store_true", help="measure again what is already among the results")
    for field in dataclasses.fields(Options):
        protocols = ", ".join(field.metadata["read_by"])
        judge.add_argument(
            flag(field.name),
            metavar=field.metadata["form"],
            help=f"{protocols}: {field.metadata['doc']}".replace("%", "%%"),
        )

    other = command("export", _export, "write a trained encoder for other programs")
    other.add_argument("run_folder", metavar="RUN", help=ENCODER)
    other.add_argument("--format", required=True, metavar="FORMAT", help="onnx, timm or safetensors")
    other.add_argument(
        "--out", type=Path, required=True, metavar="PATH", help="FILE.onnx, FILE.safetensors (timm) or a folder"
    )
    other.add_argument("--network", default="online", metavar="NAME", help="online, or target, its running average")
    other.add_argument("--half", action="store_true", help="safetensors: weights in float16")
    other.add_argument("--again", action="store_true", help="replace what is already at PATH")

    sweep = command(
        "ablate", _ablate, "train a grid of runs and compare them, without test pictures", takes_fields=True
    )
    sweep.add_argument(
        "--recipe", metavar="NAME", help="a recipe of `prosmin recipes` (default: that of the grid, or demo)"
    )
    sweep.add_argument("--grid", metavar="NAME", help="a grid that comes with the package, or a file NAME.yaml")
    sweep.add_argument(
        "--over",
        action="append",
        default=[],
        metavar="group.field=A,B,...",
        help="sweep a field; several make a product; `;` between values that hold commas",
    )
    sweep.add_argument("--data", metavar="SPEC", help="pictures to learn from: the same as --data.spec")
    sweep.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the cells, table and plot")

    rows = command("embed", _embed, "one row a picture: features, uncertainty, out-of-distribution score and flag")
    rows.add_argument("run_folder", metavar="RUN", help=ENCODER)
    rows.add_argument("--data", required=True, metavar="SPEC", help="the pictures")
    rows.add_argument("--out", type=Path, required=True, metavar="FILE.parquet", help="run again, it is continued")
    rows.add_argument(
        "--reference", metavar="SPEC", help="pictures that belong (default: the run's own; none: no score)"
    )
    rows.add_argument(
        "--false-alarms",
        type=float,
        metavar="SHARE",
        help="of pictures like the reference that may be flagged (default: 0.05, or the least a small one tells)",
    )
    rows.add_argument(
        "--views",
        type=int,
        default=2,
        metavar="N",
        help="random views whose variance is told; each takes as long as the picture itself (default: 2; 0: none)",
    )
    rows.add_argument("--batch", type=int, metavar="N", help="pictures at once (default: as the device suggests)")
    rows.add_argument(
        "--max-bad", type=float, default=0.01, metavar="SHARE", help="unreadable pictures (default: 0.01)"
    )
    rows.add_argument(
        "--precision", default="32-true", metavar="NAME", help="32-true (default), or bf16-mixed on a GPU"
    )
    rows.add_argument(
        "--processes",
        type=int,
        default=1,
        metavar="N",
        help="that share the pictures and this machine's GPUs, for large pictures one for four cores (default: 1)",
    )

    page = command("report", _report, "one HTML page of one run, or of several side by side")
    page.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    page.add_argument(
        "--out", type=Path, metavar="FILE.html", help="where to (default: RUN/report.html; of several, ./report.html)"
    )

    speed = command("benchmark", _benchmark, "how fast a recipe trains, and what bounds it", takes_fields=True)
    timed = speed.add_mutually_exclusive_group()
    timed.add_argument("--recipe", metavar="NAME", help="a recipe of `prosmin recipes` (default: demo)")
    timed.add_argument("--config", type=Path, metavar="FILE", help="a configuration file, such as a run's config.yaml")
    speed.add_argument("--data", metavar="SPEC", help="pictures to train on: the same as --data.spec")
    speed.add_argument("--methods", metavar="NAME,...", help="one row a method (default: the recipe's own)")
    speed.add_argument(
        "--out", type=Path, default=Path("benchmark.json"), metavar="FILE.json", help="where to (default: %(default)s)"
    )

    sheet = command("views", _views, "a picture of the views that a step of training sees", takes_fields=True)
    shown = sheet.add_mutually_exclusive_group()
    shown.add_argument("--recipe", metavar="NAME", help="a recipe of `prosmin recipes` (default: demo)")
    shown.add_argument("--config", type=Path, metavar="FILE", help="a configuration file, such as a run's config.yaml")
    sheet.add_argument("--data", metavar="SPEC", help="pictures to show: the same as --data.spec")
    sheet.add_argument(
        "--out", type=Path, default=Path("views.png"), metavar="FILE.png", help="where to (default: %(default)s)"
    )
    sheet.add_argument("--pictures", type=int, default=8, metavar="N", help="how many (default: %(default)s)")
    sheet.add_argument("--step", type=int, default=0, metavar="N", help="of which step, from 0 (default: %(default)s)")

    command("recipes", _recipes, "list the recipes with their headers")
    command("doctor", _doctor, "is everything here that a run needs, and does it work")
    parser.commands = commands.choices
    return parser


def _field_help() -> str:
    """The fields that all methods have alike, then what each has of its own."""
    from prosmin import config as configs

    fields = {method: list(configs.describe(method)) for method in configs.METHOD_GROUPS}
    common = [row for row in next(iter(fields.values())) if all(row in rows for rows in fields.values())]
    heading = (
        "any field of the configuration, as --group.field VALUE. A recipe, demo unless another is named, has values\n"
        "of its own, which come before these defaults; RUN/config.yaml holds what a run has:"
    )
    lines = [heading, *_field_lines(common)]
    for method, rows in fields.items():
        title = f"{configs.METHOD_TITLES[method]}, with --method.name {method}:"
        lines += ["", title, *_field_lines([row for row in rows if row not in common])]
    return "\n".join(lines)


def _field_lines(rows: list[tuple[str, str, str]]) -> list[str]:
    return [f"  --{name} (default {default})\n      {doc}" for name, default, doc in rows]


def _fields(rest: list[str], parser: Parser) -> dict[str, str]:
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


def _names(text: str | None, *, option: str) -> list[str] | None:
    """The names of an option that takes several; None where it was not given."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise UsageError(
            f"{option} is {text!r}, in which a name is empty. Write one name, or several with a comma between."
        )
    return names


def _check_known(kind: str, names: Sequence[str] | None, known: Collection[str]) -> None:
    for name in names or ():
        if name not in known:
            raise UsageError(f"There is no {kind} {name!r}.{suggest(name, known)}")


def _check_folder(spec: str) -> None:
    """A folder that there is not is told before torch is imported."""
    from prosmin.data.folder import find_folder

    if spec.startswith("folder:"):
        find_folder(spec.removeprefix("folder:"))


def _demo(options: argparse.Namespace, fields: dict[str, str]) -> None:
    from prosmin import config as configs

    config = configs.resolve(recipe="demo", overrides=fields)
    from prosmin.demo import demo

    demo(config, options.out)


def _pretrain(options: argparse.Namespace, fields: dict[str, str]) -> None:
    from prosmin import config as configs

    if options.data is not None:
        fields = {"data.spec": options.data, **fields}
    name = options.recipe or (options.config.stem if options.config else "demo")
    out = options.out or Path("runs") / name
    file = options.config
    if options.recipe is None and file is None:
        begun = out / "config.yaml"
        file, options.recipe = (begun, None) if begun.is_file() else (None, "demo")
    config = configs.resolve(recipe=options.recipe, file=file, overrides=fields)
    if not (out / "config.yaml").exists():  # a run that has finished needs its pictures no more
        _check_folder(config.data.spec)
    from prosmin.training.pretrain import pretrain

    pretrain(config, out)


def _evaluate(options: argparse.Namespace, fields: dict[str, str]) -> None:
    from prosmin.data.corruptions.names import ALL
    from prosmin.evaluation.protocols import PROTOCOLS
    from prosmin.evaluation.suite import SUITES, evaluate
    from prosmin.evaluation.table import print_table

    # Before the encoder is loaded, and with what may have been meant.
    names = _names(options.protocols, option="--protocols")
    ood = _names(options.ood, option="--ood")
    _check_known("protocol", names, PROTOCOLS)
    _check_known("suite", options.suite and [options.suite], SUITES)
    _check_known("corruption", _names(options.corruptions, option="--corruptions"), ALL)
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
        )
    )


def _export(options: argparse.Namespace, fields: dict[str, str]) -> None:
    from prosmin.export import export

    said = export(
        options.run_folder,
        options.out,
        format=options.format,
        network=options.network,
        half=options.half,
        again=options.again,
    )
    print("\n".join(said))


def _ablate(options: argparse.Namespace, fields: dict[str, str]) -> None:
    from prosmin.ablation.grid import combine
    from prosmin.ablation.run import ablate

    grid = combine(grid=options.grid, recipe=options.recipe, over=options.over, fields=fields, data=options.data)
    ablate(grid, options.out)


def _embed(options: argparse.Namespace, fields: dict[str, str]) -> None:
    _check_folder(options.data)
    with helpers(options.processes, options.given) as others:  # before the imports: they take seconds
        _embed_beside(others, options)


def _embed_beside(others: Helpers, options: argparse.Namespace) -> None:
    from prosmin.embed import embed
    from prosmin.embed.request import Request

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


def _report(options: argparse.Namespace, fields: dict[str, str]) -> None:
    from prosmin.report import write_report

    out = options.out or (options.runs[0] / "report.html" if len(options.runs) == 1 else Path("report.html"))
    print(f"wrote {write_report(options.runs, out)}")


def _benchmark(options: argparse.Namespace, fields: dict[str, str]) -> None:
    from prosmin.benchmark import benchmark

    if options.data is not None:
        fields = {"data.spec": options.data, **fields}
    benchmark(
        recipe=None if options.config else options.recipe or "demo",
        file=options.config,
        overrides=fields,
        methods=_names(options.methods, option="--methods") or [],
        out=options.out,
        command=options.line,
    )
    print(f"wrote {options.out}")


def _views(options: argparse.Namespace, fields: dict[str, str]) -> None:
    from prosmin import config as configs

    if options.data is not None:
        fields = {"data.spec": options.data, **fields}
    name = options.recipe or (str(options.config) if options.config else "demo")
    config = configs.resolve(recipe=None if options.config else name, file=options.config, overrides=fields)
    _check_folder(config.data.spec)
    from prosmin.preview import write_views

    print(write_views(config, options.out, name=name, pictures=options.pictures, step=options.step))


def _doctor(options: argparse.Namespace, fields: dict[str, str]) -> None:
    from prosmin.doctor import doctor

    doctor()


def _recipes(options: argparse.Namespace, fields: dict[str, str]) -> None:
    from prosmin import config as configs

    for name in configs.recipe_names():
        header = [line for line in configs.recipe_text(name).splitlines() if line.startswith("#")]
        print("\n".join(line.removeprefix("#").removeprefix(" ") for line in header), end="\n\n")
