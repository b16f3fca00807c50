"""The linear probe: logistic regression on standardised, frozen features, everything chosen within train.

The l2 and the temperature are chosen on labels the fitted model did not see; then all of train is fitted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from prosmin.data.subsets import deal_folds, held_out_tenth
from prosmin.errors import ProsminError
from prosmin.evaluation.metrics.calibration import fit_temperature, temperature_scale
from prosmin.evaluation.probes.logistic import Problem, Solution, prepare, solve

L2_GRID = (1e2, 1e1, 1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
"""Strengths tried, in  mean cross-entropy + l2 / 2 * |weight|^2;  scikit-learn's C is 1 / (l2 * N)."""


@dataclass(frozen=True, kw_only=True)
class LinearProbe:
    """A fitted probe: weight (C, D) and bias (C,) for features standardised with mean (D,) and std (D,).

    `path` is the NLL, before the temperature, on the labels the choices were made on, for each l2 tried.
    """

    weight: Tensor
    bias: Tensor
    mean: Tensor
    std: Tensor
    l2: float
    temperature: float
    path: dict[float, float]

    def logits(self, features: Tensor) -> Tensor:
        """(N, D) -> (N, C), where the probe is."""
        return F.linear((features.to(self.weight) - self.mean) / self.std, self.weight, self.bias)

    def probabilities(self, features: Tensor) -> Tensor:
        """(N, D) -> (N, C), before temperature scaling."""
        return temperature_scale(self.logits(features), 1.0)


def linear_probe(
    train_features: Tensor,
    train_labels: Tensor,
    *,
    classes: int,
    seed: int,
    l2_grid: Sequence[float] = L2_GRID,
    folds: int | None = None,
    groups: Tensor | None = None,
    held_out: Tensor | None = None,
) -> LinearProbe:
    """Fit a probe on features (N, D) and labels (N,) from 0 to classes - 1.

    l2 and temperature are those of least NLL on the held-out tenth, `held_out` (N,) where images that overlap must
    stay together. Where a tenth is a handful of labels (low-shot), `folds` = 5 instead predicts every label with the
    model of the other four folds; `groups` (N,) are not torn apart by them.
    """
    labels = train_labels.to(train_features.device)
    _check(train_features, labels, classes)
    masks = _held_out_masks(labels, folds, seed, groups) if held_out is None else [held_out.to(labels.device)]
    problem = prepare(train_features, labels, classes=classes)
    path, logits = _choose_l2(problem, torch.stack(masks), l2_grid=l2_grid)
    l2 = min(path, key=path.__getitem__)
    weight, bias = (part[0] for part in solve(problem, l2))
    unseen = torch.cat([labels[mask] for mask in masks])
    return LinearProbe(
        weight=weight.float(),
        bias=bias.float(),
        mean=problem.mean.float(),
        std=problem.std.float(),
        l2=l2,
        temperature=fit_temperature(logits, unseen),
        path=path,
    )


def _choose_l2(problem: Problem, masks: Tensor, *, l2_grid: Sequence[float]) -> tuple[dict[float, float], Tensor]:
    """The NLL of each l2, from strong to weak, on what masks (P, N) keep from fits; the logits (n, C) of the best."""
    solution: Solution | None = None
    unseen = torch.cat([problem.labels[mask] for mask in masks])
    path: dict[float, float] = {}
    best = problem.inputs.new_zeros(len(unseen), problem.classes)
    rises = 0
    for l2 in sorted(l2_grid, reverse=True):
        # Each fit starts from the stronger one before it.
        solution = solve(problem, l2, seen=~masks, start=solution)
        parts = zip(masks, *solution, strict=True)
        logits = torch.cat([F.linear(problem.inputs[mask], weight, bias) for mask, weight, bias in parts])
        path[l2] = F.cross_entropy(logits, unseen).item()
        best, rises = (logits, 0) if path[l2] == min(path.values()) else (best, rises + 1)
        if rises == 2:
            break  # well past the minimum, and the weakest fits are the slowest
    return path, best


def _held_out_masks(labels: Tensor, folds: int | None, seed: int, groups: Tensor | None) -> list[Tensor]:
    """The images each choosing model does not see: the tenth, or one fold after the other."""
    if folds is None:
        masks = [held_out_tenth(labels, seed=seed, groups=groups)]
    else:
        fold = deal_folds(labels, folds, seed=seed, groups=groups)
        masks = [fold == i for i in range(folds)]
    if any(not bool(mask.any()) for mask in masks):
        raise ProsminError(
            f"{len(labels)} labels leave none to choose the probe's strength on; give every class two labels or more."
        )
    return masks


def _check(features: Tensor, labels: Tensor, classes: int) -> None:
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        raise ProsminError(
            f"The features have shape {tuple(features.shape)} and the labels {tuple(labels.shape)}; "
            "allowed: (N, D) and (N,)."
        )
    if not bool(torch.isfinite(features).all()):
        raise ProsminError("The features hold values that are not finite; is the checkpoint sound?")
    present = torch.unique(labels).tolist()
    if present != list(range(classes)):
        raise ProsminError(
            f"The train labels hold {len(present)} classes ({_some(present)}), but {classes} are expected; "
            f"allowed: each from 0 to {classes - 1} at least once. Do both splits have the same classes?"
        )


def _some(values: list[int]) -> str:
    shown = ", ".join(str(v) for v in values[:5])
    return shown + (", ..." if len(values) > 5 else "")
