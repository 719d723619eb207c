"""The guard: a jump is kept, halved or taken back bit for bit, whatever a predictor proposes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch
from support import same_tensors, tensors_of
from torch import nn

from neaptide import Update
from neaptide.loop.guard import Guard
from neaptide_toolkit.offload.resident_store import ResidentStore
from neaptide_toolkit.testing import HostileStore
from neaptide_toolkit.testing.parting import same_bits

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide.api.parameters import ParameterStore
    from neaptide.api.spans import Span

pytestmark = pytest.mark.usefixtures("on_device")

GUARD = Guard(rise=0.0, halvings=2)


def bowl(start: float, kind: type = ResidentStore) -> tuple[ParameterStore, Callable[[], float]]:
    """Return a store over one weight of four elements, and the loss sum(w^2)."""
    model = nn.Module()
    model.w = nn.Parameter(torch.full((4,), start))
    store = kind(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def probe() -> float:
        with store.compute():
            return float(model.w.detach().square().sum())

    return store, probe


def weight_of(store: ParameterStore) -> torch.Tensor:
    """Return a copy of the bowl's weight."""
    with store.loan(store.spans()[0], "read") as weight:
        return weight.clone()


def by(value: float) -> Update:
    """Return an update that adds `value` everywhere."""
    return Update(1, lambda span: torch.full(span.shape, value))


@pytest.mark.parametrize("kind", [ResidentStore, HostileStore])
@pytest.mark.parametrize(
    ("delta", "scale", "left"),
    [(-1.0, 1.0, 0.0), (-3.0, 0.5, -0.5), (-7.0, 0.25, -0.75)],
)
def test_a_jump_is_halved_until_it_does_no_harm(
    kind: type, delta: float, scale: float, left: float
) -> None:
    store, probe = bowl(1.0, kind)
    verdict = GUARD.judge(store, by(delta), probe)
    assert (True, scale, "") == (verdict.accepted, verdict.scale, verdict.reason)
    assert same_bits(torch.full((4,), left), weight_of(store))
    assert (4.0, 4 * left**2, 2 * abs(delta)) == (
        verdict.loss_before,
        verdict.loss_after,
        verdict.norm,
    )


@pytest.mark.parametrize("kind", [ResidentStore, HostileStore])
def test_a_harmful_jump_is_refused_bitwise(kind: type) -> None:
    store, probe = bowl(1.0, kind)
    before = weight_of(store)
    verdict = GUARD.judge(store, by(0.1), probe)
    assert (False, 0.0) == (verdict.accepted, verdict.scale)
    assert verdict.reason.startswith("the probe loss rose from 4 to 4.20")
    assert same_bits(before, weight_of(store))


def test_the_rise_is_relative_and_lets_just_that_much_through() -> None:
    store, probe = bowl(1.0)
    assert Guard(rise=0.21, halvings=0).judge(store, by(0.0999), probe).accepted
    store, probe = bowl(1.0)
    assert not Guard(rise=0.20, halvings=0).judge(store, by(0.1), probe).accepted


def test_a_negative_loss_may_rise_as_well() -> None:
    store, probe = bowl(1.0)
    assert Guard(rise=0.5, halvings=0).judge(store, by(0.1), lambda: probe() - 10.0).accepted


def test_a_loss_that_becomes_nan_is_refused() -> None:
    store, _ = bowl(1.0)
    before = weight_of(store)
    losses = iter([1.0, math.nan, math.nan, math.nan])
    verdict = GUARD.judge(store, by(-1.0), lambda: next(losses))
    assert not verdict.accepted
    assert same_bits(before, weight_of(store))


def test_a_loss_that_is_nan_already_refuses_every_jump() -> None:
    store, _ = bowl(1.0)
    verdict = GUARD.judge(store, by(-1.0), lambda: math.nan)
    assert (False, "the probe loss before the jump is nan") == (verdict.accepted, verdict.reason)


def test_callbacks_hear_of_accepted_jumps_only_with_what_was_added() -> None:
    heard: list[tuple[float, float]] = []
    store, probe = bowl(1.0)
    store.on_update(lambda span, weight, delta: heard.append((float(weight[0]), float(delta[0]))))
    GUARD.judge(store, by(0.1), probe)
    assert [] == heard
    GUARD.judge(store, by(-3.0), probe)
    assert [(-0.5, -1.5)] == heard


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("kind", [ResidentStore, HostileStore])
def test_a_probe_that_raises_leaves_no_half_jump(kind: type, error: type[BaseException]) -> None:
    store, probe = bowl(1.0, kind)
    before, calls = weight_of(store), iter(range(10))

    def failing() -> float:
        if next(calls) == 1:
            raise error
        return probe()

    with pytest.raises(error):
        GUARD.judge(store, by(-1.0), failing)
    assert same_bits(before, weight_of(store))


def test_a_delta_that_raises_in_the_middle_leaves_no_half_jump() -> None:
    model = nn.Linear(3, 2)
    store = ResidentStore(model, torch.optim.SGD(model.parameters(), lr=0.1))
    before, calls = tensors_of(model), iter(range(10))

    def delta(span: Span) -> torch.Tensor:
        if next(calls) == 3:
            raise ConnectionError
        return torch.ones(span.shape)

    with pytest.raises(ConnectionError):
        GUARD.judge(store, Update(1, delta), lambda: 1.0)
    assert same_tensors(before, tensors_of(model))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_deltas_of_other_float_dtypes_are_added_in_the_weights_own(dtype: torch.dtype) -> None:
    store, probe = bowl(1.0)
    update = Update(1, lambda span: torch.full(span.shape, -0.5, dtype=dtype))
    assert GUARD.judge(store, update, probe).accepted
    assert same_bits(torch.full((4,), 0.5), weight_of(store))


@pytest.mark.parametrize("horizon", [0, -3])
def test_an_update_stands_for_at_least_one_step(horizon: int) -> None:
    with pytest.raises(ValueError, match="horizon"):
        Update(horizon, lambda span: None)
