"""Image representations, learned without labels, that know how sure they are."""

__version__ = "0.1.0"
__all__ = ["evaluate", "load", "pretrain"]


def __getattr__(name: str) -> object:
    """The three entry points, imported when first asked for, so that `import prosmin.scoring` stays light."""
    if name == "pretrain":
        from prosmin.training.pretrain import pretrain

        return pretrain
    if name == "evaluate":
        from prosmin.evaluation.suite import evaluate

        return evaluate
    if name == "load":
        from prosmin.encoder import load

        return load
    raise AttributeError(f"module 'prosmin' has no attribute {name!r}")
