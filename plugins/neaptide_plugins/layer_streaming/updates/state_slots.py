"""The slots on the device for the optimizer's state, and whose state is in each of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs
import torch

from neaptide_toolkit.offload import DONE, BufferLayout, Lane, Ticket
from neaptide_toolkit.offload.disk import copy, region_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn


PIECE = 256 << 20
"""Bytes of a copy: a copy takes some milliseconds, so its start costs nothing beside it."""


@attrs.define(eq=False)
class StateBuffer:
    """The optimizer's state of one block, on the host."""

    name: str
    """The block's."""
    keys: list[tuple[nn.Parameter, str]]
    layout: BufferLayout
    flat: torch.Tensor
    shown: dict[nn.Parameter, dict[str, torch.Tensor]]
    slot: StateSlot | None = None
    arrival: Ticket = DONE
    left: Ticket = DONE
    """Ticket of the last copy to the host."""
    version: int = 0
    """The version of `flat` that the slot's copy was made of, or that was made of it."""

    @property
    def is_trained(self) -> bool:
        """Return whether there is state, and a parameter that may be updated."""
        return bool(self.layout.bytes) and any(one.requires_grad for one, _ in self.keys)


@attrs.define(eq=False)
class StateSlot:
    """A buffer on the device for one block's state."""

    flat: torch.Tensor
    free: list[Ticket] = attrs.field(factory=list)
    """Tickets of the last copies from the slot to the host, of one piece each."""
    home: StateBuffer | None = None
    stepped: bool = False
    """True if the state was updated and is on its way back: nobody waits for it here."""
    views: dict[int, tuple[BufferLayout, list[torch.Tensor]]] = attrs.field(factory=dict)
    """Layouts by their identity, each with its views of `flat`."""

    def views_of(self, layout: BufferLayout) -> list[torch.Tensor]:
        """Return the tensors of `layout` in the buffer."""
        if id(layout) not in self.views:
            self.views[id(layout)] = layout, layout.views(self.flat)
        return self.views[id(layout)][1]


class StateSlots:
    """Copies state into slots: when it is needed, and before that if a slot is idle.

    Args:
        buffers: the slots' memory; none if the device is the host.
        inwards: the lane (queue) of copies to the device.
        outwards: the lane of copies to the host.
    """

    def __init__(self, buffers: Sequence[torch.Tensor], inwards: Lane, outwards: Lane) -> None:
        self.all = [StateSlot(flat) for flat in buffers]
        """The slot that was filled first comes first."""
        self._inwards, self._outwards = inwards, outwards

    def fetch(self, home: StateBuffer) -> None:
        """Start to copy a block's state to the device."""
        if home.slot is None and home.layout.bytes and self.all:
            self._fill((self._idle() or self.all)[0], home)

    def fetch_early(self, homes: Sequence[StateBuffer]) -> bool:
        """Start to copy the state of a block that is updated later, as far as slots are idle.

        Return whether nothing was to be copied.
        """
        missing = [home for home in homes if home.slot is None and home.is_trained]
        for home in homes:
            if home.slot is not None:
                home.slot.stepped = False
        for home, slot in zip(missing, self._idle(), strict=False):
            self._fill(slot, home)
        return not missing

    def leave(self, home: StateBuffer, done: Ticket) -> Ticket:
        """After `done`, copy a block's new state to the host; return the ticket of the last copy.

        In pieces, so that another state can follow into the slot behind this one.
        """
        slot = home.slot
        assert slot is not None, "a block that was updated has a slot"
        tickets = [
            self._outwards.submit(
                f"write back state of {home.name}", partial(_leave, home, here, there), (done,)
            )
            for there, here in _pieces(slot, home)
        ]
        home.left = tickets[-1]
        count = -(-home.layout.bytes // PIECE)
        slot.free[:count] = tickets if len(tickets) == count else tickets * count
        slot.stepped = True
        return home.left

    def renew(self, home: StateBuffer) -> None:
        """Copy a state to the device again if the host's was changed since it was copied."""
        if home.slot is not None and home.flat._version != home.version:
            self.forget(home)
            self.fetch(home)
            home.arrival.wait()

    def forget(self, home: StateBuffer) -> None:
        """Discard the copy of a state, which the host may then write."""
        home.arrival.finish()
        if home.slot is not None:
            home.slot.home, home.slot = None, None

    def _idle(self) -> list[StateSlot]:
        return [slot for slot in self.all if slot.home is None or slot.stepped]

    def _fill(self, slot: StateSlot, home: StateBuffer) -> None:
        self.all.remove(slot)
        self.all.append(slot)
        if slot.home is not None:
            slot.home.slot = None
        slot.home, home.slot, slot.stepped = home, slot, False
        pieces = _pieces(slot, home)
        for place, (there, here) in enumerate(pieces):
            after = slot.free if len(pieces) == 1 else slot.free[place : place + 1]
            home.arrival = self._inwards.submit(
                f"fetch state of {home.name}",
                partial(_fetch, home, there, here, first=not place),
                (*after, home.left),
            )


def _fetch(home: StateBuffer, there: torch.Tensor, here: torch.Tensor, *, first: bool) -> None:
    if first:
        home.version = home.flat._version
    copy(there, here)


def _leave(home: StateBuffer, here: torch.Tensor, there: torch.Tensor) -> None:
    copy(here, there)
    home.version = home.flat._version


def _pieces(slot: StateSlot, home: StateBuffer) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the pieces of a state: in its slot, and on the host. A disk's is whole."""
    size = PIECE if region_of(home.flat) is None else home.layout.bytes
    there = slot.flat[: home.layout.bytes]
    return list(zip(torch.split(there, size), torch.split(home.flat, size), strict=True))
