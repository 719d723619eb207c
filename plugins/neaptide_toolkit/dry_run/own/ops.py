"""Calls of ops of `neaptide_kernels`, which PyTorch's dispatcher sees as one operation each.

A provider in plain PyTorch, such as a reference, runs without values, and what it takes is counted
as it runs. Another one says how many bytes a call takes (`Provider.workspace_bytes`).
"""

from __future__ import annotations

from functools import cache, partial
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
        """Return the call of a provider in plain PyTorch; None if another one runs, or none."""
        op = _op_of(operation)
        if op is None:
            return None
        arguments = op.spec.complete(args)
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

    def _chosen(self, op: Op, arguments: list[Any]) -> tuple[Choice, Query]:
        query = KERNELS.query(op.spec.name, arguments)
        if any(self._is_on_device(one) for one in nested_tensors(arguments) if one.ndim):
            query = attrs.evolve(query, **_GPU)
        return KERNELS.choose(query, timed=False), query


@cache
def _op_of(operation: Any) -> Op | None:
    """Return the op that torch calls by this name. An operation is none or one for ever."""
    return next((op for op in KERNELS.ops.values() if op.overload is operation), None)
