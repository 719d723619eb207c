"""Numbers that numpy lacks and the interpreter keeps as bits: bfloat16, two kinds of float8."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton.language as tl

_TORCH = {
    tl.bfloat16: torch.bfloat16,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
}
_BITS = {tl.bfloat16: torch.uint16, tl.float8e4nv: torch.uint8, tl.float8e5: torch.uint8}
_LARGEST = {tl.float8e4nv: 448.0, tl.float8e5: 57344.0}
_UNKNOWN = (tl.float8e4b15, tl.float8e4b8, tl.float8e5b16)


def kept_as_bits(dtype: tl.dtype) -> bool:
    """Whether numpy's arrays hold this dtype's bits. NotImplementedError for an unknown one."""
    if dtype in _UNKNOWN:
        msg = f"arithmetic of {dtype}"
        raise NotImplementedError(msg)
    return dtype in _TORCH


def values_of(data: np.ndarray[Any, Any], dtype: tl.dtype) -> np.ndarray[Any, Any]:
    """Return the numbers of an array of `dtype`: float32 for bits, others as they are."""
    if not kept_as_bits(dtype):
        return data
    bits = torch.from_numpy(np.array(data))
    return bits.view(_TORCH[dtype]).to(torch.float32).numpy()


def bits_of(values: np.ndarray[Any, Any], dtype: tl.dtype) -> np.ndarray[Any, Any]:
    """Round numbers to a dtype that is kept as bits, to the nearest even; float8 saturates."""
    numbers = torch.from_numpy(np.array(values, dtype=np.float32))
    if dtype in _LARGEST:
        numbers = numbers.clamp(-_LARGEST[dtype], _LARGEST[dtype])
    return numbers.to(_TORCH[dtype]).view(_BITS[dtype]).numpy()
