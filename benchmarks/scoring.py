"""How much faster and smaller is our within-view loss than one that materialises all samples and pairs?

    python benchmarks/scoring.py --out benchmarks/results/scoring-cpu.json
    python benchmarks/scoring.py --device cuda --out benchmarks/results/scoring-h200.json

The first takes about a minute; the second also times the compiled versions. Both versions
score 18 views of 64 images against 2 targets at K 4096 with 4 samples, forward and backward; their rounds
alternate, so that a busy machine slows both. Noise is drawn before the clock starts and timed on its own.
Memory is what a round adds to mean, scale and target at its peak, noise and gradients included: on a GPU the
allocator's own peak, on a CPU (Linux) the high-water mark of a fresh process, since PyTorch keeps no account
of CPU memory.
"""

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prosmin.machine import describe_machine
from prosmin.randomness import key, normal
from prosmin.scoring import noise_count, view_scores

Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
SIZE = 0.05  # of means, scales and targets: that of the embeddings in training


def obvious_loss(mean: Tensor, scale: Tensor, target: Tensor, noise: Tensor) -> Tensor:
    """All samples against all targets and all pairs of samples, as the formula reads. noise (S, V, B, K)."""
    S = len(noise)
    z = mean + scale * noise  # (S, V, B, K)
    to_target = (z[:, :, None] - target).norm(dim=-1).mean(0)  # (S, V, G, B, K) -> (V, G, B)
    pairs = (z[:, None] - z).norm(dim=-1).sum((0, 1)) / (S * (S - 1))  # (S, S, V, B, K) -> (V, B)
    return (to_target - 0.5 * pairs[:, None]).mean()


def our_loss(mean: Tensor, scale: Tensor, target: Tensor, noise: Tensor) -> Tensor:
    """The default of the configuration. noise (V, B, S/2, K)."""
    return view_scores(
        mean, scale, target, rule="energy", norm="euclidean", pairs="within", estimator="paired", beta=1.0,
        lam=0.5, samples=2 * noise.shape[2], antithetic=True, absolute=False, bandwidth=None, noise=noise,
    ).mean()  # fmt: skip


def closed_loss(mean: Tensor, scale: Tensor, target: Tensor, noise: Tensor) -> Tensor:
    """The closed form of the coordinate norm, for comparison. Takes no noise."""
    return view_scores(
        mean, scale, target, rule="crps", norm="coordinate", pairs="within", estimator="closed", beta=1.0,
        lam=0.5, samples=2, antithetic=True, absolute=False, bandwidth=None, noise=None,
    ).mean()  # fmt: skip


LOSSES: dict[str, Loss] = {"obvious": obvious_loss, "ours": our_loss, "closed crps": closed_loss}


def make_inputs(args: argparse.Namespace) -> tuple[Tensor, Tensor, Tensor]:
    """mean, scale (V, B, K) with gradients, target (G, B, K)."""
    g = torch.Generator(args.device).manual_seed(0)
    draw = partial(torch.randn, generator=g, device=args.device)
    mean = draw(args.views, args.batch, args.dim).mul_(SIZE).requires_grad_()
    scale = draw(args.views, args.batch, args.dim).abs_().mul_(SIZE).requires_grad_()
    return mean, scale, draw(args.targets, args.batch, args.dim).mul_(SIZE)


def make_noise(name: str, args: argparse.Namespace, seed: int) -> Tensor:
    """Standard normal numbers in the shape that a loss takes."""
    V, B, K = args.views, args.batch, args.dim
    count = noise_count("paired", args.samples, antithetic=True)
    shapes = {"obvious": (args.samples, V, B, K), "closed crps": (0,)}
    g = torch.Generator(args.device).manual_seed(seed)
    return torch.randn(shapes.get(name, (V, B, count, K)), generator=g, device=args.device)


def one_round(loss: Loss, inputs: tuple[Tensor, Tensor, Tensor], noise: Tensor) -> float:
    """Forward and backward; the loss."""
    for tensor in inputs:
        tensor.grad = None
    value = loss(*inputs, noise)
    value.backward()
    return value.item()


def synchronise(device: str) -> None:
    """Wait for the GPU, so that the clock measures work and not its queueing."""
    if device == "cuda":
        torch.cuda.synchronize()


def timed(work: Callable[[], Any], device: str) -> tuple[float, Any]:
    """Milliseconds and result of one call."""
    synchronise(device)
    start = time.perf_counter()
    result = work()
    synchronise(device)
    return 1e3 * (time.perf_counter() - start), result


