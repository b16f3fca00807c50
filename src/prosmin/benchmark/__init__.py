"""How fast a recipe trains and what bounds it: decoding, views, step, and all of it together."""

from prosmin.benchmark.run import benchmark

__all__ = ["benchmark"]
