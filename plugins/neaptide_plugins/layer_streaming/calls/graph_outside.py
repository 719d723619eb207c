"""Finds tensors that a block uses although they are not arguments of its call.

Such a tensor belongs to the autograd graph outside of the block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import nn


class GraphOutside:
    """The autograd graph as it is before a block is called with `inputs`."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        self._edges = {(tensor.grad_fn, tensor.output_nr) for tensor in inputs if tensor.grad_fn}
        self._leaves = {id(tensor) for tensor in inputs}
        with torch.enable_grad():
            probe = torch.zeros((), requires_grad=True).view(1)
        self._start: int = _number(probe.grad_fn)

    def check(
        self,
        block: str,
        outputs: Iterable[torch.Tensor],
        known: Iterable[nn.Parameter],
        streams: Callable[[torch.Tensor], bool],
    ) -> None:
        """Raise ModelError if `outputs` depend on a tensor of this graph other than the inputs.

        A parameter that is outside of all blocks is allowed. A parameter of another block, for
        which `streams(parameter)` is true, is not allowed.
        """
        own = self._leaves | {id(parameter) for parameter in known}
        waiting: list[tuple[Any, int]] = [
            (tensor.grad_fn, tensor.output_nr) for tensor in outputs if tensor.grad_fn
        ]
        seen = set(self._edges)
        while waiting:
            edge = waiting.pop()
            node = edge[0]
            if node is None or edge in seen:
                continue
            seen.add(edge)
            leaf = getattr(node, "variable", None)
            if leaf is None and _number(node) < self._start:
                raise ModelError(_message(block, f"the result of {node.name()}"))
            if leaf is not None and id(leaf) not in own and streams(leaf):
                raise ModelError(_message(block, "a parameter of another block"))
            waiting += node.next_functions


def _number(node: Any) -> int:
    return int(node._sequence_nr())


def _message(block: str, what: str) -> str:
    return (
        f"block {block!r} captures {what} from outside, which recomputing cannot reach; "
        f"pass it to the block as an argument, or exclude the block"
    )
