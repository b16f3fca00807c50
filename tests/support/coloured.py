"""Images with a known answer: each class is a colour under noise, which any network learns in a few steps."""

import torch

from prosmin.data.image_sets import Pictures

COLOURS = torch.tensor([[200, 60, 60], [60, 200, 60], [60, 60, 200]])


def coloured(count: int, *, seed: int = 0, side: int = 16, spec: str = "colours") -> Pictures:
    """`count` images of three classes in turn."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % len(COLOURS)
    noise = torch.randint(-50, 51, (count, 3, side, side), generator=random)
    return Pictures(
        images=(COLOURS[labels][:, :, None, None] + noise).clamp(0, 255).to(torch.uint8),
        sizes=torch.full((count, 2), side),
        labels=labels,
        classes=("red", "green", "blue"),
        keys=tuple(f"{i}.png" for i in range(count)),
        spec=spec,
    )
