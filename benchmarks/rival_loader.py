"""The usual way to feed multi-crop training: lightly's DINOTransform on Pillow images, in worker processes."""

import io
from collections.abc import Iterator
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from prosmin.config import ViewsConfig
from prosmin.data.views import GLOBAL_VIEWS, Views


class EncodedPictures(Dataset[list[Tensor]]):
    """JPEG bytes, decoded by Pillow and transformed when asked for; `rows` numbers share the few that there are."""

    def __init__(self, data: list[bytes], config: ViewsConfig, *, rows: int) -> None:
        from lightly.transforms import DINOTransform  # type: ignore[import-not-found]  # only the rival needs it

        self.data, self.rows = data, rows
        bright, contrast, saturation, hue = (2.0 * strength for strength in config.jitter)  # lightly halves them
        self.transform = DINOTransform(
            global_crop_size=config.global_size,
            global_crop_scale=config.global_scale,
            local_crop_size=config.local_size,
            local_crop_scale=config.local_scale,
            n_local_views=config.local,
            hf_prob=config.flip,
            cj_prob=config.jitter_p,
            cj_bright=bright,
            cj_contrast=contrast,
            cj_sat=saturation,
            cj_hue=hue,
            random_gray_scale=config.grey,
            gaussian_blur=config.blur,
            sigmas=config.blur_sigma,
            solarization_prob=config.solarise[1],
        )

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, i: int) -> list[Tensor]:
        with Image.open(io.BytesIO(self.data[i % len(self.data)])) as image:
            return self.transform(image.convert("RGB"))


def endless(pictures: EncodedPictures, *, batch: int, workers: int, pin: bool) -> Iterator[list[Tensor]]:
    """Batches of V tensors (B, 3, h, h) without end, from one set of workers."""
    loader: DataLoader[Any] = DataLoader(
        pictures,
        batch_size=batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=pin,
        persistent_workers=workers > 0,
    )
    while True:
        yield from loader


def to_views(parts: list[list[Tensor]], device: torch.device) -> Views:
    """A loader's batches, joined on the device in the form that a step takes."""
    here = [torch.cat([view.to(device, non_blocking=True) for view in views]) for views in zip(*parts, strict=True)]
    local = torch.stack(here[GLOBAL_VIEWS:]) if len(here) > GLOBAL_VIEWS else None
    return Views(torch.stack(here[:GLOBAL_VIEWS]), local)
