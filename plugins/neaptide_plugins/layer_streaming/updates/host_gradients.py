"""The gradients of blocks on the host, and the staging buffers through which they are copied."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

import attrs
import torch

from neaptide_toolkit.machine.pretended import kind_of
from neaptide_toolkit.offload import DONE, BufferLayout, Lane, Ticket, computed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import nn

    from ..weights.block import Block

    Gradient = torch.Tensor | None


@attrs.define(eq=False)
class _Staging:
    """A buffer on the device through which one block's gradients are copied in a single call."""

    flat: torch.Tensor
    free: Ticket = DONE
    views: dict[int, tuple[BufferLayout, list[torch.Tensor]]] = attrs.field(factory=dict)
    """Layouts by their identity, each with its views of `flat`."""

    def views_of(self, layout: BufferLayout) -> list[torch.Tensor]:
        """Return the tensors of `layout` in the buffer."""
        if id(layout) not in self.views:
            self.views[id(layout)] = layout, layout.views(self.flat)
        return self.views[id(layout)][1]


@attrs.define(eq=False)
class _GradientBuffer:
    """The gradients of one block, on the host."""

    parameters: list[nn.Parameter]
    """The parameters that are trainable now or were trainable earlier."""
    layout: BufferLayout
    flat: torch.Tensor
    views: list[torch.Tensor]
    present: set[int] = attrs.field(factory=set)
    """Indices of the parameters that have a gradient."""
    shown: bool = False
    """True if `.grad` was set to these gradients since the last backward."""
    written: Ticket = DONE
    """The last copy from the device."""
    read: Ticket = DONE
    """The last copy to the device."""


