"""The facts of a call, by which a provider decides whether it supports the call.

The facts describe everything about a call except the values in the tensors.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide.text import one_line
from neaptide_kernels.accelerator import compute_capability

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ALIGNMENT = 16


@attrs.frozen
class TensorFacts:
    """Facts of one tensor argument, or of a list of tensors together."""

    dtype: torch.dtype | None
    """None for an empty list, and for a list of tensors with different dtypes."""
    shape: tuple[int, ...]
    """The tensor's shape. For a list of tensors: `(elements,)`, the total number of elements."""
    contiguous: bool
    aligned: bool
    """True if the tensor's address is a multiple of 16 bytes."""
    requires_grad: bool = False
    count: int | None = None
    """Number of tensors in a list; None for a tensor."""

    __repr__ = one_line

    @property
    def elements(self) -> int:
        """The number of elements."""
        return torch.Size(self.shape).numel()


@attrs.frozen
class Query:
    """The facts of one call. If two queries are equal, a provider must treat both calls alike."""

    op: str
    device: str
    """A kind of device, such as `"cpu"` or `"cuda"`; `"mixed"` if tensors are on several."""
    capability: tuple[int, int] | None
    """CUDA's compute capability, such as `(9, 0)`."""
    tensors: tuple[tuple[str, TensorFacts | None], ...]
    """The facts of each tensor argument, by name; None for an optional tensor that is not given."""
    options: tuple[tuple[str, Any], ...]
    """Names and values of the arguments that are not tensors."""
    deterministic: bool
    """True if `torch.use_deterministic_algorithms` is on."""

    __repr__ = one_line

    def __getitem__(self, name: str) -> Any:
        """Return the facts of a tensor argument, or the value of another argument."""
        for known, value in (*self.tensors, *self.options):
            if known == name:
                return value
        raise KeyError(name)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Short names of the dtypes of all tensor arguments, in the order of the arguments."""
        return tuple(
            "-"
            if facts is None
            else "mixed"
            if facts.dtype is None
            else str(facts.dtype).removeprefix("torch.")
            for _, facts in self.tensors
        )

    @property
    def bucket(self) -> int:
        """The number of elements of the largest tensor, rounded up to a power of two."""
        largest = max((facts.elements for _, facts in self.tensors if facts is not None), default=0)
        return 1 << max(0, largest - 1).bit_length() if largest else 0


def per_element(name: str, count: int) -> Callable[[Query], int]:
    """Return a function for `OpSpec.operations`: some operations for each element of an argument.

    Args:
        name: a tensor argument, or a list of tensors.
        count: operations for each element; a function such as `exp` counts as one.
    """
    return lambda query: count * query[name].elements


def query_of(op: str, names: Sequence[str], arguments: Sequence[Any]) -> Query:
    """Return the query of a call; `arguments` has one entry for each of `names`, in this order.

    Raises ValueError if a tensor is not dense.
    """
    tensors: list[tuple[str, TensorFacts | None]] = []
    options: list[tuple[str, Any]] = []
    devices: set[torch.device] = set()
    for name, value in zip(names, arguments, strict=True):
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided:
                msg = f"{op} takes dense tensors ({name} is {value.layout}); use its to_dense()"
                raise ValueError(msg)
            tensors.append((name, _facts(value)))
            devices.add(value.device)
        elif _is_list_of_tensors(value):
            tensors.append((name, _facts_together(value)))
            devices.update(tensor.device for tensor in value)
        else:
            options.append((name, tuple(value) if isinstance(value, list) else value))
    kinds = {device.type for device in devices}
    device = kinds.pop() if len(devices) == 1 else "mixed" if devices else "cpu"
    capability = None if device in {"cpu", "mixed"} else _capability_of(next(iter(devices)))
    deterministic = torch.are_deterministic_algorithms_enabled()
    return Query(op, device, capability, tuple(tensors), tuple(options), deterministic)


def query_on(query: Query, device: torch.device) -> Query:
    """Return a query of the same call on another device, which must exist."""
    capability = None if device.type == "cpu" else _capability_of(device)
    return attrs.evolve(query, device=device.type, capability=capability)


_capability_of = cache(compute_capability)


def _is_list_of_tensors(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(element, torch.Tensor) for element in value
    )


def _facts(tensor: torch.Tensor) -> TensorFacts:
    return TensorFacts(
        tensor.dtype,
        tuple(tensor.shape),
        tensor.is_contiguous(),
        tensor.data_ptr() % _ALIGNMENT == 0,
        tensor.requires_grad,
    )


def _facts_together(tensors: Sequence[torch.Tensor]) -> TensorFacts:
    dtypes = {tensor.dtype for tensor in tensors}
    return TensorFacts(
        dtypes.pop() if len(dtypes) == 1 else None,
        (sum(tensor.numel() for tensor in tensors),),
        all(tensor.is_contiguous() for tensor in tensors),
        all(tensor.data_ptr() % _ALIGNMENT == 0 for tensor in tensors),
        any(tensor.requires_grad for tensor in tensors),
        len(tensors),
    )
