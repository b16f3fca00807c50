"""Images that the tests of corruptions share."""

import pytest
import torch
from skimage import data as photographs

from packed_images import as_pictures
from prosmin.data.image_sets import load_pictures


@pytest.fixture(scope="module")
def patches():
    """32 px, from every photograph."""
    return load_pictures("photos@test").subset(torch.arange(0, 840, 40))


@pytest.fixture(scope="module")
def oblong():
    """Height and width differ, neither a power of two, with black, white and grey parts."""
    whole = torch.from_numpy(photographs.astronaut()).permute(2, 0, 1)
    cuts = [whole[:, 30:90, 180:226].clone(), whole[:, 400:460, 100:146].clone()]
    cuts[0][:, :8] = 0
    cuts[0][:, 8:16] = 255
    cuts[0][:, 16:24] = 77
    return as_pictures(cuts)
