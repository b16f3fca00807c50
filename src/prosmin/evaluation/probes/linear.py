"""The linear probe: logistic regression on standardised, frozen features.

The l2 and the temperature are chosen on held-out labels of train; then all of train is fitted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from prosmin.data.subsets import deal_folds, held_out_tenth
from prosmin.errors import ProsminError
from prosmin.evaluation.metrics.calibration import Predictions, fit_temperature, temperature_scale
from prosmin.evaluation.probes.logistic import Problem, Solution, prepare, solve
from prosmin.messages import some

L2_GRID = (1e2, 1e1, 1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
"""Strengths tried, in  mean cross-entropy + l2 / 2 * |weight|^2;  scikit-learn's C is 1 / (l2 * N)."""


@dataclass(frozen=True, kw_only=True)
class LinearProbe:
    """A fitted probe: weight (C, D) and bias (C,) for features standardised with mean (D,) and std (D,).

    `path` is the NLL on the held-out labels, before temperature scaling, for each l2 tried.
    """

    weight: Tensor
    bias: Tensor
    mean: Tensor
    std: Tensor
    l2: float
    temperature: float
    path: dict[float, float]

    def logits(self, features: Tensor) -> Tensor:
        """(N, D) -> (N, C), on the probe's device."""
        return F.linear((features.to(self.weight) - self.mean) / self.std, self.weight, self.bias)

    def predict(self, features: Tensor) -> Predictions:
        """Predictions for features (N, D)."""
        return Predictions(logits=self.logits(features), temperature=self.temperature, settings={"l2": self.l2})

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

    l2 and temperature are those of least NLL on a held-out tenth, or on the mask `held_out` (N,) if images overlap
    and must stay together. With few labels (low-shot), `folds` = 5 uses cross-validation instead; images of one of
    the `groups` (N,) stay in one fold.
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
    """The NLL of each l2, from strong to weak, on the held-out masks (P, N); the logits (n, C) of the best."""
    solution: Solution | None = None
    unseen = torch.cat([problem.labels[mask] for mask in masks])
    path: dict[float, float] = {}
    best = problem.inputs.new_zeros(len(unseen), problem.classes)
    rises = 0
    for l2 in sorted(l2_grid, reverse=True):
        # Each fit starts from the one before.
        solution = solve(problem, l2, seen=~masks, start=solution)
        parts = zip(masks, *solution, strict=True)
        logits = torch.cat([F.linear(problem.inputs[mask], weight, bias) for mask, weight, bias in parts])
        path[l2] = F.cross_entropy(logits, unseen).item()
        best, rises = (logits, 0) if path[l2] == min(path.values()) else (best, rises + 1)
        if rises == 2:
            break  # well past the minimum, and the weakest fits are the slowest
    return path, best


def _held_out_masks(labels: Tensor, folds: int | None, seed: int, groups: Tensor | None) -> list[Tensor]:
    """The held-out images: the tenth, or one fold after the other."""
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
        raise ProsminError("The features contain values that are not finite; check the encoder's weights for NaN.")
    present = [str(label) for label in torch.unique(labels).tolist()]
    if present != [str(label) for label in range(classes)]:
        raise ProsminError(
            f"The train labels have {len(present)} classes ({some(present)}), but {classes} are expected; "
            f"allowed: each from 0 to {classes - 1} at least once. Do both splits have the same classes?"
        )
