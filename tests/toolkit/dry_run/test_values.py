"""Unknown values: they are finite, what code reads of them is noted, and no loop waits for them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from neaptide_toolkit.dry_run import assumptions
from neaptide_toolkit.dry_run.assumptions import UnplannableError
from neaptide_toolkit.dry_run.reading import reads_by
from neaptide_toolkit.dry_run.unknown import Unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIZES = {"few": (3, 4), "many": (2**11, 2**12)}


def ignored(*_: Any) -> None:
    """Take a storage."""


@pytest.fixture
def mode() -> Iterator[Unknown]:
    made = Unknown(ignored)
    with reads_by(made), made:
        yield made


def unknown(mode: Unknown, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    made = torch.zeros(*shape, dtype=dtype)
    mode.forget([made])
    return made


CHECKS: dict[str, tuple[Callable[[torch.Tensor], Any], bool]] = {
    "isnan any": (lambda x: torch.isnan(x).any(), False),
    "isinf any": (lambda x: x.isinf().any().item(), False),
    "isposinf or isneginf": (lambda x: (torch.isposinf(x) | torch.isneginf(x)).any(), False),
    "isfinite all": (lambda x: torch.isfinite(x).all(), True),
    "not isfinite": (lambda x: (~torch.isfinite(x)).any(), False),
    "isnan along a dimension": (lambda x: torch.isnan(x).any(dim=-1).any(), False),
    "isnan sum": (lambda x: torch.isnan(x).sum() > 0, False),
    "isnan or isinf": (lambda x: torch.logical_or(x.isnan(), x.isinf()).any(), False),
    "not the same as itself": (lambda x: torch.ne(x, x).any(), False),
    "a mean that is checked": (lambda x: torch.isnan(x.mean()), False),
    "a mean read by math": (lambda x: math.isnan(x.mean()), False),
    "a list": (lambda x: any(map(math.isnan, x[:2, 0].tolist())), False),
    "numpy": (lambda x: np.isnan(x[:2].numpy()).any(), False),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("check", CHECKS)
def test_unknown_values_are_finite(mode: Unknown, check: str, size: str) -> None:
    asked, expected = CHECKS[check]
    assert bool(asked(unknown(mode, *SIZES[size]))) is expected


def test_a_guard_of_a_norm_passes(mode: Unknown) -> None:
    weight = torch.nn.Parameter(unknown(mode, 2**20))
    weight.grad = unknown(mode, 2**20)
    norm = torch.nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)
    assert torch.isfinite(norm)


def test_a_comparison_with_a_number_is_not_known(mode: Unknown) -> None:
    values = unknown(mode, 5)
    assert values[values > 2].shape == values.shape
    assert torch.isnan(values * (values > 2)).sum() == 0


def test_a_single_value_is_one_when_it_is_compared(mode: Unknown) -> None:
    chosen = unknown(mode, 4, 2).argmax()
    assert chosen != 4
    assert chosen.item() == 1


@pytest.mark.parametrize(
    "condition", [lambda x: x.any(), lambda x: x.sum() > 0.5, lambda x: x.mean().item() >= 1]
)
def test_a_loop_until_a_value_is_refused(
    mode: Unknown, monkeypatch: pytest.MonkeyPatch, condition: Callable[[torch.Tensor], Any]
) -> None:
    monkeypatch.setattr(assumptions, "_MANY", 50)
    values = unknown(mode, 3)

    def endless() -> None:
        nonlocal values
        while condition(values):
            values = values - 1

    with pytest.raises(UnplannableError, match=r"a loop .* @ .*test_values\.py:\d+$") as raised:
        endless()
    assert raised.value.exit_code == 2
    assert "\n" not in str(raised.value)


def test_a_slow_loop_is_refused_earlier(mode: Unknown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assumptions, "_SOME", 6)
    monkeypatch.setattr(assumptions, "_PATIENCE", 0.0)
    values = unknown(mode, 3)
    with pytest.raises(UnplannableError, match=" 6 times"):
        [bool(values.any()) for _ in range(6)]


def test_reads_of_another_part_are_counted_anew(
    mode: Unknown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assumptions, "_MANY", 5)
    for _ in range(10):
        mode.assumptions.restart()
        assert unknown(mode, 3).any()
    assert len(list(mode.assumptions)) == 1


@pytest.mark.parametrize("ask", [lambda x: x.tolist(), lambda x: x.numpy(), np.asarray])
def test_lists_of_unknown_integers_are_refused(
    mode: Unknown, ask: Callable[[torch.Tensor], Any]
) -> None:
    with pytest.raises(UnplannableError, match=r"3 integers .* @ .*test_values\.py:\d+$"):
        ask(unknown(mode, 3, 4).argmax(1))


def test_lists_of_known_integers_are_read(mode: Unknown) -> None:
    del mode
    assert torch.arange(3).tolist() == torch.arange(3).numpy().tolist() == [0, 1, 2]


def test_lists_of_unknown_numbers_are_ones_and_noted(mode: Unknown) -> None:
    assert unknown(mode, 2).tolist() == [1.0, 1.0]
    assert unknown(mode, 2).numpy().tolist() == [1.0, 1.0]
    notes = list(mode.assumptions)
    assert len(notes) == 2
    assert all("test_values.py:" in one for one in notes)


def test_an_unknown_tensor_can_be_printed(mode: Unknown) -> None:
    assert "1" in repr(unknown(mode, 2, 2))
    assert "1" in repr(unknown(mode, 3, 4).argmax(1))


def test_methods_of_tensors_are_those_of_torch_afterwards() -> None:
    before = torch.Tensor.tolist, torch.Tensor.numpy
    with reads_by(Unknown(ignored)):
        assert torch.Tensor.tolist is not before[0]
    assert (torch.Tensor.tolist, torch.Tensor.numpy) == before
