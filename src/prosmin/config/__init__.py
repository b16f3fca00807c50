"""The configuration: frozen dataclasses in groups, checked when built, saved as YAML that reruns the run."""

from prosmin.config.build import (
    GROUPS,
    Config,
    MethodConfig,
    Tree,
    build,
    describe,
    differences,
    fingerprint,
    groups,
    to_tree,
    to_yaml,
)
from prosmin.config.fields import (
    BackboneConfig,
    ComputeConfig,
    DataConfig,
    OptimizerConfig,
    TargetConfig,
    TrainingConfig,
    ViewsConfig,
    option,
)
from prosmin.config.methods import (
    METHOD_GROUPS,
    METHOD_TITLES,
    DinoHeads,
    DinoLoss,
    IbotHeads,
    IbotLoss,
    MocoHeads,
    MocoLoss,
    ProsminHeads,
    ProsminLoss,
    ProsminTarget,
    method_title,
)
from prosmin.config.recipes import merge, read_yaml, recipe_names, recipe_text, resolve

__all__ = [
    "GROUPS", "METHOD_GROUPS", "METHOD_TITLES", "BackboneConfig", "ComputeConfig", "Config", "DataConfig", "DinoHeads",
    "DinoLoss", "IbotHeads", "IbotLoss", "MethodConfig", "MocoHeads", "MocoLoss", "OptimizerConfig", "ProsminHeads",
    "ProsminLoss", "ProsminTarget", "TargetConfig", "TrainingConfig", "Tree", "ViewsConfig", "build", "describe",
    "differences", "fingerprint", "groups", "merge", "method_title", "option", "read_yaml", "recipe_names",
    "recipe_text", "resolve", "to_tree", "to_yaml",
]  # fmt: skip
