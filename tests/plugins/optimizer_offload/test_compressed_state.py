"""State as codes in its tensors' stead."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from offloaded import state_of
from support import DEVICE
from torch import nn

from neaptide_plugins.optimizer_offload.compressed_state import CompressedState
from neaptide_toolkit.testing.parting import same_bits

pytestmark = pytest.mark.usefixtures("on_device")


def holding(**tensors: Any) -> tuple[Any, dict[str, Any]]:
    parameter = nn.Parameter(torch.zeros(8))
    optimizer = torch.optim.SGD([parameter])
    optimizer.state[parameter] = tensors
    return state_of(optimizer, [parameter]), tensors


def test_floats_are_coded_and_the_rest_stays() -> None:
    generator = torch.Generator(DEVICE).manual_seed(0)
    normal = torch.randn(3000, generator=generator)
    odd = normal.clone()
    odd[5] = math.nan
    given: dict[str, Any] = {
        "signed": normal.clone(),
        "square": normal.square(),
        "odd": odd.clone(),
        "counts": torch.arange(3000),
        "step": torch.tensor(3.0),
        "few": normal[:9].clone(),
    }
    state, held = holding(**given)
    before = {name: value.clone() for name, value in held.items()}
    mechanism = CompressedState()
    mechanism.leave(*state)
    assert 0 == held["signed"].numel() == held["square"].numel()
    for name in ("odd", "counts", "step", "few"):
        assert same_bits(before[name], held[name])
    assert {"not representable in int8": 12000 + 24000} == dict(mechanism.left)
    mechanism.finish()
    assert held["signed"] is given["signed"]
    for name in ("signed", "square"):
        assert torch.allclose(before[name], held[name], rtol=0.2, atol=0.02)
    assert mechanism.error is not None
    assert 0 < mechanism.error < 0.03
    assert not mechanism.is_away


def test_tensors_in_one_storage_stay() -> None:
    flat = torch.rand(4000)
    state, held = holding(one=flat[:2000], two=flat[2000:])
    del flat
    mechanism = CompressedState()
    mechanism.leave(*state)
    assert not mechanism.is_away
    assert 2000 == held["one"].numel()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("value", [1e-6, -0.3, 0.7, 1.0])
def test_a_variance_never_becomes_negative(value: float, dtype: torch.dtype) -> None:
    mean = value * (1 + torch.rand(4000) * torch.tensor([1.0, 1e-3]).repeat(2000))
    mean = mean.to(dtype)
    state, held = holding(mean=mean, square=mean.square())
    mechanism = CompressedState()
    mechanism.leave(*state)
    assert 0 == held["mean"].numel()
    mechanism.finish()
    variance = held["square"].addcmul(held["mean"], held["mean"], value=-1)
    assert bool((variance >= 0).all())


def test_centred_rmsprop_with_constant_gradients_goes_on() -> None:
    weight = nn.Parameter(torch.zeros(64, 64))
    optimizer = torch.optim.RMSprop([weight], lr=1e-3, centered=True, alpha=0.5)
    generator = torch.Generator(DEVICE).manual_seed(0)
    gradient = torch.randn(64, 64, generator=generator)
    mechanism = CompressedState()
    for number in range(30):
        weight.grad = gradient.clone() * (1 + 1e-3 * (number % 2))
        optimizer.step()
        mechanism.leave(*state_of(optimizer, [weight]))
        assert mechanism.is_away
        mechanism.finish()
    assert bool(weight.isfinite().all())


def test_values_that_it_is_given_meanwhile_are_kept() -> None:
    state, held = holding(moment=torch.randn(3000))
    mechanism = CompressedState()
    mechanism.leave(*state)
    held["moment"].data = torch.ones(3000)
    mechanism.finish()
    assert bool((held["moment"] == 1).all())


def test_many_codings_do_not_drift() -> None:
    generator = torch.Generator(DEVICE).manual_seed(0)
    square = torch.randn(20000, generator=generator).square()
    state, held = holding(square=square.clone())
    mechanism = CompressedState()
    for _ in range(30):
        mechanism.leave(*state)
        mechanism.finish()
    ratio = held["square"].log2().mean() - square.log2().mean()
    assert abs(float(ratio)) < 0.02
