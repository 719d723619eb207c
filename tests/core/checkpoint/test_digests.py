"""The digest is that of the values: bits count, order of keys, device and strides do not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import torch

from neaptide.checkpoint import digest, load, save

if TYPE_CHECKING:
    from pathlib import Path


def state() -> dict[str, Any]:
    return {
        "step": 3,
        "lr": 0.1,
        "done": False,
        "names": ["a", "b"],
        "w": torch.arange(6, dtype=torch.float32).reshape(2, 3),
        "m": {0: torch.zeros(2), 1: torch.zeros(0, 5)},
    }


def test_equal_states_have_equal_digests() -> None:
    assert re.fullmatch("[0-9a-f]{64}", digest(state()))
    assert digest(state()) == digest(state())


def test_the_order_of_keys_does_not_matter() -> None:
    assert digest(state()) == digest(dict(reversed(state().items())))


def test_strides_and_parameters_do_not_matter() -> None:
    changed = state()
    changed["w"] = torch.nn.Parameter(changed["w"].t().contiguous().t())

    assert not changed["w"].is_contiguous()
    assert digest(state()) == digest(changed)


@pytest.mark.parametrize(
    "change",
    [
        {"step": 4},
        {"step": 3.0},
        {"done": 0},
        {"names": ("a", "b")},
        {"names": ["b", "a"]},
        {"lr": 0.1 + 2**-56},
        {"w": torch.arange(6, dtype=torch.float64).reshape(2, 3)},
        {"w": torch.arange(6, dtype=torch.float32).reshape(3, 2)},
        {"m": {0: torch.zeros(2), 1: torch.zeros(5, 0)}},
        {"m": {0: torch.zeros(2, dtype=torch.int32), 1: torch.zeros(0, 5)}},
        {"m": {0: -torch.zeros(2), 1: torch.zeros(0, 5)}},
        {"m": {0: torch.zeros(2), 2: torch.zeros(0, 5)}},
        {"m": {"0": torch.zeros(2), 1: torch.zeros(0, 5)}},
        {"new": None},
    ],
)
def test_every_change_shows(change: dict[str, Any]) -> None:
    assert digest(state()) != digest(state() | change)


def test_bytes_do_not_move_between_neighbours() -> None:
    left = [torch.tensor([1, 2], dtype=torch.uint8), torch.tensor([3], dtype=torch.uint8)]
    right = [torch.tensor([1], dtype=torch.uint8), torch.tensor([2, 3], dtype=torch.uint8)]

    assert digest(left) != digest(right)


def test_a_single_tensor_and_nan() -> None:
    nan = torch.tensor([float("nan")])

    assert digest(nan) == digest(nan.clone())
    assert digest(float("nan")) != digest(float("inf"))


def test_saving_keeps_the_digest(tmp_path: Path) -> None:
    save(tmp_path / "a", {"state": state()}, 3, {})

    assert digest(state()) == digest(load(tmp_path / "a").section("state"))
