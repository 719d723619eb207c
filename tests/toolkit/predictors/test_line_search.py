"""The search finds the lowest point of a known loss and leaves every weight as it was."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import same_tensors, tensors_of
from torch import nn

from neaptide_toolkit.offload.resident_store import ResidentStore
from neaptide_toolkit.predictors.line_search import FACTORS, LineSearch, along, lowest

pytestmark = pytest.mark.usefixtures("on_device")

nan, inf = math.nan, math.inf


def bowl(at: float) -> list[float]:
    return [3.0 + 0.25 * (factor - at) ** 2 for factor in FACTORS]


@given(st.floats(0.0, 8.0))
def test_the_lowest_point_of_a_parabola_is_found(at: float) -> None:
    assert lowest(FACTORS, bowl(at)) == pytest.approx(at, abs=1e-6)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=5, max_size=5))
def test_whatever_the_losses_the_factor_is_one_that_was_measured_between(
    losses: list[float],
) -> None:
    found = lowest(FACTORS, losses)
    reached = [f for f, loss in zip(FACTORS, losses, strict=True) if math.isfinite(loss)]
    assert 0.0 <= found <= max(reached, default=0.0)


@pytest.mark.parametrize(
    ("losses", "factor"),
    [
        (bowl(-3.0), 0.0),
        (bowl(20.0), 8.0),
        ([5.0, 4.0, 3.0, 1.0, -3.0], 8.0),
        ([1.0, 1.0, 1.0, 1.0, 1.0], 0.0),
        ([2.0, 1.0, nan, inf, inf], 1.0),
        ([nan, nan, nan, nan, nan], 0.0),
    ],
)
def test_where_there_is_no_lowest_point_inside(losses: list[float], factor: float) -> None:
    assert factor == lowest(FACTORS, losses)


def test_batches_are_averaged_and_kept() -> None:
    search = LineSearch()
    with pytest.raises(ValueError, match="nothing has been measured"):
        _ = search.best
    search.add(bowl(1.0))
    search.add(bowl(3.0))
    assert search.best == pytest.approx(2.0)
    again = LineSearch()
    again.load_state_dict(search.state_dict())
    assert (search.best, search.batches) == (again.best, again.batches)


def model_and_store() -> tuple[nn.Module, ResidentStore]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[1].bias.requires_grad_(requires_grad=False)
    return model, ResidentStore(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_the_loss_is_measured_along_the_line_and_nothing_else_moves() -> None:
    model, store = model_and_store()
    before = tensors_of(model)
    base = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    seen: list[dict[str, Any]] = []

    def probe() -> float:
        seen.append(tensors_of(model))
        return float(model[0].weight.detach().sum())

    def delta(name: str) -> torch.Tensor | None:
        return torch.ones_like(base[name]) if name == "0.weight" else None

    losses = along(store, lambda name: None if name == "1.weight" else base[name], delta, probe)
    assert [12.0 * factor for factor in FACTORS] == losses
    assert same_tensors(before, tensors_of(model))
    for state in seen:
        assert not state["0.bias"].any()
        assert torch.equal(before["1.weight"], state["1.weight"])
        assert torch.equal(before["1.bias"], state["1.bias"])


def test_the_weights_are_back_when_a_forward_raises() -> None:
    model, store = model_and_store()
    before = tensors_of(model)

    def probe() -> float:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        along(store, lambda name: torch.full_like(before[name], 7.0), lambda _: None, probe)
    assert same_tensors(before, tensors_of(model))
