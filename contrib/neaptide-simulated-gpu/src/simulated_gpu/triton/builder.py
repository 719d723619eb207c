"""The interpreter's operations over the bytes of the device, with a GPU's rounding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import triton.language as tl
from triton._C.libtriton import interpreter as memory
from triton._C.libtriton import ir
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, _get_np_dtype

from simulated_gpu import _C
from simulated_gpu.triton.numbers import bits_of, kept_as_bits, values_of

Handle = Any
_HALF_BITS = 16


class Builder(InterpreterBuilder):  # type: ignore[misc]  # Triton has no types
    """Does what a kernel asks for at once, as Triton's own interpreter, for one launch at a time.

    Pointers are addresses of the device. Each load and store looks up where the bytes are in truth,
    and is noted. bfloat16 and float8 are rounded to the nearest even, also in arithmetic, and
    `tl.fma` rounds once; Triton's interpreter truncates, adds bits and rounds twice.
    """

    def __init__(self) -> None:
        super().__init__()
        self.options = replace(self.options, sanitize_overflow=False)
        self.traffic: Any = None
        self.grid_idx = (0, 0, 0)
        self.operations, self.half = 0.0, False
        self._undo: list[tuple[Any, Any, Any]] | None = None

    def begin(self, traffic: Any, grid: tuple[int, int, int], *, undoable: bool) -> None:
        """Start a launch. `undoable`: `undo` may be asked for."""
        self.traffic, self.operations, self.half = traffic, 0.0, False
        self._undo = [] if undoable else None
        self.set_grid_dim(*grid)

    def end(self) -> None:
        """End the launch."""
        self.traffic = self._undo = None

    def undo(self) -> None:
        """Give memory the bytes it had before the launch."""
        for addresses, before, mask in reversed(self._undo or ()):
            memory.store(addresses, before, mask)

    # -- memory -----------------------------------------------------------------------------------

    def create_masked_load(
        self, ptrs: Handle, mask: Handle, other: Handle, *_: Any, **__: Any
    ) -> Handle:
        dtype = ptrs.get_element_ty()
        kind = _get_np_dtype(dtype)
        addresses, wanted = self._resolved(ptrs, mask, kind.itemsize, reads=True)
        rest = np.zeros(addresses.shape, kind) if other is None else other.data
        return TensorHandle(memory.load(addresses, wanted, rest, kind), dtype)

    def create_masked_store(
        self, ptrs: Handle, value: Handle, mask: Handle, *_: Any, **__: Any
    ) -> Any:
        kind = _get_np_dtype(ptrs.get_element_ty())
        addresses, wanted = self._resolved(ptrs, mask, kind.itemsize, writes=True)
        self._remember(addresses, wanted, kind)
        return memory.store(addresses, np.asarray(value.data).astype(kind, copy=False), wanted)

    def create_atomic_cas(self, ptr: Handle, cmp: Handle, val: Handle, sem: Any, *_: Any) -> Handle:
        whole = TensorHandle(np.ones_like(ptr.data, dtype=bool), tl.int1)
        return super().create_atomic_cas(self._both(ptr, val, whole), cmp, val, sem, None)

    def create_atomic_rmw(
        self, op: Any, ptr: Handle, val: Handle, mask: Handle, sem: Any, *_: Any
    ) -> Handle:
        if kept_as_bits(val.dtype.scalar):
            msg = f"an atomic operation on {val.dtype.scalar}"
            raise NotImplementedError(msg)
        return super().create_atomic_rmw(op, self._both(ptr, val, mask), val, mask, sem, None)

    def _both(self, ptrs: Handle, value: Handle, mask: Handle) -> Handle:
        kind = value.data.dtype
        addresses, wanted = self._resolved(ptrs, mask, kind.itemsize, reads=True, writes=True)
        self._remember(addresses, wanted, kind)
        return TensorHandle(addresses, ptrs.dtype)

    def _resolved(
        self, ptrs: Handle, mask: Handle, size: int, *, reads: bool = False, writes: bool = False
    ) -> tuple[Any, Any]:
        wanted = np.broadcast_to(np.asarray(mask.data, dtype=bool), ptrs.data.shape)
        return self.traffic.resolve(ptrs.data, wanted, size, reads, writes), wanted

    def _remember(self, addresses: Any, mask: Any, kind: Any) -> None:
        if self._undo is not None:
            before = memory.load(addresses, mask, np.zeros(addresses.shape, kind), kind)
            self._undo.append((addresses, before, np.array(mask)))

    # -- numbers ----------------------------------------------------------------------------------

    def get_bf16(self, value: float) -> Handle:
        return TensorHandle(bits_of(np.array([value]), tl.bfloat16), tl.bfloat16)

    def cast_impl(self, src: Handle, dst_type: Any) -> Handle:
        wanted = dst_type.scalar
        values = values_of(src.data, src.dtype.scalar)
        if kept_as_bits(wanted):
            return TensorHandle(bits_of(values, wanted), wanted)
        return TensorHandle(values.astype(_get_np_dtype(wanted)), wanted)

    def create_fp_to_fp(self, src: Handle, dst_type: Any, rounding_mode: Any) -> Handle:
        if rounding_mode in (None, ir.ROUNDING_MODE.RTNE):
            return self.cast_impl(src, dst_type)
        if (src.dtype.scalar, dst_type.scalar) != (tl.float32, tl.bfloat16):
            msg = f"rounding of {src.dtype.scalar} to {dst_type.scalar} towards zero"
            raise NotImplementedError(msg)
        upper = np.asarray(src.data).view(np.uint32) >> _HALF_BITS
        return TensorHandle(upper.astype(np.uint16), tl.bfloat16)

    def binary_op(self, lhs: Handle, rhs: Handle, op: Any) -> Handle:
        dtype = lhs.dtype.scalar
        if not dtype.is_floating() or not kept_as_bits(dtype):
            return super().binary_op(lhs, rhs, op)
        return _stored(op(values_of(lhs.data, dtype), values_of(rhs.data, dtype)), dtype)

    def unary_op(self, arg: Handle, op: Any) -> Handle:
        dtype = arg.dtype.scalar
        return _stored(op(values_of(arg.data, dtype)), dtype)

    def create_minnumf(self, lhs: Handle, rhs: Handle) -> Handle:
        return self.binary_op(lhs, rhs, np.fmin)

    def create_maxnumf(self, lhs: Handle, rhs: Handle) -> Handle:
        return self.binary_op(lhs, rhs, np.fmax)

    def create_clampf(self, arg: Handle, low: Handle, high: Handle, propagate_nan: Any) -> Handle:
        dtype = arg.dtype.scalar
        x, least, most = (values_of(each.data, dtype) for each in (arg, low, high))
        limited = np.fmin(np.fmax(x, least), most)
        if propagate_nan == ir.PROPAGATE_NAN.ALL:
            limited = np.where(np.isnan(x), x, limited)
        return _stored(limited, dtype)

    def create_fma(self, x: Handle, y: Handle, z: Handle) -> Handle:
        dtype = z.dtype.scalar
        a, b, c = (values_of(each.data, dtype) for each in (x, y, z))
        if a.dtype == np.float16:
            fused = (a.astype(np.float64) * b + c).astype(np.float16)
        else:
            fused = _C.fused(*np.broadcast_arrays(a, b, c))
        return _stored(fused, dtype)

    def create_dot(self, a: Handle, b: Handle, d: Handle, *_: Any) -> Handle:
        first, second = values_of(a.data, a.dtype.scalar), values_of(b.data, b.dtype.scalar)
        self.operations += 2.0 * first.size * second.shape[-1]
        self.half |= a.dtype.scalar.primitive_bitwidth <= _HALF_BITS
        product = np.matmul(first, second, dtype=d.data.dtype)
        return TensorHandle(product + d.data, d.dtype.scalar)


def _stored(values: Any, dtype: Any) -> Handle:
    """Return numbers or truth values as a handle; numbers are rounded to `dtype`."""
    if values.dtype != bool and kept_as_bits(dtype):
        values = bits_of(values, dtype)
    return TensorHandle(values, dtype)
