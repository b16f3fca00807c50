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

from prosmin.config.build import GROUPS, Config, MethodConfig, Tree, build
from prosmin.config.methods import METHOD_GROUPS
from prosmin.errors import MissingFileError, UsageError
from prosmin.messages import suggest


def read_yaml(path: Path) -> Tree:
    """A configuration file as a nested dictionary."""
    try:
        tree = yaml.load(path.read_text(), _OnceLoader)
    except FileNotFoundError:
        raise MissingFileError(f"The configuration file {path} does not exist.") from None
    except OSError as error:
        raise UsageError(f"The configuration file {path} cannot be read: {error.strerror}.") from None
    except _WrittenTwiceError as error:
        raise UsageError(f"In {path}, {error}. Write all of it in one place.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"The configuration {path} is not YAML: {error}.") from None
    if not isinstance(tree, dict):
        raise UsageError(
            f"The configuration {path} holds {tree!r}; allowed: groups of fields, as in any run's config.yaml."
        )
    _check_groups(tree, str(path))
    return tree


_MERGE = "tag:yaml.org,2002:merge"  # <<, which may stand beside another


class _WrittenTwiceError(yaml.YAMLError):
    """A name stands twice in one mapping."""


class _OnceLoader(yaml.SafeLoader):
    """YAML in which a name may stand once in a mapping: of two the later would win without a word."""

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                name, line = (key.tag, key.value), key.start_mark.line + 1
                if name in lines:
                    raise _WrittenTwiceError(f"{key.value} is written twice, in lines {lines[name]} and {line}")
                lines[name] = line
        return node


def _check_groups(tree: Mapping[str, Any], where: str) -> None:
    """An error where a group has a value instead of fields; nothing at all is an empty group."""
    for name in (*GROUPS, "heads", "loss"):
        if not isinstance(tree.get(name, {}), Mapping | None):
            example = "method: {name: dino}" if name == "method" else "training: {epochs: 3}"
            raise UsageError(f"{name} in {where} is {tree[name]!r}; allowed: a group, such as {example}.")


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(
        p.name[:-5] for p in resources.files("prosmin").joinpath("recipes").iterdir() if p.name.endswith(".yaml")
    )


def recipe_text(name: str) -> str:
    """A recipe's file, its header included."""
    names = recipe_names()
    if not name:
        raise UsageError(
            "The name of the recipe is empty, as of a variable of the shell that is not set. "
            f"There are: {', '.join(names)}; a file of your own ends in .yaml."
        )
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
        _check_groups(part, f"the section {method} of the recipe {name}")
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
    tree, sections = read_recipe(recipe) if recipe is not None else ({}, {})
    given = read_yaml(file) if file else {}
    if "methods" in given:
        raise UsageError(f"{file} is a recipe, with sections for methods, and no configuration: --recipe {file}.")
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
            "another size of network and images",
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
