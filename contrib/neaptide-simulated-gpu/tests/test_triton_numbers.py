"""What Triton kernels compute on the device: dtypes and rounding as on a GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is installed on Linux and Windows only")

import triton_kernels as kernels
from triton_kernels import numbers


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_softmax_agrees_with_torch(dtype: torch.dtype) -> None:
    x = numbers(5, 100, dtype=dtype)
    out = torch.empty_like(x)
    kernels.softmax[(5,)](x, out, 100, BLOCK=128)
    torch.testing.assert_close(out, x.float().softmax(1).to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_arithmetic_rounds_as_torch_does(dtype: torch.dtype) -> None:
    x, y = numbers(256, dtype=dtype), numbers(256, dtype=dtype).flip(0)
    x[:2] = torch.tensor([float("nan"), float("inf")])
    out = torch.empty(4, 256, device="cuda", dtype=dtype)
    kernels.arithmetic[(1,)](x, y, out, BLOCK=256)
    lesser = torch.fmin(x.float(), y.float()).to(dtype)
    counted = (torch.arange(256, device="cuda") * 257).to(dtype)
    expected = torch.stack([x + y, x * y, lesser, counted])
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_is_the_nearest_one_and_saturates(dtype: torch.dtype) -> None:
    x = numbers(256).mul(100)
    x[:2] = torch.tensor([1e6, -1e6])
    out = torch.empty(256, device="cuda", dtype=dtype)
    kernels.convert[(1,)](x, out, BLOCK=256)
    most = torch.finfo(dtype).max
    assert torch.equal(out.cpu().float(), x.cpu().clamp(-most, most).to(dtype).float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_fused_product_is_rounded_once(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).eps
    x = torch.full((16,), 1 + tiny, device="cuda", dtype=dtype)
    z = torch.full_like(x, -1 - 2 * tiny)
    out = torch.empty_like(x)
    kernels.fused[(1,)](x, x, z, out, BLOCK=16)
    assert out.cpu().tolist() == [tiny**2] * 16
