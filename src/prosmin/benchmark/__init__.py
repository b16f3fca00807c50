"""How fast a recipe trains and what limits it: decoding, views, step, and all of them together."""

from prosmin.benchmark.run import benchmark

__all__ = ["benchmark"]
