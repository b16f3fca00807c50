"""A configuration is resolved from layers; later layers replace earlier ones.

The layers: defaults, recipe, the recipe's section for the method, configuration file, command line. Nothing edits the
configuration afterwards; derived values are computed where they are needed.
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
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"The configuration file {path} is not valid YAML: {error}.") from None
    if not isinstance(tree, dict):
        raise UsageError(f"{path} contains {tree!r}; allowed: groups of fields, as in any run's config.yaml.")
    _check_groups(tree, str(path))
    return tree


_MERGE = "tag:yaml.org,2002:merge"  # <<, which may occur twice


class _OnceLoader(yaml.SafeLoader):
    """YAML that refuses a repeated name in a mapping, where PyYAML silently keeps the last value."""

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                name, line = (key.tag, key.value), key.start_mark.line + 1
                if name in lines:
                    raise yaml.YAMLError(f"{key.value} appears twice, in lines {lines[name]} and {line}")
                lines[name] = line
        return node


def _check_groups(tree: Mapping[str, Any], where: str) -> None:
    """Refuse a value in the place of a group; null is an empty group."""
    for name in (*GROUPS, "heads", "loss"):
        if not isinstance(tree.get(name, {}), Mapping | None):
            example = "method: {name: dino}" if name == "method" else "training: {epochs: 3}"
            raise UsageError(f"{name} in {where} is {tree[name]!r}; allowed: a group, such as {example}.")


def shipped_names(folder: str) -> list[str]:
    """The YAML files in a folder of the package ("recipes" or "grids"), without their ending."""
    files = resources.files("prosmin").joinpath(folder).iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def shipped_text(folder: str, name: str) -> str:
    """The text of a YAML file of the package, with its header."""
    names = shipped_names(folder)
    if name not in names:
        raise UsageError(f"There is no {folder[:-1]} {name!r}.{suggest(name, names)} Your own file ends in .yaml.")
    return resources.files("prosmin").joinpath(folder, f"{name}.yaml").read_text()


def read_shipped(folder: str, name: str) -> Tree:
    """The content of your own file NAME.yaml, or of a YAML file of the package."""
    if name.endswith((".yaml", ".yml")):
        return read_yaml(Path(name).expanduser())
    return yaml.safe_load(shipped_text(folder, name))


def recipe_names() -> list[str]:
    """The recipes of the package."""
    return shipped_names("recipes")


def recipe_text(name: str) -> str:
    """The text of a recipe, with its header."""
    return shipped_text("recipes", name)


def read_recipe(name: str) -> tuple[Tree, Tree]:
    """A recipe's settings for all methods, and its sections for single methods."""
    tree = read_shipped("recipes", name)
    sections = tree.pop("methods", {})
    if not isinstance(sections, Mapping):
        raise UsageError(f"methods in the recipe {name} is {sections!r}; allowed: one section of groups per method.")
    for method, part in sections.items():
        if method not in METHOD_GROUPS:
            raise UsageError(f"The recipe {name} has a section for {method!r}.{suggest(str(method), METHOD_GROUPS)}")
        if not isinstance(part, Mapping) or "method" in part:
            raise UsageError(
                f"The section {method} of the recipe {name} is {part!r}; allowed: groups other than method."
            )
        _check_groups(part, f"the section {method} of the recipe {name}")
    return tree, dict(sections)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Tree:
    """Two nested dictionaries as one; the second replaces fields of the first."""
    merged = dict(below)
    for name, value in above.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = merge(merged[name], value) if both else value
    return merged


def resolve(
    *, recipe: str | None = None, file: Path | None = None, overrides: Mapping[str, Any] | None = None
) -> Config:
    """The configuration of a recipe or a file, changed by `overrides` ({"training.epochs": 3, ...})."""
    tree, sections = read_recipe(recipe) if recipe is not None else ({}, {})
    given = read_yaml(file) if file else {}
    if "methods" in given:
        raise UsageError(f"{file} is a recipe (it has sections for methods), not a configuration: use --recipe {file}.")
    above = merge(given, _nest(overrides or {}))
    file_method, new_method = _method(given), _method(above)
    if file_method is not None and new_method != file_method:
        raise UsageError(
            f"{file} has the settings of {file_method}, which do not fit method.name {new_method}. "
            f"Start from a recipe, which has a section for each method: --recipe NAME --method.name {new_method}."
        )
    default = MethodConfig().name
    method = _method(merge(tree, above)) or default
    config = build(merge(merge(tree, sections.get(method, {})), above))
    if recipe and method not in sections and (sections or method != (_method(tree) or default)):
        warnings.warn(
            f"the recipe {recipe} has no section for {method}: heads and loss have the method's defaults, which may "
            "not suit these images and this network",
            stacklevel=2,
        )
    return config


def _method(tree: Mapping[str, Any]) -> Any:
    return (tree.get("method") or {}).get("name")


def _nest(overrides: Mapping[str, Any]) -> Tree:
    tree: Tree = {}
    for path, value in overrides.items():
        group, _, field = path.partition(".")
        if not field:
            raise UsageError(
                f"There is no option --{path}; a field is written --group.field, "
                f"where group is one of {', '.join(GROUPS)}, heads, loss."
            )
        tree.setdefault(group, {})[field] = value
    return tree
