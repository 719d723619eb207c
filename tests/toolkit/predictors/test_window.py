"""Windows: rows are the sums they say, in every format; inner products, what is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import DEVICE

from neaptide import Span
from neaptide_kernels.apply_delta import apply_delta
from neaptide_kernels.int8 import dequantize_int8, quantize_int8
from neaptide_toolkit.predictors.held_tensors import Storage, WindowOps
from neaptide_toolkit.predictors.window import Window, WindowPlan, window_bytes
from neaptide_toolkit.testing.parting import same_bits

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.usefixtures("on_device")

CPU = torch.device("cpu")
STORAGE = Storage(WindowOps(quantize_int8, dequantize_int8, apply_delta), DEVICE)
STATES = ("float32", "bfloat16", "int8")


def snapshots(index: int, samples: int) -> list[float]:
    return [float(index == row) for row in range(samples)]


def difference(index: int, samples: int) -> list[float]:
    """Return the coefficients of last less first."""
    return [float((index == samples - 1) - (index == 0))]


def span(name: str, weight: torch.Tensor) -> Span:
    return Span(name, tuple(weight.shape), weight.dtype, "device", trainable=True)


def opened(weights: dict[str, torch.Tensor], samples: int, **given_: Any) -> Window:
    options = {"coefficients": snapshots, "state": "float32", "began": 0, **given_}
    spans = [span(name, weight) for name, weight in weights.items()]
    every = options.pop("every", 1)
    return Window.open(
        WindowPlan(samples, every),
        options.pop("coefficients"),
        spans,
        STORAGE,
        options.pop("state"),
        **options,
    )


def fed(window: Window, name: str, weights: Sequence[torch.Tensor]) -> Window:
    for weight in weights:
        if window.samples_next:
            window.add(name, weight)
        window.advance()
    return window


def path(steps: int, seed: int = 0, size: int = 300, step: float = 1e-3) -> list[torch.Tensor]:
    """Return weights that move a little: their drift is a thousandth of them."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    moves = torch.randn(steps, size, generator=generator) * step
    return list(torch.randn(size, generator=generator) + moves.cumsum(0))


@given(st.integers(3, 6), st.integers(1, 3), st.sampled_from(STATES), st.integers(0, 50))
def test_a_combination_is_that_of_the_samples(
    samples: int, every: int, state: str, seed: int
) -> None:
    weights = path(samples * every, seed)
    window = fed(opened({"w": weights[0]}, samples, every=every, state=state), "w", weights)
    gains = torch.randn(samples, generator=torch.Generator(DEVICE).manual_seed(seed)).double()
    gains -= gains.mean()
    taken = torch.stack(weights[every - 1 :: every]).double()
    expected = (gains[:, None] * taken).sum(0)
    found = window.combined("w", gains.tolist())
    assert found is not None
    # In bfloat16 and int8 a digit of what the samples differ from the first one's codes by.
    spread = float((taken - taken[0]).abs().max() + taken.abs().max() / 254)
    digit = {"float32": 2.0**-22, "bfloat16": 2.0**-7, "int8": 1 / 127}[state]
    allowed = digit * spread * float(gains.abs().sum()) + 1e-6
    assert (found - expected).abs().max() <= allowed


@given(st.sampled_from(STATES), st.integers(0, 50))
def test_the_reference_drops_out(state: str, seed: int) -> None:
    weights = path(40, seed)
    window = opened({"w": weights[0]}, 40, coefficients=difference, state=state)
    found = fed(window, "w", weights).combined("w", [1.0])
    assert found is not None
    expected = weights[-1] - weights[0]
    # Kept as they are, the weights' own digits would be larger than what they have moved by.
    bound = {"float32": 1e-6, "bfloat16": 0.02, "int8": 0.05}[state]
    assert (found - expected).norm() <= bound * expected.norm() + 1e-6


@pytest.mark.parametrize("state", STATES)
def test_a_window_holds_what_it_says(state: str) -> None:
    weights = {"a": torch.zeros(300), "b": torch.zeros(3, 5)}
    window = opened(weights, 4, state=state)
    kept = [held for rows in window.rows.values() for held in rows] + [*window.references.values()]
    allocated = sum(tensor.nbytes for held in kept for tensor in held.tensors())
    assert sum(window_bytes(w.shape, state, 4) for w in weights.values()) == allocated  # type: ignore[arg-type]


@pytest.mark.parametrize("state", STATES)
def test_the_next_window_is_in_the_memory_of_the_one_before(state: str) -> None:
    weights = path(4)
    first = fed(opened({"w": weights[0]}, 4, state=state), "w", weights)
    places = [held.values.data_ptr() for held in first.rows["w"]]
    second = opened({"w": weights[0]}, 4, state=state, before=first, began=4)
    assert places == [held.values.data_ptr() for held in second.rows["w"]]
    assert all(not held.whole(CPU).any() for held in second.rows["w"])
    third = opened({"w": weights[0]}, 5, state=state, before=second, began=8)
    assert 5 == len(third.rows["w"])


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("saved_after", range(5))
def test_a_window_saved_and_loaded_goes_on_to_the_same_bits(state: str, saved_after: int) -> None:
    weights = path(4)
    whole = fed(opened({"w": weights[0]}, 4, state=state), "w", weights)
    part = fed(opened({"w": weights[0]}, 4, state=state), "w", weights[:saved_after])
    resumed = Window.load(part.state_dict(), snapshots, STORAGE)
    fed(resumed, "w", weights[saved_after:])
    for expected, found in zip(whole.rows["w"], resumed.rows["w"], strict=True):
        assert all(map(same_bits, expected.tensors(), found.tensors()))


def test_the_inner_products_are_those_of_the_steps() -> None:
    a, b = path(4, 1), path(4, 2, size=7)
    window = opened({"b": b[0], "a": a[0]}, 4)
    for one, other in zip(a, b, strict=True):
        window.add("b", other)
        window.add("a", one)
        window.advance()
    steps = torch.stack([torch.cat(pair) for pair in zip(a, b, strict=True)]).double().diff(dim=0)
    torch.testing.assert_close((steps @ steps.T).cpu(), window.gram())


def test_a_weight_that_missed_a_sample_is_left_out() -> None:
    window = opened({"w": torch.ones(2), "late": torch.ones(2), "gone": torch.ones(2)}, 3)
    for number in range(3):
        window.add("w", torch.ones(2))
        if number > 0:
            window.add("late", torch.ones(2))
        if number < 2:
            window.add("gone", torch.ones(2))
        window.add("unknown", torch.ones(2))
        window.advance()
    assert window.full
    assert [True, False, False, False] == [
        window.combined(name, [1.0, 0.0, -1.0]) is not None
        for name in ("w", "late", "gone", "unknown")
    ]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_sample_that_is_not_finite_is_seen(value: float) -> None:
    window = opened({"a": torch.ones(300), "b": torch.ones(2)}, 2)
    poisoned = torch.ones(300)
    poisoned[77] = value
    window.add("a", poisoned)
    window.add("b", torch.ones(2))
    assert window.touched
    assert not window.advance()
    window.add("a", torch.ones(300))
    assert window.advance()
