"""Calls of ops of `neaptide_kernels`, which PyTorch's dispatcher sees as one operation each.

A provider in plain PyTorch, such as a reference, runs without values, and what it takes is counted
as it runs. Another one says how many bytes a call takes (`Provider.workspace_bytes`).
"""

from __future__ import annotations

from functools import cache, partial
from itertools import compress
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide_kernels.registry import KERNELS
from neaptide_toolkit.tensors import nested_tensors

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide_kernels.registry import Choice, Op, Query

_GPU: dict[str, Any] = {"device": "cuda", "capability": (8, 0)}
"""The GPU that a plan assumes: the oldest that has Triton."""


@attrs.frozen
class OwnOps:
    """The providers that the planned machine chooses.

    Args:
        is_on_device: returns whether a tensor is in the memory of a GPU.
    """

    _is_on_device: Callable[[torch.Tensor], bool]

    def plain(self, operation: Any, args: tuple[Any, ...]) -> Callable[[], Any] | None:
        """Return the call of a provider in plain PyTorch; None if another one runs, or none.

        A change of lists of which some tensors are on the device becomes two calls, as an optimizer
        makes them.
        """
        op = _op_of(operation)
        if op is None:
            return None
        arguments = op.spec.complete(args)
        places = self._places(arguments)
        if op.spec.mutates and len(set(places)) > 1:
            return partial(_apart, operation, arguments, places)
        choice, _ = self._chosen(op, arguments)
        if not choice.provider.plain:
            return None
        return partial(torch.no_grad()(choice.provider.run), *arguments, **choice.config)

    def workspace(self, operation: Any, args: tuple[Any, ...]) -> int:
        """Return the bytes that a provider takes beside its results; 0 for other operations."""
        op = _op_of(operation)
        if op is None:
            return 0
        choice, query = self._chosen(op, op.spec.complete(args))
        return choice.provider.workspace_bytes(query)

    def _places(self, arguments: list[Any]) -> list[bool]:
        """Return of each tensor of the first argument, if it is a list, if it is on the device."""
        first = arguments[0]
        listed = first if isinstance(first, list | tuple) else []
        return [self._is_on_device(one) for one in listed]

    def _chosen(self, op: Op, arguments: list[Any]) -> tuple[Choice, Query]:
        query = KERNELS.query(op.spec.name, arguments)
        if any(self._is_on_device(one) for one in nested_tensors(arguments) if one.ndim):
            query = attrs.evolve(query, **_GPU)
        return KERNELS.choose(query, timed=False), query


def _apart(operation: Any, arguments: list[Any], on_device: list[bool]) -> None:
    """Run an op on the places of each list that are on the device, then on the others."""
    for chosen in (on_device, [not one for one in on_device]):
        operation(
            *(
                [*compress(one, chosen)] if isinstance(one, list | tuple) else one
                for one in arguments
            )
        )


@cache
def _op_of(operation: Any) -> Op | None:
    """Return the op that torch calls by this name. An operation is none or one for ever."""
    return next((op for op in KERNELS.ops.values() if op.overload is operation), None)
