"""A self-test of two seconds: one check for each kind of work in a run."""

import io
import math
import os
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from prosmin.doctor.finding import Finding, reason

if TYPE_CHECKING:
    from torch import Tensor

PICTURES = 8


class Test(NamedTuple):
    """A test returns what it found, or raises an exception."""

    run: Callable[[], str]
    needs: tuple[str, ...]  # packages it needs
    do: str  # what to do if it fails


def examine_self(broken: Collection[str]) -> list[Finding]:
    """Run the tests whose packages work; a test that fails is a problem."""
    findings = []
    for subject, test in TESTS.items():
        missing = [name for name in test.needs if name in broken]
        if missing:
            findings.append(Finding("note", subject, f"not checked: {missing[0]} has to work first"))
            continue
        begin = time.perf_counter()
        try:
            says = test.run()
        except Exception as error:
            findings.append(Finding("problem", subject, reason(error), test.do))
        else:
            findings.append(Finding("ok", subject, f"{says} ({time.perf_counter() - begin:.2f} s)"))
    return findings


def check_scoring_rule() -> str:
    """Compare the CRPS of a Gaussian with its formula, computed without torch."""
    import torch

    from prosmin.scoring import gaussian_crps

    mean, scale, target = 0.3, 0.7, 1.1
    t = (target - mean) / scale
    density = math.exp(-t * t / 2.0) / math.sqrt(2.0 * math.pi)
    expected = scale * (t * math.erf(t / math.sqrt(2.0)) + 2.0 * density - 1.0 / math.sqrt(math.pi))
    numbers = (torch.tensor([value], dtype=torch.float64, device=device()) for value in (mean, scale, target))
    value = float(gaussian_crps(*numbers))
    if abs(value - expected) > 1e-12:  # rounding errors are about 1e-16
        raise ArithmeticError(f"the CRPS of N({mean}, {scale}^2) at {target} is {value}, not {expected}")
    return f"CRPS of N({mean}, {scale}^2) at {target} is {value:.6f}, equal to its closed form"


def check_method() -> str:
    """Views, forward and backward of the demo's method on the device a run would use."""
    import torch

    from prosmin import config as configs
    from prosmin.data.views import make_views
    from prosmin.methods import Draws, build_method

    config = configs.resolve(recipe="demo")
    where = device()
    method = build_method(config).to(where)
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (PICTURES, 3, 32, 32), dtype=torch.uint8, generator=draw).to(where)
    positions = torch.arange(PICTURES, device=where)
    sizes = torch.full((PICTURES, 2), 32, device=where)
    views = make_views(images, sizes, config.views, seed=0, step=0, positions=positions)
    loss = method(views, Draws(0, 0, positions, 0.0)).losses.mean()
    loss.backward()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in method.parameters() if p.grad is not None))
    if not (math.isfinite(float(loss.detach())) and 0.0 < norm < math.inf):
        raise ArithmeticError(f"{config.method.name} has the loss {float(loss)} and a gradient of norm {norm}")
    return f"{config.method.name} forward and backward on {where}, loss {float(loss):.3f}"


def check_decoding() -> str:
    """Encode an image as JPEG and decode it."""
    import torch

    from prosmin.data.decode import decode

    picture = gradient()
    decoded = decode(jpeg())
    if decoded.shape != picture.shape:
        raise ValueError(f"a JPEG of shape {tuple(picture.shape)} was decoded as {tuple(decoded.shape)}")
    off = float((decoded.to(torch.float32) - picture).abs().mean())
    if off > 3.0:  # smooth colours at quality 95 differ by about one level of 255
        raise ValueError(f"a decoded JPEG differs by {off:.1f} of 255 levels")
    return f"a decoded JPEG differs by {off:.1f} of 255 levels"


def check_writing() -> str:
    """A write that fails half-way must leave the old file and nothing else."""
    from prosmin.files import write_text, writing
    from prosmin.interrupts import if_interrupted

    # The default place of runs; if it is not writable, examine_disk has a note about it.
    where = str(Path.cwd()) if os.access(Path.cwd(), os.W_OK) else tempfile.gettempdir()
    temporary = tempfile.TemporaryDirectory(prefix=".prosmin-doctor-", dir=where)
    with if_interrupted(temporary.cleanup), temporary as folder:
        path = Path(folder) / "file.txt"
        write_text(path, "whole")
        try:
            with writing(path) as part:
                part.write_text("half")
                raise InterruptedWriteError
        except InterruptedWriteError:
            pass
        left = sorted(p.name for p in path.parent.iterdir())
        if left != [path.name] or path.read_text() != "whole":
            raise OSError(f"an interrupted write left {', '.join(left)}")
    return f"files in {where} are written completely or not at all"


class InterruptedWriteError(Exception):
    """Simulates a program that stops in the middle of a file."""


def device() -> str:
    """The device that compute.accelerator auto selects."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def gradient() -> "Tensor":
    """Smooth colours, uint8 (3, 32, 48)."""
    import torch

    rows, columns = torch.meshgrid(torch.arange(32), torch.arange(48), indexing="ij")
    return torch.stack([rows * 7, columns * 5, 255 - rows * 3 - columns]).to(torch.uint8)


def jpeg() -> bytes:
    """The gradient as a JPEG."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(gradient().permute(1, 2, 0).contiguous().numpy()).save(buffer, format="JPEG", quality=95)
    return buffer.getvalue()


_ON_DEVICE = "Reinstall torch in a build for this machine, or use --compute.accelerator cpu"
TESTS = {
    "scoring rule": Test(check_scoring_rule, ("torch",), _ON_DEVICE),
    "training": Test(check_method, ("torch", "torchvision", "timm", "numpy", "pyyaml"), _ON_DEVICE),
    "decoding": Test(
        check_decoding,
        ("torch", "torchvision", "numpy", "pillow"),
        "pip install --force-reinstall torch torchvision pillow",
    ),
    "writing": Test(check_writing, (), "Free some space, or start from another folder"),
}
