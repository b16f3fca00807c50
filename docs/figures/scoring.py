"""The two figures of docs/scoring.md: python docs/figures/scoring.py"""

import math
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib import pyplot as plt

from prosmin.scoring import energy_score, gaussian_energy_score, propriety

HERE = Path(__file__).parent
COLOURS = ["#b2182b", "#e08214", "#1b7837", "#2166ac"]


def new_axes() -> tuple[plt.Figure, plt.Axes]:
    """A small figure without a frame."""
    figure, axes = plt.subplots(figsize=(6.0, 3.4), layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def label(axes: plt.Axes, text: str, point: tuple[float, float], colour: str, *, below: bool) -> None:
    """A curve's name beside the curve, in its colour."""
    shift = (0, -15) if below else (0, 8)
    axes.annotate(text, point, shift, textcoords="offset points", color=colour, fontsize=9, ha="center")


def save(figure: plt.Figure, name: str) -> None:
    """As SVG without a date, so that the same figure is the same file."""
    figure.savefig(HERE / name, metadata={"Date": None})
    plt.close(figure)


def score_against_scale() -> None:
    """The expected score of N(0, scale^2) for a target N(0, 1), beta = 1, for several lam."""
    figure, axes = new_axes()
    scales = [10 ** (-1 + i / 100) for i in range(181)]

    def expected(scale: float, lam: float) -> float:
        to_target = math.sqrt(2 / math.pi * (1 + scale**2))
        return 2 * lam * to_target - (1 - lam) * 2 * scale / math.sqrt(math.pi)

    for lam, colour in zip((0.40, 0.45, 0.50, 0.60), COLOURS, strict=True):
        axes.plot(scales, [expected(s, lam) for s in scales], color=colour)
        best = propriety(1.0, lam).scale_inflation
        at, text = best, f"lam {lam:.2f}: lowest at {best:.2f}"
        if math.isinf(best):
            at, text = 0.22, f"lam {lam:.2f}: no minimum"
        else:
            axes.plot(best, expected(best, lam), "o", color=colour)
        point = (at, expected(at, lam))
        label(axes, text, point, colour, below=True)
    axes.axvline(1.0, color="0.6", linewidth=0.8, linestyle=":")
    axes.set(xscale="log", xlim=(0.1, 6.3), ylim=(0.0, 1.05))
    axes.set(xlabel="scale of the forecast / true spread", ylabel="expected score")
    axes.set_xticks([0.1, 0.2, 0.5, 1, 2, 5], ["0.1", "0.2", "0.5", "1", "2", "5"])
    axes.minorticks_off()
    save(figure, "score-against-scale.svg")


def noise_against_samples() -> None:
    """The standard deviation of three estimators, K = 1024, each coordinate of the mean one scale off."""
    figure, axes = new_axes()
    K, repeats, counts = 1024, 1000, [2, 4, 8, 16, 32]
    g = torch.Generator().manual_seed(0)
    ones, zeros = torch.ones(repeats, K), torch.zeros(repeats, K)

    def ustat(count: int) -> torch.Tensor:
        return energy_score(ones + torch.randn(count, repeats, K, generator=g), zeros)

    def paired(count: int) -> torch.Tensor:
        return gaussian_energy_score(ones, ones, zeros, samples=count, antithetic=False, generator=g)

    def antithetic(count: int) -> torch.Tensor:
        return gaussian_energy_score(ones, ones, zeros, samples=count, generator=g)

    names = ("U-statistic", "paired", "paired, antithetic")
    for version, name, colour in zip((ustat, paired, antithetic), names, COLOURS[::-1], strict=False):
        spread = [version(count).std().item() for count in counts]
        axes.plot(counts, spread, "o-", color=colour, markersize=4)
        label(axes, name, (counts[1], spread[1]), colour, below=name == "paired")
    axes.set(xscale="log", yscale="log", ylim=(1e-3, 2.0))
    axes.set(xlabel="samples", ylabel="standard deviation of the score")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    save(figure, "noise-against-samples.svg")


if __name__ == "__main__":
    mpl.rcParams["svg.hashsalt"] = "prosmin"
    score_against_scale()
    noise_against_samples()