def time_losses(losses: dict[str, Loss], args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Median time of every loss over alternating rounds, and its mean value with the standard error."""
    inputs = make_inputs(args)
    times: dict[str, list[float]] = {name: [] for name in losses}
    values: dict[str, list[float]] = {name: [] for name in losses}
    for step in range(-2, args.rounds):  # two rounds to warm up, compile and fill caches
        for name, loss in losses.items():
            noise = make_noise(name.removesuffix(" compiled"), args, seed=step + 100)
            milliseconds, value = timed(partial(one_round, loss, inputs, noise), args.device)
            if step >= 0:
                times[name].append(milliseconds)
                values[name].append(value)
    return {
        name: {
            "median_ms": statistics.median(times[name]),
            "min_ms": min(times[name]),
            "loss": statistics.mean(values[name]),
            "loss_standard_error": statistics.stdev(values[name]) / len(values[name]) ** 0.5,
        }
        for name in losses
    }


def time_on_device(losses: dict[str, Loss], args: argparse.Namespace) -> dict[str, float]:
    """Median milliseconds of forward and backward replayed as a CUDA graph: the device's own time, no launch gaps.

    In training the host runs ahead of the device, so this, not the time of a lone call, is what a step pays.
    """
    found = {}
    for name, loss in losses.items():
        inputs = make_inputs(args)
        noise = make_noise(name.removesuffix(" compiled"), args, seed=0)

        def work(loss: Loss = loss, inputs: tuple[Tensor, Tensor, Tensor] = inputs, noise: Tensor = noise) -> None:
            torch.autograd.grad(loss(*inputs, noise), inputs[:2])  # mean and scale

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        times = []
        for _ in range(args.rounds + 2):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        found[name] = statistics.median(times[2:])
        del graph
    return found


def peak_on_gpu(name: str, loss: Loss, args: argparse.Namespace) -> float:
    """MB that a round adds to its inputs at the peak, by the allocator's count."""
    inputs = make_inputs(args)
    one_round(loss, inputs, make_noise(name, args, seed=0))  # compiled code allocates more the first time
    for tensor in inputs:
        tensor.grad = None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    one_round(loss, inputs, make_noise(name, args, seed=0))
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def peak_on_cpu(name: str, args: argparse.Namespace) -> float:
    """The same by the high-water mark of a fresh process, less what it held before the round."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_child_peak, (name, args))


def _child_peak(name: str, args: argparse.Namespace) -> float:
    small = argparse.Namespace(**(vars(args) | {"views": 1, "batch": 2, "dim": 64}))
    one_round(LOSSES[name], make_inputs(small), make_noise(name, small, seed=0))  # libraries load at the first call
    inputs = make_inputs(args)
    # Not getrusage: a process started by a large one inherits that one's high-water mark as its own.
    Path("/proc/self/clear_refs").write_text("5")  # the mark falls to what is held now
    before = _status("VmHWM")
    one_round(LOSSES[name], inputs, make_noise(name, args, seed=0))
    return (_status("VmHWM") - before) * 1024 / 1e6


def _status(field: str) -> int:
    """A line of Linux's account of this process, in kilobytes."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0])


def time_noise(args: argparse.Namespace) -> dict[str, float]:
    """Median time of the noise of one step by prosmin.randomness, eager and compiled where asked."""
    shape = (args.views, noise_count("paired", args.samples, antithetic=True), args.dim)
    positions = torch.arange(args.batch, device=args.device)
    bits = torch.tensor(key(0, 0, "noise"), device=args.device)  # a tensor: another key must not compile again

    def draw(k: Any) -> Tensor:
        return normal(k, positions, shape).transpose(0, 1)  # (V, B, S/2, K)

    versions = {"eager": draw} | ({"compiled": torch.compile(draw)} if args.compile else {})
    found = {}
    for name, version in versions.items():
        rounds = [timed(partial(version, bits), args.device)[0] for _ in range(args.rounds + 2)]
        found[f"{name}_median_ms"] = statistics.median(rounds[2:])
    return found


def ratios(results: dict[str, Any]) -> dict[str, float]:
    """How many times faster and smaller."""
    losses, memory = results["losses"], results["peak_memory_mb"]
    found = {}
    for name in ("ours", "ours compiled"):
        if name in losses:
            found[f"{name}: times faster"] = losses["obvious"]["median_ms"] / losses[name]["median_ms"]
            found[f"{name}: times less memory"] = memory["obvious"] / memory[name]
    gap = abs(losses["ours"]["loss"] - losses["obvious"]["loss"])
    error = (losses["ours"]["loss_standard_error"] ** 2 + losses["obvious"]["loss_standard_error"] ** 2) ** 0.5
    found["ours against obvious: difference in standard errors"] = gap / error
    for name, milliseconds in results.get("device_ms", {}).items():
        found[f"{name}: times faster on the device alone"] = results["device_ms"]["obvious"] / milliseconds
    return found


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """All of it."""
    losses = dict(LOSSES)
    if args.compile:
        losses |= {f"{name} compiled": torch.compile(loss) for name, loss in LOSSES.items()}
    results: dict[str, Any] = {"losses": time_losses(losses, args)}
    if args.device == "cuda":
        results["peak_memory_mb"] = {
            name: peak_on_gpu(name.removesuffix(" compiled"), loss, args) for name, loss in losses.items()
        }
    else:
        results["peak_memory_mb"] = {name: peak_on_cpu(name, args) for name in LOSSES}
    results["noise"] = time_noise(args)
    if args.device == "cuda":
        results["device_ms"] = time_on_device(losses, args)
    results["ratios"] = ratios(results)
    return results


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--out", type=Path)
    for name, value in (("views", 18), ("targets", 2), ("batch", 64), ("dim", 4096), ("samples", 4)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rounds", type=int, help="timed rounds; 5 on a CPU, 30 on a GPU")
    args = parser.parse_args()
    args.rounds = args.rounds or (30 if args.device == "cuda" else 5)
    args.compile = args.device == "cuda"
    settings = {name: getattr(args, name) for name in ("views", "targets", "batch", "dim", "samples", "rounds")}
    command = "python " + " ".join(sys.argv)
    report = {
        "command": command,
        "machine": describe_machine(torch.device(args.device)),
        "settings": settings,
    } | measure(args)
    text = json.dumps(report, indent=1)
    print(text)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
