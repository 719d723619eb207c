"""Triton kernels that the tests launch, and numbers for them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to("cuda", dtype)


@triton.jit
def add(x, y, out, n, alpha, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < n
    total = tl.load(x + places, mask=inside) + alpha * tl.load(y + places, mask=inside)
    tl.store(out + places, total, mask=inside)


@triton.jit
def _shifted(values):
    return values - tl.max(values, 0)


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    row = tl.program_id(0) * columns + places
    inside = places < columns
    values = tl.load(x + row, mask=inside, other=-float("inf")).to(tl.float32)
    powers = tl.exp(_shifted(values))
    tl.store(out + row, (powers / powers.sum(0)).to(out.dtype.element_ty), mask=inside)


@triton.jit
def double_in_place(x, n, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + places, tl.load(x + places, mask=places < n) * 2, mask=places < n)


@triton.jit
def double_by_table(table, BLOCK: tl.constexpr):
    """Each program doubles the tensor whose address and size its row of the table holds."""
    row = table + tl.program_id(0) * 2
    x, n = tl.load(row).to(tl.pointer_type(tl.float32)), tl.load(row + 1)
    places = tl.arange(0, BLOCK)
    tl.store(x + places, tl.load(x + places, mask=places < n) * 2, mask=places < n)


@triton.jit
def product(a, b, out, SIZE: tl.constexpr):
    rows, columns = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    places = rows * SIZE + columns
    tl.store(out + places, tl.dot(tl.load(a + places), tl.load(b + places)))


@triton.jit
def arithmetic(x, y, out, BLOCK: tl.constexpr):
    """Add, multiply, take the lesser and convert, in the dtype of `x`."""
    places = tl.arange(0, BLOCK)
    a, b = tl.load(x + places), tl.load(y + places)
    kind = out.dtype.element_ty
    tl.store(out + places, (a + b).to(kind))
    tl.store(out + BLOCK + places, (a * b).to(kind))
    tl.store(out + 2 * BLOCK + places, tl.minimum(a, b).to(kind))
    tl.store(out + 3 * BLOCK + places, (places * 257).to(kind))


@triton.jit
def fused(x, y, z, out, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(out + places, tl.fma(tl.load(x + places), tl.load(y + places), tl.load(z + places)))


@triton.jit
def histogram(x, counts, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(counts + tl.load(x + places), 1)


@triton.jit
def by_assembly(x, out, BLOCK: tl.constexpr):
    """Store zeros, then twice `x`: the second store is after what the interpreter cannot run."""
    places = tl.arange(0, BLOCK)
    values = tl.load(x + places)
    tl.store(out + places, values * 0)
    twice = tl.inline_asm_elementwise(
        "add.f32 $0, $1, $1;", "=f,f", [values], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(out + places, twice)


@triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 256})], key=["n"])
@triton.heuristics({"EVEN": lambda given: given["n"] % given["BLOCK"] == 0})
@triton.jit
def tuned_copy(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out + places, tl.load(x + places))
    else:
        tl.store(out + places, tl.load(x + places, mask=places < n), mask=places < n)


@triton.jit
def convert(x, out, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(out + places, tl.load(x + places).to(out.dtype.element_ty))


@triton.jit
def _row(pointer, columns):
    return pointer + tl.program_id(0) * columns


@triton.jit
def _keep(values, at, to):
    tl.store(to + at, values)


@triton.jit
def by_helpers(x, out, sums, columns, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    target = _row(out, columns)
    values = tl.load(_row(x, columns) + places)
    total = sums
    total += tl.program_id(0)
    _keep(values, places, to=target)
    tl.store(total, tl.sum(values))
