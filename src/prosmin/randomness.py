"""Random numbers as a pure function of (seed, step, purpose, position): no state, no history, no rank.

`key` turns (seed, step, purpose) into 64 bits. `uniform` and `normal` give each position of the global batch its
own row, so a process that holds positions 32..63 draws the rows a single process would have drawn for them, and
a CPU draws what a GPU draws. Each row is a SplitMix64 stream (Steele, Lea and Flood, 2014) that starts at a hash of
key and position.
"""

import hashlib
import math

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit number
_FIRST = -4658895280553007687  # 0xBF58476D1CE4E5B9
_SECOND = -7723592293110705685  # 0x94D049BB133111EB


def key(seed: int, step: int, purpose: str) -> int:
    """The 64 bits that name one draw of one step."""
    digest = hashlib.blake2b(f"{seed}/{step}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def generator(seed: int, step: int, purpose: str) -> torch.Generator:
    """A CPU generator for draws that have no position, such as the order of an epoch."""
    return torch.Generator().manual_seed(key(seed, step, purpose) & 0x7FFF_FFFF_FFFF_FFFF)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of signed 64-bit integers."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's finaliser: a bijection of 64 bits in which every input bit moves every output bit."""
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)


@torch.compiler.disable  # Triton computes with columns in 32 bits, in which the products below would overflow
def _bits(key: int, positions: Tensor, count: int) -> Tensor:
    """64 random bits for each position and column: (P,) -> (P, count)."""
    start = _mix(_mix(positions.to(torch.int64)) ^ key)
    column = torch.arange(1, count + 1, device=positions.device, dtype=torch.int64)
    return _mix(start[:, None] + column * _GOLDEN)


def uniform(key: int, positions: Tensor, count: int) -> Tensor:
    """Uniform numbers in [0, 1), float32: (P,) -> (P, count)."""
    return _shift(_bits(key, positions, count), 40).to(torch.float32) * 2.0**-24


def normal(key: int, positions: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers, float32, by Box and Muller: (P,) -> (P, *shape)."""
    count = math.prod(shape)
    bits = _bits(key, positions, (count + 1) // 2)
    radius = torch.sqrt(-2.0 * torch.log((_shift(bits, 40).to(torch.float32) + 1.0) * 2.0**-24))
    angle = (bits & 0xFFFFFF).to(torch.float32) * (2.0 * math.pi * 2.0**-24)
    pairs = torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1)
    return pairs[:, :count].reshape(len(positions), *shape)
