"""A simulated GPU that rounds otherwise than the CPU, as a real one does.

The simulated GPU computes with the CPU's kernels. So a sum or an update that is computed on the
wrong side has the right bits there. Within `device_rounds_otherwise`, operations whose last bits
differ on a GPU are computed on the device in float64, or in another order.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

from neaptide_toolkit.dry_run.as_cuda.overriding import overridden

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ATEN = torch.ops.aten
_IN_PLACE = (
    _ATEN.addcdiv_.default,
    _ATEN.addcmul_.default,
    _ATEN.lerp_.Scalar,
    _ATEN._fused_adamw_.default,
    _ATEN._fused_adam_.default,
)


@contextmanager
def device_rounds_otherwise() -> Iterator[None]:
    """Within this context the device `cuda` rounds otherwise than the CPU."""
    operations: dict[Any, Callable[..., Any]] = {one: _in_double(one) for one in _IN_PLACE}
    operations[_ATEN._foreach_norm.Scalar] = _norms
    operations[_ATEN.linalg_vector_norm.default] = _norm_of_the_reversed
    with overridden(operations, "CUDA"):
        yield


def _wide(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    there = value.detach().cpu()
    return there.double() if there.dtype == torch.float32 else there


def _in_double(operation: Any) -> Callable[..., Any]:
    def run(first: Any, *args: Any, **kwargs: Any) -> Any:
        given = first, *args
        wide = tree_map(_wide, given)
        operation(*wide, **tree_map(_wide, kwargs))
        for place, value in zip(_tensors(given), _tensors(wide), strict=True):
            place.copy_(value)
        return first if isinstance(first, torch.Tensor) else None

    return run


def _tensors(values: Any) -> list[torch.Tensor]:
    """Return what an operation in place may write: the first tensor, or all of several lists."""
    if isinstance(values[0], torch.Tensor):
        return [values[0]]
    return [one for each in values if isinstance(each, list | tuple) for one in each]


def _norms(tensors: list[torch.Tensor], order: Any = 2, dtype: Any = None) -> list[torch.Tensor]:
    found = []
    for one in tensors:
        kind = dtype or one.dtype
        norm = torch.linalg.vector_norm(one.detach().cpu().double(), order)
        found.append(norm.to(one.device, kind))
    return found


def _norm_of_the_reversed(one: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    there = one.detach().cpu()
    if not args[1:] and not kwargs.get("dim"):
        there = there.reshape(-1).flip(0)
    norm: torch.Tensor = torch.linalg.vector_norm(there, *args, **kwargs)
    return norm.to(one.device)
