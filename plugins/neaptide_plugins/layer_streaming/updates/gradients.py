"""Sums the gradients of a block, and stores or applies the sums as soon as they are complete."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Protocol

import torch

from neaptide.errors import ModelError

from ..outside import check_whole, used_outside
from .accumulators import Accumulators
from .casts import Casts
from .host_gradients import HostGradients
from .permission import Permission

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from contextlib import AbstractContextManager

    from torch import nn
    from torch.autograd.graph import Node

    from neaptide_toolkit.offload import Lane

    from ..weights.block import Block

    Gradient = torch.Tensor | None


class Apply(Protocol):
    """Applies complete gradients inside the backward."""

    def prefetch(self, block: Block) -> None:
        """Start to copy the tensors that a block's update needs to the device."""

    def using(self, block: Block) -> AbstractContextManager[None]:
        """Hold a block's weights on the device outside of its backward."""

    def __call__(self, block: Block, gradients: list[Gradient]) -> None:
        """Apply a block's gradients, which are on the device; None stands for no gradient."""


class Gradients:
    """Sums the gradients of a block over all uses of the block in one backward.

    The complete sums are stored or applied.

    Args:
        blocks: all blocks.
        device: the device of the backward.
        lane: the lane (queue) of copies to the host.
        allocate: `allocate(bytes)` returns a uint8 tensor on the host.
        apply: applies complete gradients; with None, complete gradients are added to the sums on
            the host.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        device: torch.device,
        lane: Lane,
        allocate: Callable[[int], torch.Tensor],
        apply: Apply | None = None,
    ) -> None:
        self._blocks = list(blocks)
        self._apply = apply
        self.permission = Permission(applies=apply is not None)
        self.host = HostGradients(device, lane, allocate)
        if apply is None:
            self.host.reserve(self._blocks)
        self._uses: dict[int, int] = {}
        self._sums: dict[nn.Parameter, torch.Tensor] = {}
        self._pending: dict[int, list[Gradient]] = {}
        self._arriving: Block | None = None
        self.casts = Casts(device)
        self.accumulators = Accumulators()

    def begin(self, *, waiting: bool = False) -> None:
        """Begin a step: forget what was counted since the last one, and take the user's gradients.

        Uses of a forward that is `waiting` for its backward still count. Raises ModelError if the
        user has set a gradient that an update in the backward would drop.
        """
        if not waiting:
            self._forget_uses()
        for block in self._blocks:
            views = self.host.views(block)
            for parameter in block.parameters:
                if parameter.grad is None or parameter.grad is views.get(parameter):
                    continue
                self.permission.check_assigned(block)
                gradient = parameter.grad
                self.host.create(block, parameter)
                parameter.grad.copy_(gradient)

    def expect(self, block: Block) -> None:
        """Count one use of the block in the autograd graph."""
        for owner in block.needs:
            self._uses[owner.index] = self._uses.get(owner.index, 0) + 1

    def prepare(self, block: Block) -> None:
        """Begin a backward of the block."""
        self._check_allowed(block)
        self.resume(block)
        self._check_outside(block.needs)  # On a GPU the backward would overwrite them.
        for owner in block.needs if self.is_reused(block) else ():
            check_whole(owner.parameters, owner)
        if self._apply is not None:
            for owner in block.needs:
                self._apply.prefetch(owner)

    def resume(self, block: Block) -> None:
        """Before a block's backward, drop gradients of parameters whose `.grad` was set to None."""
        for owner in block.needs:
            self.host.forget_taken(owner)

    def add_piece(self, block: Block) -> None:
        """Add the 16-bit gradients of one micro-batch to the float32 sums."""
        for owner in block.needs:
            for parameter in owner.parameters:
                gradient = parameter.grad
                if gradient is not None and gradient.dtype.itemsize < torch.float32.itemsize:
                    total = self._sums.get(parameter)
                    if total is None:
                        self._sums[parameter] = gradient.to(torch.float32)
                    else:
                        total.add_(gradient)
                    parameter.grad = None

    def forget_pieces(self, block: Block) -> None:
        """Drop the sums of a backward that will be repeated."""
        for owner in block.needs:
            for parameter in owner.parameters:
                self._sums.pop(parameter, None)

    def pass_over(self, block: Block) -> None:
        """End a use of the block whose backward does not compute gradients of parameters."""
        for owner in block.needs:
            self._uses[owner.index] = self._uses.get(owner.index, 0) - 1

    def is_reused(self, block: Block) -> bool:
        """Return whether another use of the block, or of its parameters, is still to come."""
        return any(self._uses.get(owner.index, 0) > 1 for owner in block.needs)

    def earlier(self, block: Block, context: Node | None) -> dict[nn.Parameter, torch.Tensor]:
        """Return the sums of the uses whose backward ran before, in the order of the parameters.

        They must be the first terms of the gradients of this use, which `take` takes as new sums.
        So they are added in the order of a resident model. `context` is the autocast context of
        this use, see `Casts`.
        """
        for owner in block.needs:
            ended = self.casts.others(context, owner.parameters)
            if ended:
                total = self._pending.get(owner.index, [None] * len(owner.parameters))
                pairs = zip(owner.parameters, total, strict=True)
                self._pending[owner.index] = [_sum(one, ended.get(each)) for each, one in pairs]
        return {
            parameter: total
            for owner in block.needs
            for parameter, total in zip(
                owner.parameters, self._pending.get(owner.index, ()), strict=False
            )
            if total is not None
        }

    def take(self, block: Block, included: Collection[nn.Parameter] = ()) -> None:
        """End a use of the block. Take the gradients of the parameters that the block uses.

        The gradients of the parameters `included` have earlier sums as their first terms.
        """
        for owner in block.needs:
            found = []
            for parameter in owner.parameters:
                found.append(self._sums.pop(parameter, parameter.grad))
                parameter.grad = None
            earlier = self._pending.pop(owner.index, None)
            if earlier is not None:
                pairs = zip(owner.parameters, earlier, strict=True)
                earlier = [None if one in included else total for one, total in pairs]
            if self._uses.get(owner.index, 0) <= 1:
                left = self.casts.left(owner.parameters)
                found = [_sum(left.get(p), g) for p, g in zip(owner.parameters, found, strict=True)]
            total = found if earlier is None else list(map(_sum, earlier, found))
            self._uses[owner.index] = self._uses.get(owner.index, 0) - 1
            if self._uses[owner.index] > 0:
                self._pending[owner.index] = total
            else:
                self._finished(owner, total)

    def have_arrived(self, block: Block) -> bool:
        """Return whether gradients of other uses of the block's parameters have arrived."""
        return any(owner.index in self._pending for owner in block.needs)

    def take_arrived(self, owner: Block, place: int) -> Gradient:
        """Take the sum that has arrived for a parameter: the first term of its next use.

        So the terms are added in the order of a resident model, which has one accumulator.
        """
        arrived = self._pending.get(owner.index, [None] * len(owner.parameters))
        found, arrived[place] = arrived[place], None
        if found is not None:
            check_whole([owner.parameters[place]], owner, own_hooks=1)
        return found

    @torch.no_grad()
    def arrived(self, block: Block, place: int) -> None:
        """Take the gradient of one parameter, with `mode = "graph"`.

        The gradients of a block are stored when a gradient of another block arrives. If the block
        was used several times and more gradients will arrive, the block's sum over all uses is
        stored later: a resident model, too, adds the sum of one backward to `.grad`.
        """
        parameter = block.parameters[place]
        gradient, parameter.grad = parameter.grad, None
        self._check_allowed(block)
        if self._arriving is not block:
            self._leave_arriving()
            self._arriving = block
        gathered = self._pending.setdefault(block.index, [None] * len(block.parameters))
        gathered[place] = _sum(gathered[place], None if gradient is None else gradient.detach())
        self.accumulators.note(parameter)

    def _leave_arriving(self) -> None:
        block, self._arriving = self._arriving, None
        if block is not None and not self._more_arrives(block):
            self._finished(block, self._pending.pop(block.index))

    def _more_arrives(self, block: Block) -> bool:
        # Of a block that is used once, what is missing never comes.
        return self._uses.get(block.index, 0) > 1 and self.accumulators.remain(block)

    def flush(self) -> None:
        """End a backward: store or apply the remaining sums, and set every `.grad`.

        A sum remains if one of the counted uses of its block had no backward.
        """
        self._leave_arriving()
        for index, pending in list(self._pending.items()):
            del self._pending[index]
            block = self._blocks[index]
            left = self.casts.left(block.parameters)
            total = [_sum(left.get(p), g) for p, g in zip(block.parameters, pending, strict=True)]
            with nullcontext() if self._apply is None else self._apply.using(block):
                self._finished(block, total)
        self._forget_uses()
        self._check_outside(self._blocks)
        self.host.show()

    def drop(self) -> None:
        """Drop all gradients, including the gradients of a failed backward."""
        self._pending.clear()
        self._forget_uses()
        self._sums.clear()
        self._arriving = None
        self.host.clear()

    def _check_allowed(self, block: Block) -> None:
        refused = self.permission.reason_against(block)
        if refused is not None:
            self._pending.clear()
            self._forget_uses()
            raise ModelError(refused)

    def _forget_uses(self) -> None:
        self._uses.clear()
        self.accumulators.clear()
        self.casts.clear()

    def _check_outside(self, blocks: Sequence[Block]) -> None:
        """Raise ModelError if a parameter has a gradient from outside its block's forward."""
        for block in blocks:
            views = self.host.views(block) if block.has_gradient else {}
            for parameter in block.parameters:
                if parameter.grad is not None and parameter.grad is not views.get(parameter):
                    raise ModelError(used_outside(parameter, block))

    def _finished(self, block: Block, gradients: list[Gradient]) -> None:
        if all(gradient is None for gradient in gradients):
            return
        for parameter, gradient in zip(block.parameters, gradients, strict=True):
            if gradient is not None and gradient.layout != torch.strided:
                msg = (
                    f"a parameter of shape {list(parameter.shape)} in block {block.name!r} has a "
                    f"sparse gradient, which cannot be streamed; build the embedding with "
                    f"sparse=False, or exclude the block"
                )
                raise ModelError(msg)
        if self._apply is not None:
            self._apply(block, gradients)
        else:
            self.host.add(block, gradients)


def _sum(one: Gradient, other: Gradient) -> Gradient:
    if one is None or other is None:
        return other if one is None else one
    return one + other
