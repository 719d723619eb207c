"""Adds the gradients of weights that autocast casts, in the order of a resident model.

Under one autocast context a weight is cast once for all its uses. Autograd adds the 16-bit
gradients of all uses, and casts only the sum to float32. The calls of a streamed block are
recomputed one by one, each with a cast of its own. So the 16-bit sum of the later calls must be the
first term of the sum of the next call.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch
from torch.autograd.graph import GradientEdge, Node, saved_tensors_hooks

from neaptide_toolkit.recompute import in_autocast

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from torch import nn

    from ..weights.block import Block

_Leaf = TypeVar("_Leaf", bound=torch.Tensor)
_CAST = "ToCopyBackward0"


def hidden() -> saved_tensors_hooks:
    """Return a context in which no outer hook, such as torch's checkpoint's, sees saved tensors."""
    return saved_tensors_hooks(lambda saved: saved, lambda saved: saved)


class Casts:
    """The 16-bit sums of one backward, by parameter; each belongs to one autocast context."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._mark = torch.zeros(1, 1, device=device, requires_grad=True)
        self._sums: dict[nn.Parameter, tuple[Node, torch.Tensor]] = {}
        self._uses: Counter[tuple[int, Node | None]] = Counter()

    def context(self) -> Node | None:
        """Return an object that is the same for all calls under one autocast context.

        None if there is none, or if it casts a weight at each use. In a context that is switched
        off, a block that switches autocast on casts a weight once, too.
        """
        if not (in_autocast() and torch.is_autocast_cache_enabled()):
            return None
        # A context keeps one copy of a tensor, whatever the dtype.
        with hidden(), torch.enable_grad(), torch.autocast(self._device.type, torch.bfloat16):
            product = torch.mm(self._mark, self._mark)
        assert product.grad_fn is not None, "gradients are enabled"
        return product.grad_fn.next_functions[0][0]

    def expect(self, context: Node | None, owners: Iterable[Block]) -> None:
        """Count one use of blocks' parameters under a context."""
        self._uses.update((owner.index, context) for owner in owners)

    def end(self, context: Node | None, owners: Iterable[Block]) -> None:
        """End one use: its backward has run."""
        self._uses.subtract((owner.index, context) for owner in owners)

    def used_again(self, context: Node | None, owners: Iterable[Block]) -> set[nn.Parameter]:
        """Return the parameters of which another use under the context is still to come."""
        again = (owner for owner in owners if self._uses[owner.index, context] > 1)
        return {parameter for owner in again for parameter in owner.parameters}

    def first_terms(
        self, context: Node, nodes: dict[nn.Parameter, Node]
    ) -> list[tuple[GradientEdge, torch.Tensor]]:
        """Return roots of a backward: the sums of earlier backwards, which become first terms."""
        roots = []
        for parameter, node in nodes.items():
            known, total = self._sums.get(parameter, (None, None))
            if known is context and total is not None:
                roots.append((GradientEdge(node, 0), total))
        return roots

    def added(
        self,
        context: Node,
        nodes: dict[nn.Parameter, Node],
        sums: dict[nn.Parameter, torch.Tensor],
    ) -> None:
        """After a backward, forget its first terms, and keep new 16-bit sums for the next call."""
        self.left(one for one in nodes if self._sums.get(one, (None,))[0] is context)
        for parameter, total in sums.items():
            self._sums[parameter] = (context, total)

    def left(self, parameters: Iterable[nn.Parameter]) -> dict[nn.Parameter, torch.Tensor]:
        """Take the sums of `parameters`, cast to the dtype of the parameter."""
        found: dict[nn.Parameter, torch.Tensor] = {}
        for parameter in parameters:
            _, total = self._sums.pop(parameter, (None, None))
            if total is not None:
                found[parameter] = total.to(parameter.dtype)
        return found

    def others(
        self, context: Node | None, parameters: Iterable[nn.Parameter]
    ) -> dict[nn.Parameter, torch.Tensor]:
        """Take the sums that belong to another context: all its uses are in them."""
        if not self._sums:
            return {}
        ended = [one for one in parameters if self._sums.get(one, (context,))[0] is not context]
        return self.left(ended)

    def clear(self) -> None:
        """Drop all sums, and forget the uses."""
        self._sums.clear()
        self._uses.clear()


def casts_of(outputs: Sequence[torch.Tensor], leaves: Collection[_Leaf]) -> dict[_Leaf, Node]:
    """Return, for each of the leaves that is cast on the way to `outputs`, the node of the cast."""
    wanted = {id(leaf): leaf for leaf in leaves}
    waiting = [output.grad_fn for output in outputs if wanted]
    seen: set[Node] = set()
    found: dict[_Leaf, Node] = {}
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        following = [edge[0] for edge in node.next_functions]
        if type(node).__name__ == _CAST and following[0] is not None:
            leaf = wanted.get(id(getattr(following[0], "variable", None)))
            if leaf is not None:
                found[leaf] = node
        waiting += following
    return found


def withheld(nodes: dict[nn.Parameter, Node]) -> dict[nn.Parameter, torch.Tensor]:
    """Return a dict that gets, in a backward, the gradient that arrives at each node.

    The parameter gets the gradients of its other reads only, such as those that are not cast.
    """
    found: dict[nn.Parameter, torch.Tensor] = {}

    def note(
        parameter: nn.Parameter, gradients: tuple[torch.Tensor | None, ...]
    ) -> tuple[None, ...]:
        if gradients[0] is not None:
            found[parameter] = gradients[0]
        return (None,) * len(gradients)

    for parameter, node in nodes.items():
        node.register_prehook(partial(note, parameter))
    return found
