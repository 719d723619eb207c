"""Takes blocks' gradients off the device as soon as a backward has finished with them."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import cycle
from typing import TYPE_CHECKING, Protocol

import attrs
import torch

from .lanes import DONE, Lane, Ticket, computed
from .layout import Layout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from torch import nn

    from .block import Block

    Gradient = torch.Tensor | None


class Apply(Protocol):
    """Uses up gradients as soon as they are finished."""

    def prefetch(self, block: Block) -> None:
        """Start to bring what using a block's gradients will need."""

    def using(self, block: Block) -> AbstractContextManager[None]:
        """Have a block on the device meanwhile, where no backward of its has it there."""

    def __call__(self, block: Block, gradients: list[Gradient]) -> None:
        """Use a block's gradients, on the device; None for a parameter without one."""


@attrs.define(eq=False)
class _Staging:
    """A buffer on the device, from which one block's gradients leave in a single copy."""

    flat: torch.Tensor
    free: Ticket = DONE


@attrs.define(eq=False)
class Home:
    """Where a block's gradients lie on the host."""

    parameters: list[nn.Parameter]
    """The trainable ones, and those that were."""
    layout: Layout
    flat: torch.Tensor
    views: list[torch.Tensor]
    present: set[int] = attrs.field(factory=set)
    """Which parameters have a gradient."""
    shown: bool = False
    """Whether they have had it as `.grad` since the last backward."""
    written: Ticket = DONE


