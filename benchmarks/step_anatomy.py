"""The inside of a step: its operations, its pieces timed alone, its kernels."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd import DeviceType
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity
from torch.utils.flop_counter import FlopCounterMode

from prosmin.benchmark.measure import Timing, measure, synchronise
from prosmin.benchmark.trainer import Trainer
from prosmin.config import Config
from prosmin.data.views import GLOBAL_VIEWS, PARAMETERS, Views
from prosmin.methods.output import Draws
from prosmin.scoring import noise_count

PICTURES = 2  # for counting: BatchNorm wants more than one
PROFILED = 3


def random_views(config: Config, *, pictures: int, device: torch.device) -> Views:
    """Normalised noise in the shapes of a configuration's views: the values do not change the work."""
    noise = torch.Generator(device).manual_seed(0)

    def draw(count: int, side: int) -> torch.Tensor:
        return torch.randn(count, pictures, 3, side, side, generator=noise, device=device)

    views = config.views
    local = draw(views.local, views.local_size) if views.local else None
    told = torch.zeros(GLOBAL_VIEWS + views.local, pictures, len(PARAMETERS), device=device)
    return Views(draw(GLOBAL_VIEWS, views.global_size), local, told)


def count_flops(config: Config) -> float:
    """Floating-point operations of products and convolutions that one image costs in a step."""
    whitens = "whiten" in (getattr(config.heads, "last", ""), getattr(config.target, "whitening", ""))
    pictures = config.training.batch_size if whitens else PICTURES  # whitening needs more images than dimensions
    small = dataclasses.replace(
        config,
        training=dataclasses.replace(config.training, batch_size=pictures, accumulate=1),
        compute=dataclasses.replace(config.compute, compile="none"),
    )
    trainer = Trainer(small)
    views = random_views(small, pictures=pictures, device=trainer.device)
    # Plain attention: the counter sees its products on every device, and nothing that is computed twice.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        trainer.train([views])
    return counter.get_total_flops() / pictures


def pieces_of_a_step(trainer: Trainer, views: Views) -> dict[str, Timing]:
    """Forward; forward and backward; clipping; optimizer; target; the forecast's noise."""
    model, optimizer, config = trainer.model, trainer.optimizer, trainer.config
    positions = torch.arange(views.global_views.shape[1], device=trainer.device)
    draws = Draws(0, 0, positions, config.training.epochs / 2)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def forward() -> torch.Tensor:
        return model(views, draws).losses.mean()

    def backward() -> None:
        trainer.fabric.backward(forward())
        optimizer.zero_grad(set_to_none=True)

    found = {"forward": measure(forward, trainer.device), "forward and backward": measure(backward, trainer.device)}
    output = model(views, draws)
    trainer.fabric.backward(output.losses.mean())
    statistics = {name: value.detach() for name, value in output.statistics.items()}
    del output
    runs: dict[str, Callable[[], object]] = {
        "clipping": lambda: nn.utils.clip_grad_norm_(parameters, config.optimizer.clip or float("inf"), foreach=True),
        "optimizer": optimizer.step,
        "target": lambda: trainer.method.update(statistics, momentum=0.99),  # type: ignore[operator]
    }
    if hasattr(config.loss, "samples"):
        count = noise_count(config.loss.estimator, config.loss.samples, config.loss.antithetic)
        shape = (GLOBAL_VIEWS + config.views.local, count, config.heads.dim)
        runs["noise"] = lambda: trainer.method.noise(draws.normal("forecast", shape), shape)  # type: ignore[operator]
    found |= {name: measure(run, trainer.device) for name, run in runs.items()}
    optimizer.zero_grad(set_to_none=True)
    return found


def kernels(run: Callable[[], object], device: torch.device, *, most: int = 40) -> dict[str, Any]:
    """Time and launches of a call by kernel, the largest first; on a CPU, by operator."""
    on_gpu = device.type == "cuda"
    wall = 1e3 * measure(run, device).median
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(PROFILED):
            run()
        synchronise(device)
    kind = DeviceType.CUDA if on_gpu else DeviceType.CPU
    events = [
        event
        for event in profiler.key_averages()
        if event.device_type == kind and not getattr(event, "is_user_annotation", False)
    ]
    rows = [
        {
            "name": event.key[:110],
            "ms": round((event.self_device_time_total if on_gpu else event.self_cpu_time_total) / 1e3 / PROFILED, 4),
            "launches": round(event.count / PROFILED, 1),
        }
        for event in events
    ]
    rows.sort(key=lambda row: -row["ms"])
    busy = sum(row["ms"] for row in rows)
    return {
        "wall_ms": round(wall, 3),
        "busy_ms": round(busy, 3),
        "idle_share": round(max(0.0, 1.0 - busy / wall), 4),
        "launches": round(sum(row["launches"] for row in rows)),
        "kernels": rows[:most],
    }
