"""Packing: the sides of batches, memory and padding."""

import pytest
import torch

from prosmin.data.packing import clear_around, padded, zeros


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([[32, 32]], (32, 32)),
        ([[5, 7], [9, 3]], (9, 7)),
        ([[300, 20], [20, 129]], (384, 256)),
        ([[512, 768]], (512, 768)),
    ],
)
def test_large_batches_have_few_shapes(sizes, expected):
    assert padded(torch.tensor(sizes)) == expected


def test_memory_of_a_batch_is_zero_and_may_be_empty():
    for size in (0, 1, 5 << 20):
        found = zeros(size)
        assert found.shape == (size,)
        assert not found.any()
        found.fill_(7)  # it is writable


def test_clear_around():
    images = torch.full((3, 3, 4, 6), 7, dtype=torch.uint8)
    sizes = torch.tensor([[4, 6], [2, 6], [3, 1]])
    cleared = clear_around(images.clone(), sizes)
    for before, after, (height, width) in zip(images, cleared, sizes.tolist(), strict=True):
        assert torch.equal(after[:, :height, :width], before[:, :height, :width])
        assert int(after.sum()) == 7 * 3 * height * width
