"""Tensors that end where an unreadable page begins, so that reading past them is a SIGSEGV."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import torch

_NONE, _READ_WRITE = 0, 3
_PRIVATE_ANONYMOUS = 0x22


def guarded(value: Any) -> Any:
    """Return copies of the tensors in `value` between two unreadable pages, aligned to the end.

    A view keeps its strides: what the first and the last element span is copied.
    """
    if isinstance(value, torch.Tensor):
        return _guarded(value)
    return [guarded(each) for each in value] if isinstance(value, list | tuple) else value


def _guarded(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.numel():
        return tensor.clone()
    span = 1 + sum(
        step * (size - 1) for step, size in zip(tensor.stride(), tensor.shape, strict=True)
    )
    size = span * tensor.element_size()
    pages = -(-size // mmap.PAGESIZE)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    base = libc.mmap(None, (pages + 2) * mmap.PAGESIZE, _READ_WRITE, _PRIVATE_ANONYMOUS, -1, 0)
    end = base + (pages + 1) * mmap.PAGESIZE
    for page in (base, end):
        if libc.mprotect(page, mmap.PAGESIZE, _NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
    # Unmapped by nobody: a process that tries kernels is short.
    memory = (ctypes.c_char * size).from_address(end - size)
    flat = torch.frombuffer(memory, dtype=tensor.dtype, count=span)
    copy = flat.as_strided(tensor.shape, tensor.stride())
    copy.copy_(tensor)
    return copy
