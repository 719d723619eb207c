"""4-bit weights of bitsandbytes, which has no kernels for this device, have the CPU's bits."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest
import torch

pytest.importorskip("bitsandbytes")

from bitsandbytes import functional as bnb
from bitsandbytes.backends import utils
from bitsandbytes.backends.default import ops

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def empty_caches() -> Iterator[None]:
    """Leave nothing on the device: bitsandbytes keeps its tables."""
    yield
    ops._get_4bit_quantize_bounds.cache_clear()
    utils._code_4bit_cache.clear()
    bnb.name2qmap.clear()


def held(device: str, dtype: torch.dtype, kind: str, *, nested: bool) -> tuple[Any, Any]:
    weight = torch.randn(96, 64, generator=torch.Generator().manual_seed(3)).to(dtype)
    return bnb.quantize_4bit(  # type: ignore[no-any-return]
        weight.to(device), blocksize=64, compress_statistics=nested, quant_type=kind
    )


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_codes_scales_and_decoded_weights_are_the_cpus(dtype: torch.dtype, kind: str) -> None:
    (codes, state), (codes_cpu, state_cpu) = (
        held(device, dtype, kind, nested=False) for device in ("cuda", "cpu")
    )
    assert codes.is_cuda
    assert torch.equal(codes.cpu(), codes_cpu)
    assert torch.equal(state.absmax.cpu(), state_cpu.absmax)
    decoded = bnb.dequantize_4bit(codes, state)
    assert decoded.dtype == dtype
    assert torch.equal(decoded.cpu(), bnb.dequantize_4bit(codes_cpu, state_cpu))


def test_scales_that_are_quantized_once_more_are_decoded_as_on_the_cpu() -> None:
    codes, state = held("cpu", torch.float32, "nf4", nested=True)
    expected = bnb.dequantize_4bit(codes, state)
    state.to("cuda")
    assert torch.equal(bnb.dequantize_4bit(codes.cuda(), state).cpu(), expected)


def test_no_function_is_compiled() -> None:
    own = [one for _, one in inspect.getmembers(ops, inspect.isfunction)]
    own = [one for one in own if one.__module__ == ops.__name__]
    assert own
    assert all(inspect.unwrap(one) is one for one in own)
