"""Samples that are added together: the bits of each alone; every value that is not finite."""

from __future__ import annotations

import pytest
import torch
from support import DEVICE

from neaptide import Span
from neaptide_kernels.apply_delta import apply_delta
from neaptide_kernels.int8 import dequantize_int8, quantize_int8
from neaptide_toolkit.predictors.held_tensors import Storage, WindowOps
from neaptide_toolkit.predictors.sampling import SMALL, all_finite
from neaptide_toolkit.predictors.window import Window, WindowPlan
from neaptide_toolkit.testing.parting import same_bits

pytestmark = pytest.mark.usefixtures("on_device")

STORAGE = Storage(WindowOps(quantize_int8, dequantize_int8, apply_delta), DEVICE)
SIZES = (7, 256, 300, 1, SMALL, SMALL + 1, 1000, 0)
SAMPLES = 3


def snapshots(index: int, samples: int) -> list[float]:
    return [float(index == row) for row in range(samples)]


def halves(index: int, samples: int) -> list[float]:
    return [1.0 if 2 * index >= samples else -1.0, float(index) / samples]


def path(dtype: torch.dtype) -> list[dict[str, torch.Tensor]]:
    """Return the weights after each update; one has two dimensions and is not contiguous."""
    generator = torch.Generator().manual_seed(0)
    first = {
        f"w{size}": torch.randn(size, generator=generator, device="cpu").to(DEVICE)
        for size in SIZES
    }
    first["turned"] = torch.randn(6, 50, generator=generator, device="cpu").to(DEVICE).T
    first["scalar"] = torch.randn((), generator=generator, device="cpu").to(DEVICE)
    steps = [first]
    for _ in range(SAMPLES - 1):
        steps.append({n: w + 0.01 * torch.randn_like(w) for n, w in steps[-1].items()})
    return [{name: w.to(DEVICE, dtype) for name, w in step.items()} for step in steps]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("state", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("coefficients", [snapshots, halves])
def test_weights_added_together_have_the_bits_of_each_alone(
    coefficients: object, state: str, dtype: torch.dtype
) -> None:
    steps = path(dtype)
    spans = [Span(n, tuple(w.shape), dtype, "device", trainable=True) for n, w in steps[0].items()]
    alone, together = (
        Window.open(WindowPlan(SAMPLES, 1), coefficients, spans, STORAGE, state, began=5)  # type: ignore[arg-type]
        for _ in range(2)
    )
    for step in steps:
        for name, weight in reversed(step.items()):
            alone.add(name, weight)
        together.add_all(step, step.values())
        assert alone.advance()
        assert together.advance()
    for name in steps[0]:
        assert alone.complete(name) == together.complete(name) == (name != "w0")
        held = [*zip(alone.rows[name], together.rows[name], strict=True)]
        if state != "float32":
            held.append((alone.references[name], together.references[name]))
        for one, other in held:
            assert all(map(same_bits, one.tensors(), other.tensors()))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("size", [3, SMALL, SMALL + 1])
def test_one_value_that_is_not_finite_is_found_anywhere(size: int, value: float) -> None:
    weights = [torch.ones(count, device=DEVICE) for count in (5, size, 8, SMALL + 3)]
    assert all_finite(weights)
    weights[1][size - 1] = value
    assert not all_finite(weights)
    assert not all_finite(weights[1:2])
