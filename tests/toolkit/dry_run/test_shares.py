"""A mask of choices chooses what it would choose if all choices were equally frequent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import functional

from neaptide_toolkit.dry_run.unknown import Unknown

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS, EXPERTS, EACH = 24, 8, 2
LARGE = 2**20
"""Rows whose operations are not computed because of their size."""


def ignored(*_: Any) -> None:
    """Take a storage."""


def planned(make: Callable[[torch.Tensor], Any], rows: int = ROWS) -> tuple[Any, list[str]]:
    """Return what `make` makes of unknown scores (rows, experts), and what is assumed."""
    mode = Unknown(ignored)
    with mode:
        scores = torch.empty(rows, EXPERTS)
        mode.forget([scores])
        return make(scores), [*mode.assumptions]


def top(scores: torch.Tensor) -> torch.Tensor:
    return scores.topk(EACH, -1).indices


def one_hot(scores: torch.Tensor, more: int = 0) -> torch.Tensor:
    return functional.one_hot(top(scores), EXPERTS + more)


def scattered(scores: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(scores).scatter_(-1, top(scores), 1.0)


CHOICES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int]] = {
    "argmax": (lambda x: x.argmax(-1) == 3, ROWS // EXPERTS),
    "argmin of all": (lambda x: x.argmin().expand(ROWS, EXPERTS) == 3, 1),
    "topk": (lambda x: top(x) == 3, ROWS * EACH // EXPERTS),
    "topk along rows": (lambda x: x.topk(2, 0).indices == 3, 1),
    "max": (lambda x: x.max(-1).indices == 3, ROWS // EXPERTS),
    "sort": (lambda x: x.sort(-1).indices == 3, ROWS),
    "stable argsort": (
        lambda x: x.argsort(dim=-1, stable=True)[:, :EACH] == 3,
        ROWS * EACH // EXPERTS,
    ),
    "two experts": (lambda x: top(x) < 2, ROWS * EACH // 4),
    "up to one": (lambda x: top(x) <= 1, ROWS * EACH // 4),
    "from the fourth": (lambda x: top(x) >= 4, ROWS * EACH // 2),
    "above the fourth": (lambda x: top(x) > 4, ROWS * EACH * 3 // 8),
    "all but one": (lambda x: top(x) != 3, ROWS * EACH * 7 // 8),
    "not one": (lambda x: ~(top(x) == 3), ROWS * EACH * 7 // 8),
    "a tensor": (lambda x: top(x) == torch.tensor(3), ROWS * EACH // EXPERTS),
    "no expert": (lambda x: top(x) == EXPERTS, 1),
    "another dtype": (lambda x: top(x).to(torch.int32).view(-1) == 3, ROWS * EACH // EXPERTS),
    "other strides": (lambda x: top(x).t().contiguous() == 3, ROWS * EACH // EXPERTS),
    "rows": (lambda x: top(x)[torch.arange(12)] == 3, ROWS * EACH // EXPERTS // 2),
    "any of a row": (lambda x: (top(x) == 3).any(-1), ROWS * EACH // EXPERTS),
    "any of many": (lambda x: (x.sort(-1).indices == 3).any(-1), ROWS),
    "numbers of classes": (
        lambda x: (top(x)[..., None] == torch.arange(EXPERTS + 4))[..., 3],
        ROWS * EACH // EXPERTS,
    ),
    "one-hot": (one_hot, ROWS * EACH),
    "one-hot, a class": (lambda x: one_hot(x)[..., 3], ROWS * EACH // EXPERTS),
    "one-hot, more classes": (lambda x: one_hot(x, 1).permute(2, 1, 0)[3], ROWS * EACH // EXPERTS),
    "one-hot, some classes": (lambda x: one_hot(x, 1)[..., :EXPERTS], ROWS * EACH),
    "one-hot, copied": (
        lambda x: one_hot(x, 1).permute(2, 1, 0).contiguous().bool()[3],
        ROWS * EACH // EXPERTS,
    ),
    "one-hot, by a tensor": (
        lambda x: one_hot(x, 1).permute(2, 1, 0)[torch.tensor([3])].squeeze(0),
        ROWS * EACH // EXPERTS,
    ),
    "one-hot, a class in use": (
        lambda x: one_hot(x, 1).permute(2, 1, 0).sum((-1, -2)) > 0,
        EXPERTS,
    ),
    "one-hot, a row": (lambda x: one_hot(x, 1).any(-1), ROWS * EACH),
    "scattered": (scattered, ROWS * EACH),
    "scattered, an expert": (lambda x: scattered(x)[:, 3] > 0, ROWS * EACH // EXPERTS),
    "scattered, rest": (lambda x: scattered(x) == 0, ROWS * (EXPERTS - EACH)),
    "scattered weights": (
        lambda x: torch.zeros_like(x).scatter(1, top(x), x[:, :EACH])[:, 3] != 0,
        ROWS * EACH // EXPERTS,
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_mask_of_choices_chooses_its_share(name: str) -> None:
    make, count = CHOICES[name]
    places, _ = planned(lambda scores: make(scores).nonzero())
    assert len(places) == count


def in_a_part(scores: torch.Tensor) -> torch.Tensor:
    whole = torch.zeros_like(scores)
    whole[:4].scatter_(-1, top(scores[:4]), 1.0)
    return whole


UNTOLD: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "scores": lambda x: x > 0.5,
    "sums of places": lambda x: top(x).cumsum(0) == 3,
    "changed places": lambda x: top(x).mul_(2) == 3,
    "half a place": lambda x: top(x) == top(x).flip(0),
    "set twice": lambda x: scattered(x).scatter_(-1, top(x), 1.0),
    "set among others": lambda x: x.clone().scatter_(-1, top(x), 1.0),
    "set in a part": in_a_part,
}


@pytest.mark.parametrize("name", UNTOLD)
def test_a_mask_of_which_nothing_is_known_chooses_all(name: str) -> None:
    def chosen(scores: torch.Tensor) -> tuple[int, int]:
        mask = UNTOLD[name](scores)
        return len(mask.nonzero()), mask.numel()

    (count, size), assumed = planned(chosen)
    assert count == size
    assert all("equally frequent" not in one for one in assumed)


def test_what_is_assumed_is_told_once_with_its_place() -> None:
    def chosen(scores: torch.Tensor) -> list[torch.Tensor]:
        return [torch.where(top(scores) == expert)[0] for expert in range(EXPERTS)]

    parts, (note,) = planned(chosen)
    assert sum(map(len, parts)) == ROWS * EACH
    assert "chooses 1/8 of its elements: all choices are equally frequent" in note
    assert "test_shares.py:" in note


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_mask_with_elements_is_never_empty(rows: int) -> None:
    places, _ = planned(lambda scores: (scores.argmax(-1) == 3).nonzero(), rows)
    assert len(places) == 1


def test_a_mask_without_elements_chooses_none() -> None:
    places, _ = planned(lambda scores: (scores.argmax(-1) == 3).nonzero(), 0)
    assert len(places) == 0


def test_a_large_one_hot_code_keeps_its_share() -> None:
    made, _ = planned(lambda scores: one_hot(scores)[..., 3].nonzero(), LARGE)
    assert len(made) == LARGE * EACH // EXPERTS


def test_large_new_zeros_are_zeros() -> None:
    def read(scores: torch.Tensor) -> tuple[float, int]:
        zeros = torch.zeros_like(scores)
        return zeros.amax().item(), len(scores.new_ones(LARGE, EXPERTS).nonzero())

    (most, places), assumed = planned(read, LARGE)
    assert (most, places, assumed) == (0, LARGE * EXPERTS, [])


def test_rows_of_a_share_go_forward_and_back() -> None:
    def trained(scores: torch.Tensor) -> Any:
        rows = torch.empty(ROWS, 4, requires_grad=True)
        chosen = rows[scores.argmax(-1) == 3]
        chosen.sum().backward()
        return chosen.shape, rows.grad

    (shape, grad), _ = planned(trained)
    assert shape == (ROWS // EXPERTS, 4)
    assert grad.shape == (ROWS, 4)
