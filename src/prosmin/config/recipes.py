"""A configuration is resolved from layers, later ones winning.

The defaults, a recipe, the recipe's section for the method, a configuration file, the command line. Nothing edits it
afterwards; derived values are computed where they are needed.
"""

import warnings
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from prosmin.config.methods import METHOD_GROUPS
from prosmin.config.tree import GROUPS, Config, MethodConfig, Tree, build
from prosmin.errors import UsageError
from prosmin.meant import suggest


def read_yaml(path: Path) -> Tree:
    """A configuration file as a nested dictionary."""
    try:
        tree = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UsageError(f"The configuration {path} cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"The configuration {path} is not YAML: {error}.") from None
    if not isinstance(tree, dict):
        raise UsageError(
            f"The configuration {path} holds {tree!r}; allowed: groups of fields, as in any run's config.yaml."
        )
    if not isinstance(tree.get("method") or {}, Mapping):
        raise UsageError(f"method in {path} is {tree['method']!r}; allowed: a group, such as method: {{name: dino}}.")
    return tree


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(
        p.name[:-5] for p in resources.files("prosmin").joinpath("recipes").iterdir() if p.name.endswith(".yaml")
    )


def recipe_text(name: str) -> str:
    """A recipe's file, its header included."""
    names = recipe_names()
    if name not in names:
        raise UsageError(f"There is no recipe {name!r}.{suggest(name, names)} A file of your own ends in .yaml.")
    return resources.files("prosmin").joinpath("recipes", f"{name}.yaml").read_text()


def read_recipe(name: str) -> tuple[Tree, Tree]:
    """What a recipe of the package or a file NAME.yaml says for every method, and its sections for single ones."""
    tree = read_yaml(Path(name).expanduser()) if name.endswith((".yaml", ".yml")) else yaml.safe_load(recipe_text(name))
    sections = tree.pop("methods", {})
    if not isinstance(sections, Mapping):
        raise UsageError(f"methods in the recipe {name} is {sections!r}; allowed: a section of groups for each method.")
    for method, part in sections.items():
        if method not in METHOD_GROUPS:
            raise UsageError(f"The recipe {name} has a section for {method!r}.{suggest(str(method), METHOD_GROUPS)}")
        if not isinstance(part, Mapping) or "method" in part:
            raise UsageError(f"The section {method} of the recipe {name} is {part!r}; allowed: groups, but not method.")
    return tree, dict(sections)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Tree:
    """Two trees as one, the second winning field by field."""
    merged = dict(below)
    for name, value in above.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = merge(merged[name], value) if both else value
    return merged


def resolve(
    *, recipe: str | None = None, file: Path | None = None, overrides: Mapping[str, Any] | None = None
) -> Config:
    """The configuration of a recipe or a file, with `overrides` ({"training.epochs": 3, ...}) on top."""
    tree, sections = read_recipe(recipe) if recipe else ({}, {})
    given = read_yaml(file) if file else {}
    above = merge(given, _nest(overrides or {}))
    of_file, wanted = ((part.get("method") or {}).get("name") for part in (given, above))
    if of_file is not None and wanted != of_file:
        raise UsageError(
            f"{file} holds the settings of {of_file}, and method.name {wanted} would take them for its own. "
            f"Begin with a recipe, which has a section for each method: --recipe NAME --method.name {wanted}."
        )
    method = (merge(tree, above).get("method") or {}).get("name", MethodConfig().name)
    config = build(merge(merge(tree, sections.get(method, {})), above))
    of_recipe = (tree.get("method") or {}).get("name", MethodConfig().name)
    if recipe and method not in sections and (sections or method != of_recipe):
        warnings.warn(
            f"the recipe {recipe} has no section for {method}: heads and loss are its defaults, which may suit "
            "another size of network and pictures",
            stacklevel=2,
        )
    return config


def _nest(overrides: Mapping[str, Any]) -> Tree:
    tree: Tree = {}
    for path, value in overrides.items():
        group, _, field = path.partition(".")
        if not field:
            raise UsageError(
                f"There is no option --{path}; fields are written --group.field, "
                f"with a group of: {', '.join(GROUPS)}, heads, loss."
            )
        tree.setdefault(group, {})[field] = value
    return tree
