"""Which residuals correct a jump, and with what weights."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neaptide_plugins.residual_correction.memory import ResidualMemory, distance, key_of

KEYS = st.lists(st.floats(-3, 3), min_size=64, max_size=64)


def filled(keys: list[list[float]], slots: int = 10) -> ResidualMemory:
    memory = ResidualMemory(slots)
    for key in keys:
        memory.add(memory.free(), key)
    return memory


def test_newer_residuals_weigh_more_by_the_decay() -> None:
    memory = filled([[0.0] * 64] * 3)
    found = dict(memory.weights([0.0] * 64, 10, 0.95))
    assert pytest.approx(0.95) == found[1] / found[2] == found[0] / found[1]


def test_similar_states_weigh_more() -> None:
    memory = filled([[1.0] * 64, [0.0] * 64])
    found = dict(memory.weights([1.0] * 64, 10, 1.0))
    assert pytest.approx(math.e) == found[0] / found[1]
    assert {0: 1.0} == dict(memory.weights([1.0] * 64, 1, 1.0))
    assert [] == ResidualMemory(3).weights([1.0] * 64, 10, 1.0)


@given(st.lists(KEYS, min_size=1, max_size=14), KEYS, st.integers(1, 12))
def test_weights_are_a_mean_over_the_nearest_of_the_newest(
    keys: list[list[float]], key: list[float], neighbours: int
) -> None:
    memory = filled(keys)
    found = memory.weights(key, neighbours, 0.95)
    assert min(neighbours, len(keys), 10) == len({slot for slot, _ in found}) == len(found)
    assert pytest.approx(1.0) == sum(weight for _, weight in found)
    assert {each.born for each in memory.entries} == set(range(len(keys))[-10:])
    far = max(distance(key, each.key) for each in memory.entries if each.slot in dict(found))
    others = [each for each in memory.entries if each.slot not in dict(found)]
    assert all(distance(key, each.key) >= far for each in others)
    again = ResidualMemory(10)
    again.load_state_dict(memory.state_dict())
    assert found == again.weights(key, neighbours, 0.95)


def test_a_key_is_limited() -> None:
    assert [3.0, -3.0, 0.5] == key_of(torch.tensor([1e9, -7.0, 0.5], dtype=torch.float64))
