"""fp8 scaling, which weights are worth it, and which hardware."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import DEVICE
from torch import nn

from neaptide_toolkit.low_precision import (
    DTYPE,
    FP8_TENSOR_CORES,
    GRADIENT_DTYPE,
    choose_weights,
    fp8_missing,
    fp8_product,
    fp8_slower,
    int8_slower,
)
from neaptide_toolkit.low_precision.fp8 import scaled
from neaptide_toolkit.low_precision.hardware import INT8_TENSOR_CORES, reason_by_capability

pytestmark = pytest.mark.usefixtures("on_device")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=20),
    st.integers(-125, 120),
    st.sampled_from([(DTYPE, 2.0**-4, 2.0**-10), (GRADIENT_DTYPE, 2.0**-3, 2.0**-17)]),
)
def test_a_value_is_off_by_half_a_step_of_its_dtype(
    values: list[float], power: int, kind: tuple[torch.dtype, float, float]
) -> None:
    dtype, relative, smallest = kind
    x = torch.tensor(values) * 2.0**power
    codes, scale = scaled(x, dtype)
    found = codes.double() * scale.double()
    exact = x.double()
    # Half a step of a normal number, or of the denormals.
    bound = torch.maximum(exact.abs() * relative, scale.double() * smallest) * 1.0001
    bound = bound + (0.0 if float(exact.abs().max()) >= 2.0**-100 else 2.0**-100)
    assert ((found - exact).abs() <= bound).all()
    assert codes.float().isfinite().all()


@pytest.mark.parametrize("dtype", [DTYPE, GRADIENT_DTYPE])
def test_zeros_are_zeros_and_what_is_not_finite_has_no_scale(dtype: torch.dtype) -> None:
    codes, scale = scaled(torch.zeros(4), dtype)
    assert (0.0, True) == (float(codes.float().abs().sum()), math.isfinite(scale))
    for wrong in (math.inf, -math.inf, math.nan):
        assert math.isnan(scaled(torch.tensor([1.0, wrong]), dtype)[1])
    largest = torch.finfo(torch.float32).max
    codes, scale = scaled(torch.tensor([largest, 1.0]), dtype)
    assert float(codes.double()[0] * scale.double()) == pytest.approx(largest)


@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_product_of_exact_numbers_is_exact(out_dtype: torch.dtype) -> None:
    generator = torch.Generator(DEVICE).manual_seed(0)
    a, b = (
        torch.randint(-3, 4, shape, generator=generator).float() for shape in ((5, 32), (16, 32))
    )
    # So that the scales are powers of two.
    a[0, 0] = 448 / 2**6
    b[0, 0] = 448 / 2**6
    found = fp8_product(a, b, out_dtype=out_dtype)
    assert torch.equal((a @ b.t()).to(out_dtype), found)


class Model(nn.Module):
    """Weights of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.first = nn.Linear(32, 64)
        self.second = nn.Linear(64, 32)
        self.odd = nn.Linear(32, 33)
        self.small = nn.Linear(16, 16)
        self.head = nn.Linear(32, 64, bias=False)
        self.tied = nn.Linear(32, 64, bias=False)
        self.tied.weight = self.embed.weight
        self.conv = nn.Conv1d(16, 16, 3)


def test_weights_are_chosen_by_name_size_and_use() -> None:
    chosen = choose_weights(Model(), include=["*"], exclude=["head.*"], min_elements=1024)
    assert ["first.weight", "second.weight"] == list(chosen.names.values())
    assert 2048 == chosen.largest
    assert {
        "embedding": 1,
        "a size that is not a multiple of 16": 1,
        "smaller than 1024 elements": 1,
        "excluded": 1,
    } == chosen.left_out
    some = choose_weights(Model(), include=["s*"], exclude=[], min_elements=1)
    assert ["second.weight", "small.weight"] == list(some.names.values())
    none = choose_weights(nn.Linear(3, 3), include=["*"], exclude=[], min_elements=1)
    assert ({}, 0) == (none.names, none.largest)


class Special(nn.Parameter):
    """Somebody's own parameters, with products of their own."""


def test_weights_of_other_classes_are_left_alone() -> None:
    model = nn.Linear(32, 32)
    model.weight = Special(torch.ones(32, 32))
    chosen = choose_weights(model, include=["*"], exclude=[], min_elements=1)
    assert ({}, {"a Special": 1}) == (chosen.names, chosen.left_out)


def test_the_hardware_rule_names_what_is_missing() -> None:
    cpu = torch.device("cpu")
    assert "on 'cpu' rounding to fp8 takes longer" in str(fp8_slower(cpu))
    assert "on 'cpu' rounding to int8 takes longer" in str(int8_slower(cpu))
    assert fp8_missing(cpu) is None
    assert reason_by_capability("fp8", (8, 6), FP8_TENSOR_CORES) == (
        "a GPU of compute capability 8.6 has no fp8 tensor cores (8.9 and above have)"
    )
    assert reason_by_capability("fp8", (8, 9), FP8_TENSOR_CORES) is None
    assert reason_by_capability("int8", (7, 0), INT8_TENSOR_CORES) is not None
    assert reason_by_capability("int8", (12, 0), INT8_TENSOR_CORES) is None
