"""How is the variance of a projector's outputs distributed over directions, and do a few images have most of it?

    python benchmarks/spectrum.py RUN --data parquet:cifar10-test.parquet --images 2000 --out benchmarks/results/...

For the output of the projector's last linear layer and for what its whitening layer receives: the largest eigenvalues
of the covariance as shares of the variance, the effective rank, and the kurtosis of the images along the first
directions (3 for a normal distribution, large where a few images are far from all others).
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prosmin.data.image_sets import load_pictures
from prosmin.encoder import load
from prosmin.files import write_text
from prosmin.machine import describe_machine
from prosmin.models.whitening import BatchWhitening

DIRECTIONS = 5


def spectrum(outputs: Tensor) -> dict[str, Any]:
    """Shares, rank and kurtosis of (N, K) outputs."""
    x = outputs.double() - outputs.double().mean(0)
    values, directions = torch.linalg.eigh(x.T @ x / len(x))
    shares = (values / values.sum()).flip(0).clamp_min(1e-300)
    along = (x @ directions.flip(1)[:, :DIRECTIONS]).div(values.flip(0)[:DIRECTIONS].sqrt())
    return {
        "directions": len(shares),
        "largest_shares": [float(f"{share:.4g}") for share in shares[:DIRECTIONS]],
        "effective_rank": round(float((-(shares * shares.log()).sum()).exp()), 2),
        "kurtosis": [round(float(value), 1) for value in along.pow(4).mean(0)],
    }


def main() -> None:
    """Embed some images and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--data", required=True)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    encoder, pictures = load(options.run), load_pictures(options.data)
    projector: nn.Module = encoder.method.get_submodule("online.projector")
    last = [layer for layer in projector.modules() if isinstance(layer, nn.Linear)][-1]
    whitening = [layer for layer in projector.modules() if isinstance(layer, BatchWhitening)]
    seen: dict[str, list[Tensor]] = {"last linear layer": [], "input of the whitening layer": []}
    last.register_forward_hook(lambda _, __, output: seen["last linear layer"].append(output.detach().cpu()))
    for layer in whitening:
        layer.register_forward_pre_hook(lambda _, inputs: seen["input of the whitening layer"].append(inputs[0].cpu()))
    encoder(pictures.subset(torch.arange(min(options.images, len(pictures)))))
    document = {
        "run": Path(options.run).name,
        "images": options.images,
        **{name: spectrum(torch.cat(parts)) for name, parts in seen.items() if parts},
        "hardware": describe_machine(encoder.device),
        "command": " ".join(["python", *sys.argv]),
    }
    write_text(options.out, json.dumps(document, indent=2) + "\n")
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
