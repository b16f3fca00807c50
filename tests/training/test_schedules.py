"""Schedules and the order of images."""

import math

import pytest

from prosmin.data.order import Order
from prosmin.training.schedules import cosine, values, warmup_cosine


def test_cosine_runs_from_start_to_end_through_the_middle():
    assert cosine(0, 11, 2.0, 4.0) == pytest.approx(2.0)
    assert cosine(5, 11, 2.0, 4.0) == pytest.approx(3.0)
    assert cosine(10, 11, 2.0, 4.0) == pytest.approx(4.0)
    assert cosine(99, 11, 2.0, 4.0) == pytest.approx(4.0)
    assert cosine(0, 1, 2.0, 4.0) == 2.0


def test_warmup_is_linear_then_cosine():
    rates = [warmup_cosine(step, 20, 4, 1.0, 0.0) for step in range(20)]
    assert rates[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert rates[4] == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(0.0, abs=1e-12)
    assert rates[4 + 5] == pytest.approx(0.5 * (1 + math.cos(math.pi * 5 / 15)))


def test_the_learning_rate_follows_the_batch_and_a_long_warmup_is_cut(tiny):
    config = tiny(optimizer__lr="0.001", optimizer__warmup_epochs="100", training__batch_size="128")
    rates = [values(config, step, steps=10, steps_per_epoch=5).lr for step in range(10)]
    assert max(rates) == pytest.approx(0.0005)
    assert rates.index(max(rates)) == 4


def test_every_epoch_shows_each_image_once_with_any_number_of_processes():
    order = Order(103, batch_size=20, seed=3)
    assert order.steps_per_epoch == 5
    epoch = [int(i) for step in range(5) for i in order(step)]
    assert len(set(epoch)) == 100
    assert epoch != [int(i) for step in range(5, 10) for i in order(step)]
    for step in (7, 2, 9):  # in any order of calls
        parts = [int(i) for rank in range(4) for i in order(step, rank=rank, world=4)]
        assert parts == order(step).tolist()