class HostGradients:
    """Stores the sums of gradients on the host.

    Between two backwards, the `.grad` of each parameter is the sum of its gradients. If the device
    is the host, nothing is copied: the sums are used where they are.

    Args:
        device: the device of the backward.
        lane: the lane (queue) of copies.
        allocate: `allocate(bytes)` returns a uint8 tensor on the host.
    """

    def __init__(
        self, device: torch.device, lane: Lane, allocate: Callable[[int], torch.Tensor]
    ) -> None:
        self._device = device
        self._lane = lane
        self._allocate = allocate
        self._in_place = kind_of(device) == "cpu"
        self._homes: dict[int, _GradientBuffer] = {}
        self._staging = [self._new_staging(0) for _ in range(2)]
        self._next = cycle(self._staging)
        self._coming: dict[int, _Staging] = {}
        """The buffers to which gradients are being copied, by the index of their block."""

    def reserve(self, blocks: Iterable[Block]) -> None:
        """Allocate the buffers for `blocks`."""
        homes = [self._home(block) for block in blocks]
        if self._in_place:
            return
        size = max((home.layout.bytes for home in homes), default=0)
        for staging in self._staging:
            self._replace(staging, size)

    def buffers(self) -> list[torch.Tensor]:
        """Return the buffers on the device; they are empty if the device is the host."""
        return [staging.flat for staging in self._staging]

    def stored(self) -> list[torch.Tensor]:
        """Return the buffers on the host."""
        return [home.flat for home in self._homes.values()]

    def views(self, block: Block) -> Mapping[nn.Parameter, torch.Tensor]:
        """Return each parameter's view of the host buffer.

        The result is empty if there is no buffer.
        """
        home = self._homes.get(block.index)
        return {} if home is None else dict(zip(home.parameters, home.views, strict=True))

    def forget_taken(self, block: Block) -> None:
        """Prepare for a backward of the block.

        Drop the gradients of parameters whose `.grad` was set to None since `show`. If more
        parameters are trained now, allocate a larger buffer.
        """
        home = self._homes.get(block.index)
        if home is not None and home.shown:
            gone = {place for place in home.present if home.parameters[place].grad is None}
            home.present, home.shown = home.present - gone, False
            self._home(block)

    def show(self) -> None:
        """Wait for all copies, and set each parameter's `.grad` to its gradient on the host."""
        for home in self._homes.values():
            home.written.finish()
            home.shown = True
            for place, parameter in enumerate(home.parameters):
                parameter.grad = home.views[place] if place in home.present else None

    def clear(self) -> None:
        """Drop all gradients."""
        for home in self._homes.values():
            home.written.finish()
            home.present.clear()
            for parameter in home.parameters:
                parameter.grad = None

    def add(self, block: Block, gradients: Sequence[Gradient]) -> None:
        """Add a block's gradients, which are on the device, to the block's sums on the host.

        None stands for no gradient.
        """
        home = self._home(block)
        if self._in_place:
            _add(home, home.views, block, gradients)
            return
        staging = self._staged(home)
        device, host = staging.flat[: home.layout.bytes], home.flat
        if home.present:

            def fetch() -> None:
                device.copy_(host, non_blocking=True)

            name = f"fetch gradients of {block.name}"
            self._lane.submit(name, fetch, (computed(self._device),)).wait()
        _add(home, staging.views_of(home.layout), block, gradients)

        def leave() -> None:
            host.copy_(device, non_blocking=True)

        ticket = self._lane.submit(f"gradients of {block.name}", leave, (computed(self._device),))
        staging.free = home.written = ticket

    def settle(self) -> None:
        """Block the host until no copy reads a gradient: `zero_grad` may write it."""
        for home in self._homes.values():
            home.read.finish()

    def create(self, block: Block, parameter: nn.Parameter) -> None:
        """Create a gradient of zeros for a parameter that has no gradient."""
        home = self._home(block)
        place = [other is parameter for other in home.parameters].index(True)
        home.views[place].zero_()
        home.present.add(place)
        parameter.grad = home.views[place]

    def begin_update(self) -> None:
        """Forget what an update that failed has fetched."""
        self._coming.clear()

    def prefetch(self, block: Block) -> None:
        """Start to copy a block's gradients to the device, for `fetched`.

        Of two blocks at most the copies may be under way.
        """
        if block.index in self._coming or self._in_place:
            return
        home = self._collected(block)
        staging = self._coming[block.index] = self._staged(home)
        device, host = staging.flat[: home.layout.bytes], home.flat

        def fetch() -> None:
            device.copy_(host, non_blocking=True)

        name = f"fetch gradients of {block.name}"
        home.read = self._lane.submit(name, fetch, (computed(self._device),))

    def fetched(self, block: Block) -> list[Gradient]:
        """Return a block's gradients on the device.

        The returned tensors are views of a staging buffer. The second `prefetch` after this call
        overwrites this buffer.
        """
        if self._in_place:
            home = self._collected(block)
            views = home.views
        else:
            self.prefetch(block)
            home, staging = self._home(block), self._coming.pop(block.index)
            home.read.wait()
            views = staging.views_of(home.layout)
        found = {id(home.parameters[place]): views[place] for place in home.present}
        return [found.get(id(parameter)) for parameter in block.parameters]

    def _collected(self, block: Block) -> _GradientBuffer:
        """Return the block's host buffer, after taking the gradients that the user has set."""
        home = self._home(block)
        for place, parameter in enumerate(home.parameters):
            if parameter.grad is None:
                home.present.discard(place)
            elif parameter.grad is not home.views[place]:  # the user has assigned another tensor
                home.views[place].copy_(parameter.grad)
                home.present.add(place)
        return home

    def _home(self, block: Block) -> _GradientBuffer:
        """Return the block's host buffer.

        If more parameters of the block are trainable than before, allocate a larger buffer.
        """
        old = self._homes.get(block.index)
        if old is not None and len(old.parameters) == len(block.parameters):
            return old
        roomy = {} if old is None else dict(zip(old.parameters, old.views, strict=True))
        wanted = [one for one in block.parameters if one.requires_grad or one in roomy]
        if old is not None and len(wanted) == len(roomy):
            return old
        layout = BufferLayout.of(wanted)
        flat = self._allocate(layout.bytes)
        home = self._homes[block.index] = _GradientBuffer(wanted, layout, flat, layout.views(flat))
        if old is not None:
            held = {old.parameters[place] for place in old.present}
            home.present = {place for place, one in enumerate(wanted) if one in held}
            for place in home.present:
                parameter, before = wanted[place], roomy[wanted[place]]
                home.views[place].copy_(before)
                if parameter.grad is before:
                    parameter.grad = home.views[place]
        return home

    def _staged(self, home: _GradientBuffer) -> _Staging:
        """Return a free staging buffer that is large enough."""
        staging = next(self._next)
        staging.free.wait()  # Also if a larger buffer replaces this one: a copy may still read it.
        if staging.flat.nbytes < home.layout.bytes:
            self._replace(staging, home.layout.bytes)
        return staging

    def _new_staging(self, size: int) -> _Staging:
        return _Staging(torch.empty(size, dtype=torch.uint8, device=self._device))

    def _replace(self, staging: _Staging, size: int) -> None:
        """Give a staging buffer other memory, of `size` bytes."""
        staging.flat = self._new_staging(size).flat
        staging.views.clear()


def _add(
    home: _GradientBuffer,
    views: Sequence[torch.Tensor],
    block: Block,
    gradients: Sequence[Gradient],
) -> None:
    """Add a block's gradients to the sums, which are in `views`."""
    by_parameter = dict(zip(map(id, block.parameters), gradients, strict=True))
    new: dict[int, torch.Tensor] = {}
    old: dict[int, torch.Tensor] = {}
    for place in range(len(views)):
        gradient = by_parameter[id(home.parameters[place])]
        if gradient is not None:
            (old if place in home.present else new)[place] = gradient
    if new:
        torch._foreach_copy_([views[place] for place in new], list(new.values()))
    if old:
        torch._foreach_add_([views[place] for place in old], list(old.values()))
    home.present.update(new)
