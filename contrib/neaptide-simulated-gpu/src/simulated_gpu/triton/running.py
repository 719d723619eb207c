"""One launch of a Triton kernel on the simulated device."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from triton.runtime.jit import JITFunction

from simulated_gpu import _C
from simulated_gpu.triton.declared import BY_REFERENCE, PREFIX, declared
from simulated_gpu.triton.language import as_argument, interpreting, python_function
from simulated_gpu.triton.stores import stored

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Grid = tuple[int, int, int]
_compile = JITFunction.run
_AXES = 3


class CannotInterpretError(RuntimeError):
    """Triton's interpreter cannot run a kernel that has no reference."""


def run(self: Any, *args: Any, grid: Any, warmup: bool, **given: Any) -> Any:
    """Launch a kernel on the current stream, in place of `JITFunction.run`.

    Returns None, or for `warmup` the kernel as Triton's compiler makes it for the device.
    """
    if warmup:
        return _compile(self, *args, grid=grid, warmup=True, **given)
    for hook in self.pre_run_hooks:
        hook(*args, **given)
    *_, backend, binder = self.device_caches[torch.cuda.current_device()]
    bound, _, _ = binder(*args, **given)
    options = vars(backend.parse_options(given))
    for name in given:
        if name not in options and name not in bound:
            msg = f"Keyword argument {name} was specified but unrecognised"
            raise KeyError(msg)
    _refuse_pageable(bound)
    programs = _grid(grid, bound)
    if programs[0] * programs[1] * programs[2]:
        _launch(self, bound, programs)
    return None


def _grid(grid: Any, bound: Mapping[str, Any]) -> Grid:
    sizes = grid(bound) if callable(grid) else grid
    x, y, z = (*map(int, sizes), *(1,) * (_AXES - len(sizes)))
    return x, y, z


def _refuse_pageable(bound: Mapping[str, Any]) -> None:
    for place, value in enumerate(bound.values()):
        if isinstance(value, torch.Tensor) and value.is_cpu and not value.is_pinned():
            msg = f"Pointer argument (at {place}) cannot be accessed from Triton (cpu tensor?)"
            raise ValueError(msg)


def _launch(kernel: Any, bound: dict[str, Any], grid: Grid) -> None:
    says = declared(kernel)
    name, half, operations = PREFIX + kernel.__name__, False, 0.0
    if _C.is_fake():
        traffic = _of_arguments(bound, stored(kernel))
    else:
        traffic = _C.Traffic()
        try:
            operations, half = _interpret(kernel, bound, grid, traffic)
        except (_C.IllegalAccess, AssertionError):
            raise
        except Exception as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())
            if says.reference is None:
                msg = (
                    f"Triton's interpreter cannot run kernel {kernel.__name__!r} ({why}); "
                    "simulated_gpu.triton.register_reference gives it a reference"
                )
                raise CannotInterpretError(msg) from error
            says.reference(**{key: _on_the_cpu(value) for key, value in bound.items()})
            traffic, name = _of_arguments(bound, says.writes), name + BY_REFERENCE
    moved = traffic.bytes() if says.bytes_moved is None else says.bytes_moved(bound)
    if says.operations is not None:
        operations = says.operations(bound)
    _C.enter_program(name, traffic, operations, half, moved)


def _interpret(
    kernel: Any, bound: Mapping[str, Any], grid: Grid, traffic: Any
) -> tuple[float, bool]:
    """Run every program; return the operations of `tl.dot`, and whether they are of 16 bits."""
    constants = {each.name for each in kernel.params if each.is_constexpr}
    with interpreting() as builder, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy's, of NaN and overflow
        builder.begin(traffic, grid, undoable=declared(kernel).reference is not None)
        try:
            function = python_function(kernel)
            given = {
                name: value if name in constants else as_argument(value)
                for name, value in bound.items()
            }
            for place in _programs(grid):
                builder.set_grid_idx(*place)
                function(**given)
        except _C.IllegalAccess as error:
            msg = f"{error}, in program {builder.grid_idx} of Triton kernel {kernel.__name__!r}"
            raise _C.IllegalAccess(msg) from None
        except BaseException:
            builder.undo()
            raise
        finally:
            builder.end()
        return builder.operations, builder.half


def _programs(grid: Grid) -> Iterator[Grid]:
    for x in range(grid[0]):
        for y in range(grid[1]):
            for z in range(grid[2]):
                yield x, y, z


def _tensor(value: Any) -> torch.Tensor | None:
    """Return the tensor of an argument that is one, also where Triton wraps it."""
    value = getattr(value, "base", value) if not isinstance(value, torch.Tensor) else value
    return value if isinstance(value, torch.Tensor) else None


def _on_the_cpu(value: Any) -> Any:
    tensor = _tensor(value)
    return value if tensor is None or tensor.is_cpu else _C.bytes_of(tensor)


def _of_arguments(bound: Mapping[str, Any], writes: Any) -> Any:
    traffic = _C.Traffic()
    for name, value in bound.items():
        tensor = _tensor(value)
        if tensor is not None:
            traffic.add(tensor, writes is None or name in writes)
    return traffic
