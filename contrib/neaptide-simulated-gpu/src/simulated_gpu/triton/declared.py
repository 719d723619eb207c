"""What a program says of its Triton kernels: what they cost, and a reference in torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from simulated_gpu import _C

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    Count = Callable[[Mapping[str, Any]], float]

PREFIX = "triton::"
BY_REFERENCE = " (reference)"
_KEY = "_simulated_gpu_declared"


@dataclass(frozen=True)
class Declared:
    """What is known of one kernel. A count is a function of its arguments by name."""

    reference: Callable[..., None] | None = None
    writes: Collection[str] | None = None
    bytes_moved: Count | None = None
    operations: Count | None = None


def kernel_of(kernel: Any) -> Any:
    """Return the jitted function below autotuners and heuristics."""
    while not hasattr(kernel, "device_caches"):
        if not hasattr(kernel, "fn"):
            msg = f"a function of triton.jit is needed, not {kernel!r}"
            raise TypeError(msg)
        kernel = kernel.fn
    return kernel


def declared(kernel: Any) -> Declared:
    """Return what is declared of a jitted function."""
    return vars(kernel).get(_KEY, Declared())


def register_reference(
    kernel: Any, function: Callable[..., None], writes: Collection[str] | None = None
) -> None:
    """Have `function` do the work of a kernel's launch where the interpreter cannot run the kernel.

    `function` takes the kernel's arguments by name, constants included, and writes to its tensors
    in place. Tensors are the CPU's, over the bytes of the device's. `writes` names the arguments
    that the kernel writes; without it all tensors count as written.
    """
    _note(kernel, reference=function, writes=writes)


def declare_cost(
    kernel: Any, *, bytes_moved: Count | None = None, operations: Count | None = None
) -> None:
    """Say how many bytes a launch moves and how many operations it computes.

    Each is a function of the arguments by name. Without `bytes_moved` each byte counts once that
    the launch has touched; without `operations` those of `tl.dot` count.
    """
    _note(kernel, bytes_moved=bytes_moved, operations=operations)


def _note(kernel: Any, **given: Any) -> None:
    kernel = kernel_of(kernel)
    setattr(kernel, _KEY, replace(declared(kernel), **given))


def launches() -> dict[str, dict[str, int]]:
    """Return the launches since `reset` by kernel: `interpreted`, and done `by_reference`."""
    found: dict[str, dict[str, int]] = {"interpreted": {}, "by_reference": {}}
    for name, (count, _) in _C.statistics()["operations"].items():
        if name.startswith(PREFIX):
            kernel = name.removeprefix(PREFIX)
            kind = "by_reference" if kernel.endswith(BY_REFERENCE) else "interpreted"
            found[kind][kernel.removesuffix(BY_REFERENCE)] = count
    return found
