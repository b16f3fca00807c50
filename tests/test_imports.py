"""Who imports whom: as the table of CONTRIBUTING.md says, and never in a circle."""

import ast
import graphlib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src/prosmin"
ENTRANCES = ("__init__", "__main__")  # they import what they name when it is asked for


def modules() -> dict[str, Path]:
    """Every module by its name."""
    files = {".".join(path.relative_to(ROOT / "src").with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in files.items()}


def imports(nodes, known) -> set[str]:
    """The modules of ours that these statements import."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {name if (name := f"{node.module}.{a.name}") in known else node.module for a in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & known.keys()


def place(module: str) -> str:
    """The folder or file below src/prosmin that a module is of, as the table names it."""
    part = module.split(".")[1]
    return f"{part}/" if (PACKAGE / part).is_dir() else f"{part}.py"


def rows() -> dict[str, int]:
    """Folders and files in the order of CONTRIBUTING.md's table."""
    lines = [line for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines() if line.startswith("| `")]
    return {name: i for i, line in enumerate(lines) for name in re.findall(r"`([^`]+)`", line.split("|")[1])}


def test_nothing_imports_in_a_circle():
    known = modules()
    graph = {name: imports(ast.parse(path.read_text()).body, known) - {name} for name, path in known.items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError with the circle


def test_the_table_has_every_folder_and_file():
    assert set(rows()) == {
        place(name) for name in modules() if name != "prosmin" and name.split(".")[1] not in ENTRANCES
    }


def test_imports_follow_the_table():
    known, order = modules(), rows()
    against = set()
    for name, path in known.items():
        if name == "prosmin" or name.split(".")[1] in ENTRANCES:
            continue
        for other in imports(ast.walk(ast.parse(path.read_text())), known) - {"prosmin"}:
            if order[place(other)] > order[place(name)]:
                against.add((name, other))
    assert against == set()
