"""What a setting of the score trains towards: the true distribution, a wrong scale, or nothing at all.

A score 2 lam E rho(Z, z) - (1 - lam) E rho(Z, Z') is proper at lam = 1/2. Below 1/2 it rewards spread, above it
punishes spread; below a threshold the reward exceeds the cost and the score has no minimum. docs/scoring.md derives the
formulas.
"""

import math
from dataclasses import dataclass

from prosmin.errors import UsageError
from prosmin.scoring.settings import check_bandwidth, check_beta, check_lam

RULES = ("energy", "crps", "kernel")
PAIRS = ("within", "pooled")


@dataclass(frozen=True, kw_only=True)
class Propriety:
    """What a setting trains towards."""

    threshold: float  # lam at or below which the score has no minimum; kernel: below which it rewards spread
    proper: bool  # whether the true distribution is the minimiser
    scale_inflation: float  # learned scale over true spread of a Gaussian target; inf: no minimum, nan: unknown
    verdict: str  # the same in a sentence


def propriety(
    beta: float,
    lam: float,
    *,
    rule: str = "energy",
    pairs: str = "within",
    views: int = 1,
    samples: int | None = 4,
    dim: int | None = None,
    bandwidth: float | None = None,
) -> Propriety:
    """What `lam` and `beta` do to the forecast, by rule (energy, crps, kernel) and pairs (within, pooled).

    `views` and `samples` matter for pooled pairs only; samples None means the exact mixture. For the kernel, the scale
    also depends on the dimension and the bandwidth (in units of the true spread): without `dim` and `bandwidth` it is
    nan.
    """
    check_beta(beta)
    check_lam(lam)
    check_bandwidth(bandwidth)
    _check_known(rule=rule, pairs=pairs, beta=beta, views=views, samples=samples)
    pooled = pairs == "pooled" and views > 1
    if rule == "kernel":
        threshold = 0.5
        inflation = _kernel_inflation(lam, dim, bandwidth)
    else:
        threshold = _threshold(beta, views if pooled else 1, samples)
        inflation = math.inf if lam <= threshold and beta < 2.0 else _inflation(beta, lam)
    # A pool of finitely many samples of each view has too few pairs within a view: see docs/scoring.md.
    proper = lam == 0.5 and beta < 2.0 and lam >= threshold and not (pooled and samples is not None)
    verdict = _verdict(beta, lam, rule, threshold, inflation, proper=proper, pooled=pooled)
    return Propriety(threshold=threshold, proper=proper, scale_inflation=inflation, verdict=verdict)


def _check_known(*, rule: str, pairs: str, beta: float, views: int, samples: int | None) -> None:
    if rule not in RULES:
        raise UsageError(f"rule is {rule!r}; allowed: {', '.join(RULES)}.")
    if pairs not in PAIRS:
        raise UsageError(f"pairs is {pairs!r}; allowed: {', '.join(PAIRS)}.")
    if rule != "energy" and beta != 1.0:
        raise UsageError(f"beta is {beta:g} with rule {rule}; allowed: 1, as only the energy score has a power.")
    if views < 1:
        raise UsageError(f"views is {views}; allowed: 1 or more.")
    if pairs == "pooled" and samples is not None and samples < 2:
        raise UsageError(f"samples is {samples}; allowed: 2 or more, or none for the exact mixture.")


def _threshold(beta: float, views: int, samples: int | None) -> float:
    """The lam below which more spread always lowers the score, for a target that is one point.

    The score grows with the size of the forecast like 2 lam A - (1 - lam) P; at the threshold, the largest P / (2 A) of
    any arrangement of Gaussian views equals lam / (1 - lam). Exact for one view and for beta <= 1, a lower bound above.
    """
    V, own = views, 2.0 ** (beta / 2.0 - 1.0)
    if V == 1:
        return own / (1.0 + own)
    # One view widens while the others stay on the point: the worst case for beta <= 1, by the triangle inequality.
    if samples is None:
        widened, finite = (V - 1 + own) / V, 1.0
    else:
        pool = V * samples
        widened, finite = (samples * (V - 1) + (samples - 1) * own) / (pool - 1), pool / (pool - 1)
    # One view moves to one side, the others to the opposite side, at the best distances: worse for beta near 2.
    parted = 0.0
    if beta > 1.0:
        power = 1.0 / (beta - 1.0)
        parted = finite * (V**-power + (1.0 - 1.0 / V) ** power) ** (beta - 1.0)
    worst = max(widened, parted)
    return worst / (1.0 + worst)


def _inflation(beta: float, lam: float) -> float:
    """Learned scale over true spread: sqrt(q / (2 - q)), q = ((1 - lam) / lam)^(2 / (2 - beta))."""
    if beta == 2.0:  # the weight of the scale is 2 (2 lam - 1): it is free, or pushed one way
        return math.nan if lam == 0.5 else (0.0 if lam > 0.5 else math.inf)
    log_q = 2.0 / (2.0 - beta) * math.log((1.0 - lam) / lam)
    if log_q >= math.log(2.0):
        return math.inf
    q = math.exp(log_q)
    return math.sqrt(q / (2.0 - q))


def _kernel_inflation(lam: float, dim: int | None, bandwidth: float | None) -> float:
    """For the kernel: scale^2 = (t + (t - 1) h^2) / (2 - t), t = ((1 - lam) / lam)^(2 / (dim + 2))."""
    if lam == 0.5:
        return 1.0
    if dim is None or bandwidth is None:
        return math.nan
    t = ((1.0 - lam) / lam) ** (2.0 / (dim + 2.0))
    return math.inf if t >= 2.0 else math.sqrt(max(0.0, (t + (t - 1.0) * bandwidth**2) / (2.0 - t)))


def _verdict(
    beta: float, lam: float, rule: str, threshold: float, inflation: float, *, proper: bool, pooled: bool
) -> str:
    if proper:
        return f"lam {lam:g}: proper, the learned scale will be the true spread."
    if beta == 2.0:
        return f"beta 2 with lam {lam:g}: the score is a squared error and does not identify the scale."
    if rule == "kernel" and lam < threshold:
        return f"lam {lam:g} is below 0.5: the score rewards spread, and the forecast of a sharp target is too wide."
    if rule != "kernel" and lam <= threshold:
        what = "the views or their scales move" if pooled else "the scale grows"
        return f"lam {lam:g} is at or below {threshold:.4f}: the score has no minimum, {what} away without end."
    if lam == 0.5:
        return "lam 0.5: pooled samples reward views for being apart, by one part in views times samples."
    if math.isnan(inflation):
        return (
            f"lam {lam:g}: the learned scale will be below the true spread; how far depends on bandwidth and dimension."
        )
    note = " where all views agree" if pooled else ""
    return f"lam {lam:g}: the learned scale will be {inflation:.3g} times the true spread{note}."
