"""The documentation is held to the program: its commands and its Python run, and what it names exists.

Commands run in this process, with small networks, few steps and few images in the place of what takes hours or a
download; before that each is checked as it stands: every option, field, recipe, grid, protocol, corruption and SPEC.
"""

import dataclasses
import functools
import json
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import yaml

import docs_workspace
from prosmin import cli
from prosmin import config as configs
from prosmin.ablation.cells import make_cells
from prosmin.ablation.grid import combine, grid_names, read_grid
from prosmin.benchmark import measure as parts
from prosmin.commands import make_parser
from prosmin.commands.parsing import read_fields
from prosmin.data.sources import KINDS, parse, spec_of
from prosmin.data.sources.torchvision_sets import known_sets
from prosmin.encoder.detectors import DETECTORS, JOINT, SCORES, SURPRISES
from prosmin.evaluation.options import Options, flag, read_options
from prosmin.evaluation.protocols import PROTOCOLS, SUITES, protocols_of
from prosmin.evaluation.protocols.ood import EMBED

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = {path.name: path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
ALL = DOCUMENTS | {"CONTRIBUTING.md": (ROOT / "CONTRIBUTING.md").read_text()}

NOT_RUN = {
    "make": "it makes a virtual environment of its own; its targets are looked up in the Makefile",
    "pip": "it changes the environment",
    "srun": "it needs a cluster; the command behind it is checked",
}
"""First words of lines in command blocks that are not run, and why."""

SPECS = ("data", "test", "ood", "near", "transfer", "corrupted", "reference")
"""Options that name images."""

REPLACED = {
    "torchvision:cifar10@data": "folder:my-labelled-images",  # torchvision checks the hashes of the real files
    "torchvision:cifar100@data": "folder:my-other-set",
    "torchvision:svhn@data@test": "folder:ood-images",
    "hf:uoft-cs/cifar10": "hf:my-hf",  # a download
    "timm:resnet18": "timm:test_resnet@test_resnet.pth",  # a download
    "timm:vit_small_patch16_224": "timm:test_vit",  # timm's smallest ViT in the same layout
}
"""What stands in a command, and what is run in its place."""

OTHERS_OPTIONS = {
    "--max-restarts": "torchrun",
    "--nproc-per-node": "torchrun",
    "--nnodes": "torchrun",
    "--rdzv-backend": "torchrun",
    "--rdzv-endpoint": "torchrun",
    "--ntasks-per-node": "SLURM",
    "--ntasks": "SLURM",
    "--count": "benchmarks/scaling.py",
    "--group.field": "a placeholder",
}
"""Options the documentation names that are not ours, and whose they are."""

ELSEWHERE = ("scoring.md",)
"""Documents whose Python another test runs."""

NOT_MEASURED = {
    "mce": "needs ImageNet's thousand classes",
    "relative_mce": "needs ImageNet's thousand classes",
    "mean_error_extra": "of corruptions that are not run here",
    "mean_nll_extra": "of corruptions that are not run here",
    "mean_ece_extra": "of corruptions that are not run here",
}
"""Documented metrics that these images cannot give."""


def blocks(text: str, *languages: str) -> list[str]:
    """The fenced blocks of the given languages."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [content for language, content in found if language in languages]


def command_lines(text: str) -> list[str]:
    """The lines of command blocks, continued ones joined, comments left out."""
    lines = "\n".join(blocks(text, "", "bash")).replace("\\\n", " ").splitlines()
    return [line for raw in lines if (line := re.sub(r"(^|\s)#.*", "", raw).strip())]


def commands(text: str) -> list[list[str]]:
    """The words behind `prosmin` of every command that is run."""
    return [shlex.split(line)[1:] for line in command_lines(text) if line.startswith("prosmin ")]


def inline(text: str) -> list[str]:
    """The `code` within sentences and tables."""
    without = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`\n]+)`", without)


@functools.cache
def fields() -> set[str]:
    """Every group.field of every method."""
    return {name for method in configs.METHOD_GROUPS for name, _, _ in configs.describe(method)}


@functools.cache
def subcommands() -> dict[str, set[str]]:
    """The options of every command."""
    parser = make_parser()
    choices = next(action.choices for action in parser._actions if action.dest == "command")
    return {name: set(sub._option_string_actions) for name, sub in choices.items()}


def parsed(words: list[str]) -> tuple[SimpleNamespace, dict[str, str]]:
    """What the command line says, or an error."""
    options, rest = make_parser().parse_known_args(words)
    return options, read_fields(rest, options.parser)


def resolved(options: SimpleNamespace, given: dict[str, str]) -> configs.Config:
    """The configuration that a command would use."""
    file = getattr(options, "config", None)
    recipe = None if file else getattr(options, "recipe", None) or "demo"
    return configs.resolve(recipe=recipe, file=file, overrides=given)


def check(words: list[str]) -> None:
    """Raise for a command that could not work anywhere."""
    options, given = parsed(words)
    for spec in filter(None, ",".join(getattr(options, name, None) or "" for name in SPECS).split(",")):
        if spec == "none":  # of --reference
            continue
        kind, rest = parse(spec_of(spec) if options.command == "inspect" else spec)  # inspect takes plain paths too
        assert kind.name != "torchvision" or rest.partition("@")[0] in known_sets(), spec
    if options.command in ("demo", "pretrain", "views", "benchmark"):
        resolved(options, given)
        for method in (getattr(options, "methods", None) or "").split(","):
            assert method in ("", *configs.METHOD_GROUPS), method
    elif options.command == "ablate":
        make_cells(combine(grid=options.grid, recipe=options.recipe, over=options.over, fields=given))
    elif options.command == "evaluate":
        read_options({field.name: getattr(options, field.name) for field in dataclasses.fields(Options)})
        assert set((options.protocols or "knn").split(",")) <= set(PROTOCOLS), options.protocols
        assert options.suite is None or options.suite in SUITES, options.suite
        if options.run_folder.startswith("timm:"):
            assert timm.is_model(options.run_folder.removeprefix("timm:").partition("@")[0]), options.run_folder


def tiny_fields(config: configs.Config) -> dict[str, str]:
    """What makes a configuration train in a fraction of a second, its method and kind of network kept."""
    small = {
        "training.batch_size": "16",
        "training.max_steps": "2",
        "training.log_every": "1",
        "compute.accelerator": "cpu",
        "compute.precision": "32-true",
        "compute.compile": "none",
        "views.global_size": "32",
        "views.local_size": "16",
        "views.local": str(min(1, config.views.local)),
    }
    if config.backbone.weights is not None:
        small |= {"training.guard_every": "1"}  # the network of the weights
    elif config.backbone.name.startswith("vit"):
        small |= {f"backbone.{name}": size for name, size in zip(VIT, ("8", "32", "2", "2"), strict=True)}
    else:
        small["backbone.name"] = "resnet8_cifar"
    # Whitening of a batch needs no more dimensions than images.
    for name, size in {"hidden": "32", "bottleneck": "16", "dim": "16", "predictor_hidden": "32"}.items():
        if hasattr(config.heads, name):
            small[f"heads.{name}"] = size
    if config.data.spec.startswith("photos") or "torchvision:cifar10" in config.data.spec:
        small["data.spec"] = "folder:my-labelled-images@train"
    return small


VIT = ("patch_size", "width", "depth", "heads")


def runnable(words: list[str]) -> list[str]:
    """The command with stand-ins for what is large or far away."""
    for there, here in REPLACED.items():
        words = [word.replace(there, here) for word in words]
    options, given = parsed(words)
    if options.command in ("demo", "pretrain", "benchmark"):
        small = tiny_fields(resolved(options, given))
        if getattr(options, "data", None) is not None:
            small.pop("data.spec", None)  # the command names its images
        return [*words, *_as_words(small)]
    if options.command == "ablate":
        return _small_grid(words, options, given)
    if options.command == "evaluate":
        small = {"--linear-epochs": "1", "--finetune-epochs": "1", "--draws": "2"}
        small |= {"--corruptions": "gaussian_noise,contrast", "--severities": "1,5"}
        run = options.protocols.split(",") if options.protocols else protocols_of(options.suite)
        readers = {flag(field.name): field.metadata["read_by"] for field in dataclasses.fields(Options)}
        small = {name: value for name, value in small.items() if set(readers[name]) & set(run)}
        return [*words, *(word for name, value in small.items() if name not in words for word in (name, value))]
    return words


def _as_words(given: dict[str, str]) -> list[str]:
    return [word for name, value in given.items() for word in (f"--{name}", value)]


def _small_grid(words: list[str], options: SimpleNamespace, given: dict[str, str]) -> list[str]:
    """Two values of each field, one seed; a grid of the package as a file with its first two cells."""
    grid = combine(grid=options.grid, recipe=options.recipe, over=options.over, fields=given)
    over = {name: values[: 1 if name == "training.seed" else 2] for name, values in grid.over.items()}
    rows = dict(list(grid.rows.items())[:2])
    fixed = dict(grid.fixed) | {"data.spec": options.data or "photos"}
    small = tiny_fields(configs.resolve(recipe=grid.recipe, overrides=fixed | next(iter(rows.values()), {})))
    swept = set(over) | {name for row in rows.values() for name in row}
    fixed |= {name: value for name, value in small.items() if name not in swept}
    tree = {"recipe": grid.recipe, "set": fixed} | ({"rows": rows} if rows else {})
    tree |= {"over": {name: list(values) for name, values in over.items()}} if over else {}
    Path("small.yaml").write_text(yaml.safe_dump(tree))
    return ["ablate", "--grid", "small.yaml", "--out", str(options.out)]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "prepared"
    folder.mkdir()
    docs_workspace.make_workspace(folder)
    return folder


@pytest.fixture
def workspace(prepared, tmp_path, monkeypatch):
    """A copy of the prepared folder, and the way in; times are measured as short as can be."""
    folder = tmp_path / "work"
    shutil.copytree(prepared, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(parts, "measure", functools.partial(parts.measure, repeats=1, seconds=0.01))
    return folder


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """One command; a folder it is to make is not there before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(words)
        words = runnable(words)
        options, _ = parsed(words)
        if options.command in ("demo", "pretrain") and options.out.name in docs_workspace.RUNS:
            shutil.rmtree(options.out)
        status = cli.main(words)
    assert status == 0, f"{shlex.join(['prosmin', *words])} ended with {status}: {capsys.readouterr().err}"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_and_python_run(name, workspace, capsys):
    if "hf:" in DOCUMENTS[name]:
        docs_workspace.write_huggingface(workspace / "my-hf")
    for words in commands(DOCUMENTS[name]):
        run(words, capsys)
    names: dict[str, object] = {}
    for block in blocks(DOCUMENTS[name], "python") if name not in ELSEWHERE else ():
        exec(compile(block, name, "exec"), own := {})  # every block stands alone
        names |= own
    if name == "README.md":
        assert len(names["unsure"]) == len(names["ood"]) == 12
        assert len(names["similar"]) == 5
    if name == "evaluation.md":
        assert_metrics_are_documented(workspace / "runs")


def assert_metrics_are_documented(runs: Path) -> None:
    """Every metric that was measured stands in its protocol's section, and every one in a table was measured."""
    measured: dict[str, set[str]] = {}
    for file in runs.glob("*/results/*.json"):
        measured.setdefault(file.stem, set()).update(json.loads(file.read_text())["metrics"])
    assert set(measured) == set(PROTOCOLS)
    probabilities = inline(section("## Probabilities"))
    common = [code for code in probabilities if code.islower()]
    names = "|".join(f"{name}|{name}_calibrated" for name in common)
    places = {
        "NAME": f"({names})",
        "SCORE": f"({'|'.join([*DETECTORS, *SCORES, *SURPRISES, JOINT, EMBED])})",
        "N": r"\d+",
    }

    def pattern(documented: str) -> str:
        return re.sub(r"(?<![a-zA-Z])(NAME|SCORE|N)(?![a-zA-Z])", lambda place: places[place.group()], documented)

    for protocol, found in measured.items():
        own = section(f"### {protocol}")
        known = [pattern(code) for code in probabilities + inline(own) if re.fullmatch(r"\w+", code)]
        for name in found:
            assert any(re.fullmatch(each, name) for each in known), f"{protocol} gives {name}, undocumented"
        tables = "".join(re.findall(r"^\| metric \|(?:.*\n(?=\|))*.*\n", own, re.MULTILINE))
        for row in re.findall(r"^\| (`.*?) \|", tables, re.MULTILINE):
            for name in inline(row):
                given = any(re.fullmatch(pattern(name), each) for each in found)
                assert given or name in NOT_MEASURED, f"{protocol} does not give {name}"


def section(heading: str) -> str:
    """What docs/evaluation.md says under a heading."""
    text = DOCUMENTS["evaluation.md"].partition(f"\n{heading}\n")[2]
    assert text, heading
    return re.split(r"^#{1,3} ", text, flags=re.MULTILINE)[0]


def test_a_command_of_the_readme_runs_as_a_program(workspace):
    words = next(words for words in commands(DOCUMENTS["README.md"]) if words[0] == "report")
    done = subprocess.run([sys.executable, "-m", "prosmin", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (workspace / words[1] / "report.html").is_file()


def test_lines_that_are_not_run_are_known_and_checked():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for text in ALL.values():
        for line in command_lines(text):
            first, *rest = shlex.split(line)
            assert first == "prosmin" or first in NOT_RUN, line
            if first == "make":
                assert set(rest) <= targets, line
            elif first != "prosmin" and "prosmin" in rest:
                check(rest[rest.index("prosmin") + 1 :])


def test_options_and_fields_in_the_text_exist():
    ours = set(make_parser().flags()).union(*subcommands().values())
    for name, text in ALL.items():
        for option in re.findall(r"(?<![\w-])--[a-z][\w.-]*", re.sub(r"^#SBATCH.*", "", text, flags=re.MULTILINE)):
            known = option in ours | set(OTHERS_OPTIONS) or option.removeprefix("--") in fields()
            assert known, f"{name}: {option}"
        for code in inline(text):
            field = re.match(r"(\w+)\.(\w+)\b", code)
            if field and field.group(1) in (*configs.GROUPS, "heads", "loss") and field.group(2) not in ("md", "py"):
                assert field.group(0) in fields(), f"{name}: {code}"
            words = code.split()
            if words[0] == "prosmin" and len(words) > 1:
                assert words[1] in subcommands() or words[1].startswith("--"), f"{name}: {code}"


def test_what_there_is_is_documented():
    for protocol in PROTOCOLS:
        assert f"\n### {protocol}\n" in DOCUMENTS["evaluation.md"], protocol
    for score in (*DETECTORS, *SCORES, *SURPRISES, JOINT, EMBED):
        assert f"`{score}`" in section("### ood"), score
    for field in dataclasses.fields(Options):
        assert f"`{flag(field.name)}" in DOCUMENTS["evaluation.md"], field.name
    for command in subcommands():
        assert f"`prosmin {command}`" in DOCUMENTS["use.md"], command
    for kind in KINDS:
        assert f"`{kind}" in DOCUMENTS["data.md"], kind
    for name in known_sets():
        assert f"`{name}`" in DOCUMENTS["data.md"], name
    for method in configs.METHOD_GROUPS:
        assert f"`{method}`" in DOCUMENTS["method.md"], method
    for grid in grid_names():
        assert read_grid(grid).recipe
        assert f"`{grid}`" in DOCUMENTS["ablations.md"], grid


def test_links_lead_somewhere():
    for name, text in ALL.items():
        folder = ROOT if name in ("README.md", "CONTRIBUTING.md") else ROOT / "docs"
        for link in re.findall(r"(?<=\]\()[^)\s]+(?=\))|(?<=src=\")[^\"]+", text):
            target, _, anchor = link.partition("#")
            file = folder / target if target else folder / name
            assert file.exists(), f"{name}: {link}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
                slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert anchor in slugs, f"{name}: {link}"


def test_files_named_in_the_text_exist():
    for name, text in ALL.items():
        for code in inline(text):
            for path in re.findall(r"(?:^|\s)((?:benchmarks|docs|tests|src)/[\w./*-]*)", code):
                if "NAME" not in path:
                    assert any(ROOT.glob(path.rstrip("/"))), f"{name}: {path}"
