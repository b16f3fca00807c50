"""How much less noisy are antithetic samples than plain ones, by the distance of the mean from the target?

    python benchmarks/estimator_noise.py --out benchmarks/results/estimator-noise.json

K 1024, scale 1 in every coordinate, 4 samples, 2,000 repetitions: standard deviation of the paired estimator's value,
and root mean square deviation of its gradient in the mean, plain over antithetic; null: the latter has no noise at all.
"""

import argparse
import json
import math
import platform
import sys
from pathlib import Path

import torch
from torch import Tensor

from prosmin.scoring import gaussian_energy_score

K, SAMPLES, REPETITIONS = 1024, 4, 2000


def draw(offset: float, *, antithetic: bool) -> tuple[Tensor, Tensor]:
    """Values (R,) and gradients (R, K) of independent repetitions."""
    mean = torch.full((REPETITIONS, K), offset, requires_grad=True)
    scale, target = torch.ones(REPETITIONS, K), torch.zeros(REPETITIONS, K)
    random = torch.Generator().manual_seed(0)
    score = gaussian_energy_score(mean, scale, target, samples=SAMPLES, antithetic=antithetic, generator=random)
    (gradient,) = torch.autograd.grad(score.sum(), mean)
    return score.detach().double(), gradient.double()


def main() -> None:
    """Measure at several distances and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    rows = []
    for offset in (0.0, 0.2, 1.0, 3.0):
        plain, mirrored = draw(offset, antithetic=False), draw(offset, antithetic=True)
        value, gradient = (
            (a.var(0).mean() / b.var(0).mean()).sqrt().item() for a, b in zip(plain, mirrored, strict=True)
        )
        rows.append(
            {
                "offset_in_scales": offset,
                "value_noise_ratio": value,
                "gradient_noise_ratio": gradient if math.isfinite(gradient) else None,
            }
        )
        print(rows[-1], flush=True)
    report = {"command": " ".join(["python", *sys.argv]), "machine": platform.machine(), "torch": torch.__version__}
    out.write_text(json.dumps(report | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