class Gradients:
    """Sums a block's gradients over its uses in one backward, then stores or applies them.

    Args:
        device: where they are computed.
        lane: what copies to the host run on.
        allocate: `allocate(bytes)` returns a uint8 tensor on the host.
        apply: uses finished gradients; left out, they are added to what the host has.
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
        self._device = device
        self._lane = lane
        self._allocate = allocate
        self._apply = apply
        self._homes: dict[int, Home] = {}
        self._uses: dict[int, int] = {}
        self._sums: dict[nn.Parameter, torch.Tensor] = {}
        self._pending: dict[int, list[Gradient]] = {}
        self._arriving: tuple[Block, list[Gradient]] | None = None
        self._staging: list[_Staging] = []
        if apply is None:
            homes = [self.home(block) for block in self._blocks]
            size = max((home.layout.bytes for home in homes), default=0)
            self._staging = [self._new_staging(size) for _ in range(2)]
        self._next = cycle(self._staging)

    def buffers(self) -> list[torch.Tensor]:
        """Return the buffers on the device."""
        return [staging.flat for staging in self._staging]

    def stored(self) -> list[torch.Tensor]:
        """Return the gradients' places on the host."""
        return [home.flat for home in self._homes.values()]

    def expect(self, block: Block) -> None:
        """Count a use of the block that is in the graph."""
        for owner in block.needs:
            self._uses[owner.index] = self._uses.get(owner.index, 0) + 1

    def prepare(self, block: Block) -> None:
        """Begin a backward of the block."""
        self.resume(block)
        self._check_outside(block.needs)  # on a GPU, what is on the host would be lost in it
        if self._apply is not None:
            for owner in block.needs:
                self._apply.prefetch(owner)

    def resume(self, block: Block) -> None:
        """Before a backward of the block, drop gradients that were taken from their parameters."""
        for owner in block.needs:
            home = self._homes.get(owner.index)
            if home is not None and home.shown:
                gone = {p for p in home.present if home.parameters[p].grad is None}
                home.present, home.shown = home.present - gone, False

    def add_piece(self, block: Block) -> None:
        """Put `.grad` of one micro-batch away: low precision is summed in float32."""
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
        """Drop the sums of a backward that is begun anew."""
        for owner in block.needs:
            for parameter in owner.parameters:
                self._sums.pop(parameter, None)

    def pass_over(self, block: Block) -> None:
        """Count off a use whose backward was not asked for gradients of parameters."""
        for owner in block.needs:
            self._uses[owner.index] = self._uses.get(owner.index, 0) - 1

    def take(self, block: Block) -> None:
        """Take the gradients of the block's own and tied parameters: this use is over."""
        for owner in block.needs:
            found = []
            for parameter in owner.parameters:
                found.append(self._sums.pop(parameter, parameter.grad))
                parameter.grad = None
            earlier = self._pending.pop(owner.index, None)
            total = found if earlier is None else list(map(_sum, earlier, found))
            self._uses[owner.index] = self._uses.get(owner.index, 0) - 1
            if self._uses[owner.index] > 0:
                self._pending[owner.index] = total
            else:
                self._finished(owner, total)

    @torch.no_grad()
    def arrived(self, block: Block, place: int) -> None:
        """Take the gradient of one parameter, where the graph is kept.

        It is gathered with the block's others until one of another block arrives. On a GPU each use
        has its own, as a parameter that was on the host in between has two accumulators.
        """
        parameter = block.parameters[place]
        gradient, parameter.grad = parameter.grad, None
        if self._arriving is not None and self._arriving[0] is not block:
            self._finish_arriving()
        if self._arriving is None:
            self._arriving = block, [None] * len(block.parameters)
        gathered = self._arriving[1]
        gathered[place] = _sum(gathered[place], None if gradient is None else gradient.detach())

    def _finish_arriving(self) -> None:
        if self._arriving is not None:
            (block, gradients), self._arriving = self._arriving, None
            self._finished(block, gradients)

    def flush(self) -> None:
        """End a backward: finish what waits for uses that did not come; show all as `.grad`."""
        self._finish_arriving()
        for index, total in list(self._pending.items()):
            del self._pending[index]
            block = self._blocks[index]
            with nullcontext() if self._apply is None else self._apply.using(block):
                self._finished(block, total)
        self._uses.clear()
        self._check_outside(self._blocks)
        for home in self._homes.values():
            home.written.finish()
            home.shown = True
            for place, parameter in enumerate(home.parameters):
                parameter.grad = home.views[place] if place in home.present else None

    def drop(self) -> None:
        """Forget everything, a backward that was broken off included."""
        self._pending.clear()
        self._uses.clear()
        self._sums.clear()
        self._arriving = None
        for home in self._homes.values():
            home.written.finish()
            home.present.clear()
            for parameter in home.parameters:
                parameter.grad = None

    def create(self, block: Block, parameter: nn.Parameter) -> None:
        """Give a parameter without a gradient one of zeros."""
        home = self.home(block)
        place = [other is parameter for other in home.parameters].index(True)
        home.views[place].zero_()
        home.present.add(place)
        parameter.grad = home.views[place]

    def fetched(self, block: Block) -> list[Gradient]:
        """Return a block's gradients on the device, valid until two more are fetched."""
        home = self.home(block)
        home.written.finish()
        for place, parameter in enumerate(home.parameters):
            if parameter.grad is None:
                home.present.discard(place)
            elif parameter.grad is not home.views[place]:  # somebody's own, in its place
                home.views[place].copy_(parameter.grad)
                home.present.add(place)
        staging = self._staged(home)
        device, host = staging.flat[: home.layout.bytes], home.flat

        def fetch() -> None:
            device.copy_(host, non_blocking=True)

        name = f"fetch gradients of {block.name}"
        self._lane.submit(name, fetch, (computed(self._device),)).wait()
        found: dict[int, torch.Tensor] = {}
        for place, view in enumerate(home.layout.views(device)):
            if place in home.present:
                found[id(home.parameters[place])] = view
        return [found.get(id(parameter)) for parameter in block.parameters]

    def home(self, block: Block) -> Home:
        """Return the block's place on the host, made anew where more parameters train now."""
        old = self._homes.get(block.index)
        roomy = {} if old is None else dict(zip(old.parameters, old.views, strict=True))
        wanted = [one for one in block.parameters if one.requires_grad or one in roomy]
        if old is not None and len(wanted) == len(roomy):
            return old
        layout = Layout.of(wanted)
        flat = self._allocate(layout.bytes)
        home = self._homes[block.index] = Home(wanted, layout, flat, layout.views(flat))
        if old is not None:
            old.written.finish()
            held = {old.parameters[place] for place in old.present}
            home.present = {place for place, one in enumerate(wanted) if one in held}
            for place in home.present:
                parameter, before = wanted[place], roomy[wanted[place]]
                home.views[place].copy_(before)
                if parameter.grad is before:
                    parameter.grad = home.views[place]
        return home

    # -- inside --------------------------------------------------------------------------------

    def _check_outside(self, blocks: Sequence[Block]) -> None:
        """Raise where a parameter has a gradient that no use of its block has left."""
        for block in blocks:
            home = self._homes.get(block.index)
            views = {} if home is None else dict(zip(home.parameters, home.views, strict=True))
            for parameter in block.parameters:
                if parameter.grad is not None and parameter.grad is not views.get(parameter):
                    named = block.module.named_parameters()
                    name = next(name for name, each in named if each is parameter)
                    msg = (
                        f"parameter {name!r} of block {block.name!r} has a gradient from outside "
                        f"the block's forward (a penalty on weights, or a part of the block called "
                        f"by itself), which cannot be streamed; name what is called by blocks, or "
                        f"exclude {block.name!r}"
                    )
                    raise RuntimeError(msg)

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
                raise RuntimeError(msg)
        if self._apply is not None:
            self._apply(block, gradients)
        else:
            self._store(block, gradients)

    def _store(self, block: Block, gradients: list[Gradient]) -> None:
        home = self.home(block)
        staging = self._staged(home)
        device, host = staging.flat[: home.layout.bytes], home.flat
        if home.present:

            def fetch() -> None:
                device.copy_(host, non_blocking=True)

            name = f"fetch gradients of {block.name}"
            self._lane.submit(name, fetch, (home.written, computed(self._device))).wait()
        by_parameter = dict(zip(block.parameters, gradients, strict=True))
        for place, view in enumerate(home.layout.views(device)):
            gradient = by_parameter[home.parameters[place]]
            if gradient is not None:
                view.add_(gradient) if place in home.present else view.copy_(gradient)
                home.present.add(place)

        def leave() -> None:
            host.copy_(device, non_blocking=True)

        ticket = self._lane.submit(f"gradients of {block.name}", leave, (computed(self._device),))
        staging.free = home.written = ticket

    def _staged(self, home: Home) -> _Staging:
        """Return a buffer that nothing uses any more, large enough."""
        staging = next(self._next)
        staging.free.wait()  # before its memory goes, too, where a larger one takes its place
        if staging.flat.nbytes < home.layout.bytes:
            staging.flat = torch.empty(home.layout.bytes, dtype=torch.uint8, device=self._device)
        return staging

    def _new_staging(self, size: int) -> _Staging:
        return _Staging(torch.empty(size, dtype=torch.uint8, device=self._device))


def _sum(one: Gradient, other: Gradient) -> Gradient:
    if one is None or other is None:
        return other if one is None else one
    return one + other
