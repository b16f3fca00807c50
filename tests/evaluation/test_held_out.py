"""The held-out tenth: fixed, balanced, and free of pixels that the bank has seen."""

import re

import pytest
import torch
from PIL import Image

from prosmin.data.image_sets import load_pictures, streamed
from prosmin.data.sources import open_source
from prosmin.data.sources.photos import BLOCK, PATCH, block_names
from prosmin.data.subsets import held_out_mask
from prosmin.encoder import Encoder, untrained
from prosmin.evaluation.probes.held_out import held_out_knn, knn_top1
from tiny_methods import tiny_method


def test_a_tenth_of_every_class():
    labels = torch.arange(1000) % 10
    held = held_out_mask(labels, [str(i) for i in range(1000)], "folder:x")
    assert held.sum() == 100
    assert labels[held].bincount().tolist() == [10] * 10
    again = held_out_mask(labels, [str(i) for i in range(1000)], "folder:x")
    assert torch.equal(held, again)


def test_held_out_patches_share_no_pixel_with_the_bank():
    train = load_pictures("photos@train")
    held = held_out_mask(train.labels, train.keys, train.spec)
    assert 0.05 < held.double().mean() < 0.2
    assert len(train.labels[held].unique()) > 10  # of 14 photographs
    corners = [(key.split("/")[0], *map(int, re.findall(r"\d+", key.rsplit("/", 1)[1]))) for key in train.keys]
    bank: dict[str, list[tuple[int, int]]] = {}
    for (name, y, x), out in zip(corners, held.tolist(), strict=True):
        if not out:
            bank.setdefault(name, []).append((y, x))
    for (name, y, x), out in zip(corners, held.tolist(), strict=True):
        if out:
            assert not any(abs(y - v) < PATCH and abs(x - u) < PATCH for v, u in bank[name])


def test_blocks_are_those_the_patches_were_cut_from():
    source = open_source("photos@train")
    keys = [source.key(i) for i in range(len(source))]
    spans: dict[str, list[tuple[int, int]]] = {}
    for key, block in zip(keys, block_names(keys), strict=True):
        y, x = map(int, re.findall(r"\d+", key.rsplit("/", 1)[1]))
        spans.setdefault(block, []).append((y, x))
    for corners in spans.values():
        for axis in (0, 1):
            values = [corner[axis] for corner in corners]
            assert max(values) - min(values) <= BLOCK - PATCH


def test_knn_on_features_with_a_known_answer():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 2
    held = torch.arange(200) >= 180
    apart = torch.stack([1.0 - 2.0 * labels, torch.ones(200)], dim=1)
    assert knn_top1(apart, labels, held) == 1.0
    noise = torch.randn(200, 8, generator=generator)
    assert 0.2 < knn_top1(noise, labels, held) < 0.8
    assert knn_top1(apart, labels.where(~held, 1 - labels), held) == 0.0


@pytest.mark.parametrize("method", ["prosmin", "dino"])
def test_a_judged_encoder_keeps_no_forecasts(method, monkeypatch):
    """The number is that of the features beside the forecasts, whose K numbers an image would fill the memory."""
    encoder, train = untrained(tiny_method(method)), load_pictures("photos@train")
    pictures = train.subset(torch.arange(0, len(train), 20))
    held = held_out_mask(pictures.labels, pictures.keys, pictures.spec)
    expected = knn_top1(encoder(pictures).features, pictures.labels, held)
    monkeypatch.setattr(Encoder, "__call__", lambda *_: pytest.fail("all forecasts were made"))
    assert held_out_knn(encoder, pictures)["knn_top1"] == expected


def test_a_streamed_set_is_judged_as_a_decoded_one_without_what_cannot_be_read(tmp_path, capsys):
    generator = torch.Generator().manual_seed(0)
    for number in range(60):
        folder = tmp_path / f"class{number % 2}"
        folder.mkdir(exist_ok=True)
        pixels = torch.randint(0, 256, (24, 24, 3), generator=generator, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(folder / f"{number:02d}.png")
    (tmp_path / "class0" / "04.png").write_bytes(b"no image")
    encoder, spec = untrained(tiny_method("prosmin")), f"folder:{tmp_path}"
    decoded = held_out_knn(encoder, load_pictures(spec, max_bad=0.1))
    capsys.readouterr()
    assert held_out_knn(encoder, streamed([open_source(spec)], max_bad=0.1)) == decoded
    assert "04.png" in capsys.readouterr().err
