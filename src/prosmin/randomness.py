"""Random numbers as a pure function of (seed, step, purpose, position): no state, no history, no rank.

`key` turns (seed, step, purpose) into 64 bits. `uniform` and `normal` give each position of the global batch its own
row, so that a process with the positions 32..63 draws the same rows as a single process would, and a CPU the same as
a GPU. Each row is a SplitMix64 stream (Steele, Lea and Flood, 2014) that starts at a hash of key and position.
"""

import hashlib
import math
from typing import NamedTuple

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit number
_FIRST = -4658895280553007687  # 0xBF58476D1CE4E5B9
_SECOND = -7723592293110705685  # 0x94D049BB133111EB


def key(seed: int, step: int, purpose: str) -> int:
    """The 64 bits of one draw in one step."""
    digest = hashlib.blake2b(f"{seed}/{step}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def generator(seed: int, step: int, purpose: str) -> torch.Generator:
    """A CPU generator for draws that have no position, such as the order of an epoch."""
    return torch.Generator().manual_seed(key(seed, step, purpose) & 0x7FFF_FFFF_FFFF_FFFF)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of signed 64-bit integers."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's finaliser: a bijection of 64 bits in which every input bit affects every output bit."""
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)


class Streams(NamedTuple):
    """The start of each position's stream, (P, 1), and the offset of each column, (n,): int64."""

    starts: Tensor
    columns: Tensor


@torch.compiler.disable  # compiled code would count columns in 32 bits, and the product below overflows
def streams(key: int | Tensor, positions: Tensor, count: int) -> Streams:
    """The streams of `count` columns; draws from them may be compiled. The key may be a tensor on the device, ()."""
    starts = _mix(_mix(positions.to(torch.int64)) ^ key)
    return Streams(starts[:, None], torch.arange(1, count + 1, device=positions.device) * _GOLDEN)


def uniform(key: int | Tensor, positions: Tensor, count: int) -> Tensor:
    """Uniform numbers in [0, 1), float32: (P,) -> (P, count)."""
    starts, columns = streams(key, positions, count)
    return _shift(_mix(starts + columns), 40).to(torch.float32) * 2.0**-24


def normal(key: int, positions: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers, float32: (P,) -> (P, *shape)."""
    return box_muller(normal_streams(key, positions, shape), shape)


def normal_streams(key: int | Tensor, positions: Tensor, shape: tuple[int, ...]) -> Streams:
    """The streams that `box_muller` turns into normal numbers of this shape: one column for two numbers."""
    return streams(key, positions, (math.prod(shape) + 1) // 2)


def box_muller(streams: Streams, shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers, float32, by Box and Muller: (P, 1), (n,) -> (P, *shape)."""
    bits = _mix(streams.starts + streams.columns)
    radius = torch.sqrt(-2.0 * torch.log((_shift(bits, 40).to(torch.float32) + 1.0) * 2.0**-24))
    angle = (bits & 0xFFFFFF).to(torch.float32) * (2.0 * math.pi * 2.0**-24)
    pairs = torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1)
    return pairs[:, : math.prod(shape)].reshape(len(pairs), *shape)
