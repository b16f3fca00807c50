"""Random numbers: a function of (seed, step, purpose, position), with the distribution they claim."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor

from prosmin import randomness

MASK = 2**64 - 1
POSITIONS = torch.arange(20_000)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def splitmix(state: int) -> int:
    """The finaliser of SplitMix64 in whole numbers without sign, as its paper states it."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def test_uniform_is_the_splitmix_stream_of_key_and_position() -> None:
    key, positions, count = -1637998750076724368, [0, 1, 77, 2**40], 5
    expected = []
    for position in positions:
        start = splitmix(splitmix(position) ^ (key & MASK))
        column = [splitmix((start + i * 0x9E3779B97F4A7C15) & MASK) for i in range(1, count + 1)]
        expected.append([(bits >> 40) / 2**24 for bits in column])
    assert randomness.uniform(key, torch.tensor(positions), count).tolist() == expected


def test_known_values_stay() -> None:
    """A change of these numbers would make every saved run continue differently."""
    assert randomness.key(0, 0, "views") == 6228707585469599420
    assert randomness.key(3, 17, "noise") == -1637998750076724368
    drawn = randomness.uniform(12345, torch.tensor([0, 1, 1_000_000]), 3) * 2**24
    assert drawn.tolist() == [
        [8369916, 7686165, 9031624],
        [6797964, 1834873, 14710586],
        [8811444, 9059875, 13801649],
    ]
    normal = randomness.normal(12345, torch.tensor([7]), (3,))
    torch.testing.assert_close(normal, torch.tensor([[0.0783834, -0.4672911, 0.9476722]]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("draw", [
    lambda positions: randomness.uniform(9, positions, 6),
    lambda positions: randomness.normal(9, positions, (2, 3)),
])  # fmt: skip
def test_a_row_depends_on_its_position_alone(draw: Callable[[Tensor], Tensor]) -> None:
    positions = torch.tensor([5, 900, 2, 63, 41])
    whole = draw(torch.arange(1000))
    assert torch.equal(draw(positions), whole[positions])
    assert torch.equal(draw(positions[2:3])[0], whole[2])


def test_more_columns_leave_the_first_ones_alone() -> None:
    assert torch.equal(randomness.uniform(1, POSITIONS[:50], 9)[:, :4], randomness.uniform(1, POSITIONS[:50], 4))


def test_keys_differ_in_each_argument() -> None:
    names = itertools.product((0, 1, 12), (0, 1, 2, 21), ("views", "noise", "1/views"))
    keys = [randomness.key(*name) for name in names]
    assert len(set(keys)) == len(keys)
    assert all(-(2**63) <= key < 2**63 for key in keys)


def test_uniform_is_uniform_along_positions_columns_and_steps() -> None:
    along_positions = randomness.uniform(3, POSITIONS, 2)[:, 1]
    along_columns = randomness.uniform(3, POSITIONS[7:8], len(POSITIONS))[0]
    along_steps = torch.cat([randomness.uniform(randomness.key(0, s, "x"), POSITIONS[:1], 1)[0] for s in range(2000)])
    for numbers in (along_positions, along_columns, along_steps):
        assert numbers.min() >= 0
        assert numbers.max() < 1
        # A fixed draw: for a right generator the p-value is a uniform number, below 1e-3 once in 1000.
        assert stats.kstest(numbers.numpy(), "uniform").pvalue > 1e-3
    # The same test finds an exponent of 1.05, so it can fail.
    assert stats.kstest(along_positions.numpy() ** 1.05, "uniform").pvalue < 1e-3


def test_neighbours_are_uncorrelated() -> None:
    numbers = randomness.uniform(4, POSITIONS, 3) - 0.5
    other_step = randomness.uniform(5, POSITIONS, 1) - 0.5
    limit = 4 / math.sqrt(len(POSITIONS))  # four standard errors of a correlation of independent numbers
    pairs = [
        (numbers[1:, 0], numbers[:-1, 0]),  # positions
        (numbers[:, 0], numbers[:, 1]),  # columns
        (numbers[1:, 0], numbers[:-1, 1]),  # both: streams that are shifts of one another would show here
        (numbers[:, 0], other_step[:, 0]),  # keys
    ]
    for one, other in pairs:
        assert abs(torch.corrcoef(torch.stack([one, other]))[0, 1]) < limit
    assert torch.corrcoef(torch.stack([numbers[:, 0], numbers[:, 0] + 10 * numbers[:, 1]]))[0, 1] > limit


def test_normal_is_normal_and_its_halves_are_independent() -> None:
    numbers = randomness.normal(6, POSITIONS, (3,))  # an odd count: one of four numbers is dropped
    assert numbers.shape == (len(POSITIONS), 3)
    for column in numbers.T:
        assert stats.kstest(column.numpy(), "norm").pvalue > 1e-3
    assert stats.kstest(1.1 * numbers[:, 0].numpy(), "norm").pvalue < 1e-3
    limit = 4 / math.sqrt(len(POSITIONS))
    # Columns 0 and 2 share one radius; so would their squares if radius and angle were not independent.
    for power in (1, 2):
        correlation = torch.corrcoef((numbers**power).T)
        assert (correlation - torch.eye(3)).abs().max() < limit


def test_normal_is_finite_at_the_ends_of_the_radius() -> None:
    """The radius takes log(u) with u in (0, 1]: no infinity however many are drawn."""
    assert torch.isfinite(randomness.normal(8, torch.arange(200_000), (4,))).all()


def test_generator_starts_where_its_key_says() -> None:
    first, again = (torch.rand(4, generator=randomness.generator(1, 2, "order")) for _ in range(2))
    other = torch.rand(4, generator=randomness.generator(1, 3, "order"))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[needs_gpu])])
def test_compiled_normal_numbers_are_the_same(device: str) -> None:
    """What a compiler makes of the streams has 64 bits too; only the last digit of log and cos may differ."""
    positions, shape = torch.arange(300, device=device), (7, 2, 33)
    expected = randomness.normal(-1637998750076724368, positions.cpu(), shape)
    drawn = randomness.normal_streams(-1637998750076724368, positions, shape)
    backend = "inductor" if device == "cuda" else "aot_eager"  # a CPU may have no compiler
    compiled = torch.compile(randomness.box_muller, backend=backend)
    torch.testing.assert_close(compiled(drawn, shape).cpu(), expected, rtol=1e-4, atol=1e-5)
