"""State as int8: what comes back is within the bounds that are stated, whatever went in."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from support import DEVICE

from neaptide_plugins.optimizer_offload.codes import GROUP, decode, encodable, encode

pytestmark = pytest.mark.usefixtures("on_device")

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def coded(tensor: torch.Tensor) -> torch.Tensor:
    codes = encode(tensor)
    assert codes is not None
    back = decode(codes)
    assert (tensor.dtype, tensor.shape, tensor.stride()) == (back.dtype, back.shape, back.stride())
    return back


def values(seed: int, octaves: float, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    signs = torch.randint(0, 2, (3, 700), generator=generator) * 2.0 - 1.0
    magnitudes = torch.exp2(-octaves * torch.rand(3, 700, generator=generator))
    return (signs * magnitudes).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@given(seed=some.integers(0, 1000), octaves=some.floats(0.0, 12.0))
@settings(max_examples=25, deadline=None)
def test_signed_values_are_within_a_254th(dtype: torch.dtype, seed: int, octaves: float) -> None:
    tensor = values(seed, octaves, dtype)
    back = coded(tensor)
    assert bool((back.double() * tensor.double() >= 0).all())
    gap = (back.double() - tensor.double()).abs().max()
    eps = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)  # scales are float32
    assert gap <= tensor.abs().max().double() * (1 / 254 + 2 * eps)


@pytest.mark.parametrize("dtype", DTYPES)
@given(seed=some.integers(0, 1000), octaves=some.floats(0.0, 14.0))
@settings(max_examples=25, deadline=None)
def test_what_has_no_sign_keeps_its_size_relative_to_itself(
    dtype: torch.dtype, seed: int, octaves: float
) -> None:
    tensor = values(seed, octaves, dtype).abs()
    tensor[0, 3:9] = 0.0
    back = coded(tensor)
    assert torch.equal(tensor == 0, back == 0)
    ratio = (back.double() / tensor.double())[tensor != 0].log2().abs().max()
    assert ratio <= octaves / 127 / 2 + 4 * torch.finfo(dtype).eps + 1e-4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [0.0, -0.0, 0.3, -0.3, 1.0, 65504.0, 6.1e-5])
def test_a_constant_comes_back(dtype: torch.dtype, value: float) -> None:
    tensor = torch.full((GROUP + 9,), value, dtype=dtype)
    back = coded(tensor)
    assert torch.allclose(tensor, back, rtol=4e-6 + torch.finfo(dtype).eps, atol=0.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_not_coded(dtype: torch.dtype, odd: float) -> None:
    tensor = torch.ones(500, dtype=dtype)
    tensor[77] = odd
    assert encode(tensor) is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_whole_range_of_a_dtype(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    tensor = torch.tensor([limits.smallest_normal / 4, 1.0, limits.max, 0.0] * 200, dtype=dtype)
    back = coded(tensor)
    assert bool(back.isfinite().all())
    assert torch.equal(tensor == 0, back == 0)
    signed = encode(torch.cat([tensor, -tensor]))
    assert (dtype == torch.float64) == (signed is None)
    assert signed is None or bool(decode(signed).isfinite().all())


def test_denormals_alone_stay_what_they_are() -> None:
    assert bool((coded(torch.full((300,), 1e-42)) == torch.tensor(1e-42)).all())
    assert bool((coded(torch.randn(300) * 1e-41).abs() <= 1e-38).all())


def test_layouts_are_kept() -> None:
    tensor = torch.rand(8, 3, 20, 20).to(memory_format=torch.channels_last)
    assert torch.allclose(tensor, coded(tensor), rtol=0.1)
    turned = torch.rand(20, 30).t()
    assert torch.allclose(turned, coded(turned), rtol=0.1)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(500, dtype=torch.int32),
        torch.ones(500, dtype=torch.bool),
        torch.ones(500, dtype=torch.complex64),
        torch.ones(500)[::2],
        torch.ones(1).expand(500),
        torch.ones(500).to(torch.float8_e4m3fn),
    ],
)
def test_what_is_no_dense_float_is_left_alone(tensor: torch.Tensor) -> None:
    assert not encodable(tensor)


def test_it_takes_a_quarter_of_float32() -> None:
    codes = encode(torch.rand(1 << 16))
    assert codes is not None
    assert codes.bytes <= 0.26 * 4 * (1 << 16)
