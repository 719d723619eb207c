"""Counts the accumulators of parameters, the nodes that end the graph, with `mode = "graph"`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import attrs
from torch.autograd.graph import get_gradient_edge

if TYPE_CHECKING:
    from torch import nn
    from torch.autograd.graph import Node

    from ..weights.block import Block


@attrs.define(eq=False)
class Accumulators:
    """The accumulators in the graph, and how many of them have run in the present backward.

    On a GPU a parameter that was on the host between two uses has two accumulators.
    """

    _expected: dict[nn.Parameter, set[Node]] = attrs.field(factory=dict)
    _ran: Counter[nn.Parameter] = attrs.field(factory=Counter)

    def expect(self, block: Block) -> dict[Node, tuple[Block, int]]:
        """Count one use of a block; return the accumulators of its parameters.

        Each comes with the parameter's owner and index there.
        """
        found = {}
        for owner in block.needs:
            for place, parameter in enumerate(owner.parameters):
                if parameter.requires_grad:
                    node = get_gradient_edge(parameter).node
                    self._expected.setdefault(parameter, set()).add(node)
                    found[node] = owner, place
        return found

    def note(self, parameter: nn.Parameter) -> None:
        """Note that one accumulator of a parameter has run."""
        self._ran[parameter] += 1

    def remain(self, block: Block) -> bool:
        """Return whether an accumulator of a block's parameters has not run."""
        expected = self._expected
        return any(self._ran[one] < len(expected.get(one, ())) for one in block.parameters)

    def clear(self) -> None:
        """Forget all."""
        self._expected.clear()
        self._ran.clear()
