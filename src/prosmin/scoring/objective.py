"""Which settings of the loss can be combined, in one table, and the check of a configuration."""

import warnings
from dataclasses import dataclass

from prosmin.errors import UsageError
from prosmin.scoring.propriety import PAIRS, RULES, propriety
from prosmin.scoring.settings import check_bandwidth, check_beta, check_lam, check_pair_count, check_samples

NORMS = ("euclidean", "coordinate")
ESTIMATORS = ("paired", "ustat", "closed")


class ProprietyWarning(UserWarning):
    """The loss has a minimum, but not at the true distribution."""


@dataclass(frozen=True)
class Row:
    """Settings that can be combined."""

    rule: str
    norm: str
    pairs: str
    estimator: str
    any_beta: bool  # else beta is 1
    gives: str

    def misses(self, rule: str, norm: str, pairs: str, estimator: str, beta: float) -> tuple[bool, ...]:
        """Which settings differ from this row, the most important first."""
        wrong_beta = not self.any_beta and beta != 1.0
        return rule != self.rule, pairs != self.pairs, norm != self.norm, estimator != self.estimator, wrong_beta

    def __str__(self) -> str:
        beta = "any beta" if self.any_beta else "beta 1"
        return f"rule {self.rule}, norm {self.norm}, pairs {self.pairs}, estimator {self.estimator}, {beta}"


TABLE = (
    Row("energy", "euclidean", "within", "paired", True, "unbiased, least noise; the default"),
    Row("energy", "euclidean", "within", "ustat", True, "unbiased"),
    Row("energy", "euclidean", "within", "closed", False, "approximate: second order in 1/K"),
    Row("energy", "euclidean", "pooled", "ustat", True, "the paper's Eq. 2; rewards views for being apart"),
    Row("energy", "euclidean", "pooled", "closed", False, "approximate: second order in 1/K"),
    Row("energy", "coordinate", "within", "paired", True, "unbiased"),
    Row("energy", "coordinate", "within", "ustat", True, "unbiased; the published code's"),
    Row("energy", "coordinate", "within", "closed", False, "exact; the same as rule crps"),
    Row("energy", "coordinate", "pooled", "ustat", True, "rewards views for being apart"),
    Row("energy", "coordinate", "pooled", "closed", False, "exact; the same as rule crps"),
    Row("crps", "coordinate", "within", "closed", False, "exact"),
    Row("crps", "coordinate", "pooled", "closed", False, "exact, of the mixture of views"),
    Row("kernel", "euclidean", "within", "paired", False, "unbiased"),
    Row("kernel", "euclidean", "within", "ustat", False, "unbiased"),
    Row("kernel", "euclidean", "within", "closed", False, "exact"),
    Row("kernel", "euclidean", "pooled", "ustat", False, "rewards views for being apart"),
    Row("kernel", "euclidean", "pooled", "closed", False, "exact, of the mixture of views"),
)


def validity_table() -> str:
    """The table as Markdown, for the documentation."""
    rows = [("rule", "norm", "pairs", "estimator", "beta", "what it gives"), ("---",) * 6]
    for r in TABLE:
        rows.append((r.rule, r.norm, r.pairs, r.estimator, "in (0, 2)" if r.any_beta else "1", r.gives))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def check_objective(
    *,
    rule: str,
    norm: str,
    pairs: str,
    estimator: str,
    beta: float,
    lam: float,
    samples: int,
    antithetic: bool,
    same_view: bool,
    bandwidth: float | None,
    force: bool,
    views: int = 2,
) -> None:
    """An error for a loss without a meaning or a minimum; a warning if the minimum is not the true distribution.

    `views` matters for pooled pairs: their threshold rises with it.
    """
    for name, value, known in (
        ("rule", rule, RULES),
        ("norm", norm, NORMS),
        ("pairs", pairs, PAIRS),
        ("estimator", estimator, ESTIMATORS),
    ):
        if value not in known:
            raise UsageError(f"loss.{name} is {value!r}; allowed: {', '.join(known)}.")
    check_beta(beta, name="loss.beta")
    check_lam(lam, name="loss.lam")
    check_bandwidth(bandwidth, name="loss.bandwidth")
    _check_together(rule, norm, pairs, estimator, beta)
    if estimator == "ustat":
        check_pair_count(samples, name="loss.samples")
    elif estimator == "paired":
        check_samples(samples, antithetic=antithetic, name="loss.samples")
    if pairs == "pooled" and not same_view:
        raise UsageError(
            "loss.same_view is false with loss.pairs pooled; allowed: true, as the pool contains all views. "
            "Add --loss.same_view true, or use loss.pairs within to leave out pairs of the same view."
        )
    _guard(rule, pairs, estimator, beta, lam, samples, views=views, force=force)


def _check_together(rule: str, norm: str, pairs: str, estimator: str, beta: float) -> None:
    nearest = min(TABLE, key=lambda row: row.misses(rule, norm, pairs, estimator, beta))
    if any(nearest.misses(rule, norm, pairs, estimator, beta)):
        raise UsageError(
            f"The loss has rule {rule}, norm {norm}, pairs {pairs}, estimator {estimator}, beta {beta:g}, "
            f"which cannot be combined. The nearest settings that can: {nearest}."
        )


def _guard(
    rule: str, pairs: str, estimator: str, beta: float, lam: float, samples: int, *, views: int, force: bool
) -> None:
    drawn = None if estimator == "closed" else samples
    found = propriety(beta, lam, rule=rule, pairs=pairs, views=views, samples=drawn)
    # The kernel score is proper at its threshold of 1/2; the others have no minimum at theirs.
    lost = lam < found.threshold if rule == "kernel" else lam <= found.threshold
    if (lost or beta == 2.0) and not force:
        raise UsageError(f"{found.verdict} Use loss.lam 0.5 and loss.beta 1, or loss.force true to train anyway.")
    if not found.proper:
        warnings.warn(found.verdict, ProprietyWarning, stacklevel=3)
