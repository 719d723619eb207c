"""Copies blocks' weights into a few device slots, and prefetches the blocks used next."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from neaptide.errors import ModelError, ended_by
from neaptide_toolkit.offload import computed

from .adoption import adopted
from .block import Block, Slot
from .order import Order, UseKind
from .storages import Storages, fill_with_nan
from .touched import Touched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import torch

    from neaptide_toolkit.offload import Lane, Ticket


class Residency:
    """The slots on the device, and the block that is in each slot.

    Args:
        blocks: all blocks that stream, with their weights on the host.
        device: the device of the slots.
        allocate: `allocate(bytes)` returns a uint8 tensor on the device.
        slots: number of slots. At most this number of blocks can be in use at once.
        distance: number of blocks to prefetch.
        lane: the lane (queue) of copies to the device.
        poison: overwrite a freed slot with NaN, to find wrong reads in tests.
        outside: returns the tensors of the model that are in no block.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        device: torch.device,
        allocate: Callable[[int], torch.Tensor],
        *,
        slots: int,
        distance: int,
        lane: Lane,
        poison: bool = False,
        outside: Callable[[], Iterable[torch.Tensor]] = tuple,
    ) -> None:
        self.blocks = list(blocks)
        self.device = device
        self.order = Order()
        self.fetches = 0
        """Number of copies to the device so far."""
        self.waited_for = 0
        """Number of fetches that were not prefetched."""
        self.fresh: Callable[[], bool] = lambda: False
        """If it returns True, the user may have changed weights: no earlier copy is used."""
        self.coming: Callable[[], None] = lambda: None
        """Called at each use, when the next blocks are fetched."""
        self._allocate, self._distance = allocate, distance
        self._lane = lane
        self._poison = poison
        self._clock = 0
        self._visiting: Block | None = None
        size = max((block.layout.bytes for block in blocks), default=0)
        self.slots = [self._new_slot(size) for _ in range(slots)]
        self._free = list(self.slots)
        self._storages = Storages(
            [*(block.host for block in blocks), *(slot.flat for slot in self.slots)]
        )
        self._outside = outside
        self.touched = Touched(self.blocks, lambda: self.fresh(), self.changed, outside)  # noqa: PLW0108
        self.holds = self._storages.hold
        """`holds(tensor)`: whether a tensor is a view of a slot or of a host buffer."""

    def buffers(self) -> list[torch.Tensor]:
        """Return the buffers of all slots. The slots of kept blocks are included."""
        kept = [block.slot for block in self.blocks if self._is_kept(block)]
        return [slot.flat for slot in (*self.slots, *kept) if slot is not None]

    @contextmanager
    def use(self, block: Block, kind: UseKind) -> Iterator[None]:
        """Hold a block's parameters on the device, and prefetch the next blocks."""
        held: list[Block] = []
        fresh = self.fresh()
        self.renew(block.needs) if fresh else self.touched.look(block.needs)

        def leave() -> None:
            for needed in held:
                self._release(needed)
                if fresh:
                    needed.settle()  # the user may write the host's tensor next

        with ended_by(leave):
            for needed in block.needs:
                if needed.slot is None:
                    self.waited_for += 1
                self._fetch(needed)
                needed.users += 1
                held.append(needed)
            for needed in held:
                needed.arrival.finish() if needed in self.touched else needed.arrival.wait()
                if needed.users == 1:
                    self._bind(needed)
            self._visiting = None
            if not fresh:
                self.order.note((kind, block.index))
                self._fetch_ahead()
                self.coming()
            with self.touched.inside(held):
                yield

    def visit(self, block: Block, user: Block) -> torch.Tensor:
        """Return the bytes of `block` on the device, for an operation in the backward of `user`.

        Copy the block to the device if needed. The bytes stay valid until the next call for a
        block that `user` does not need.
        """
        fresh = self.fresh()
        if fresh:
            self.renew([block])
        if block.slot is None:
            self.waited_for += 1
        self._fetch(block, sparing=[user])
        block.arrival.finish() if fresh or block in self.touched else block.arrival.wait()
        self._clock += 1
        block.used = self._clock
        if self._visiting is not user and not fresh:
            self._visiting = user
            self.order.note(("backward", user.index))
            self._fetch_ahead(sparing=[user])
        return self.flat(block)

    def flat(self, block: Block) -> torch.Tensor:
        """Return the bytes of a block that is on the device."""
        assert block.slot is not None, "a block that was updated is on the device"
        return block.slot.of(block)

    def leaving(self, block: Block, ticket: Ticket, written: Ticket) -> None:
        """Record when a block's new weights have left: `ticket`; and `written`: its state, too."""
        assert block.slot is not None, "a block that was updated has a slot"
        block.slot.leaving, block.written = ticket, written
        block.changes += 1
        self.touched.updated(block)

    def keep(self, block: Block) -> None:
        """Keep a block on the device, in an additional slot, until `let_go`."""
        if self._is_kept(block):
            return
        self.evict(block)
        block.slot = self._new_slot(block.layout.bytes)
        self._storages.add(block.slot.flat)
        self._copy_in(block, block.slot)

    def let_go(self, block: Block) -> None:
        """Free the slot of a kept block."""
        if self._is_kept(block):
            assert block.slot is not None, "a kept block has a slot"
            block.written.wait()  # the memory of the slot is freed after the copy
            self._storages.discard(block.slot.flat)
            self.evict(block)

    @contextmanager
    def host_update(self) -> Iterator[None]:
        """Let the host change the weights of all blocks; then discard the copies on the device."""
        self.order.pause()
        self.end_copies()
        try:
            with self.touched.host_update():
                yield
        finally:
            for block in self.blocks:
                self.changed(block)
        self._fetch_ahead()

    def end_copies(self) -> None:
        """Wait until no copy reads or writes the weights on the host."""
        for block in self.blocks:
            block.settle()

    def changed(self, block: Block) -> None:
        """Discard the copy on the device of a block whose weights the host has changed."""
        block.changes += 1
        self.discard(block)

    def discard(self, block: Block) -> None:
        """Discard a block's copy on the device; a kept block is fetched again at its next use."""
        if self._is_kept(block):
            block.stale = True
        elif block.slot is not None:
            self.evict(block)

    def renew(self, blocks: Sequence[Block]) -> None:
        """End and discard the copies of those `blocks` that are not in use.

        Tensors that the user has assigned to parameters of any block are adopted.
        """
        for block in blocks:
            if not block.users:
                block.settle()
                self.discard(block)
        for block in adopted(self.blocks, self._outside):
            self.changed(block)
        self.touched.forget(block for block in blocks if not block.users)

    def evict(self, block: Block) -> None:
        """Remove a block, kept or not, from the device."""
        slot, block.slot = block.slot, None
        if slot is None:
            return
        assert not block.users, "a block in use cannot be evicted"
        block.arrival.wait()  # Later computation, and memory that is freed, come after the copy.
        if slot not in self.slots:
            slot.forget(block)
        if slot in self.slots:
            slot.free = computed(self.device)
            if self._poison:
                flat = slot.flat
                after = (slot.free, slot.leaving)
                self._lane.submit(f"poison {block.name}", lambda: fill_with_nan(flat), after)
            self._free.append(slot)

    def close(self) -> None:
        """Remove every block from the device."""
        for block in self.blocks:
            self.evict(block)

    def _new_slot(self, size: int) -> Slot:
        # Queued kernels may still use this memory.
        return Slot(self._allocate(size), free=computed(self.device))

    def _is_kept(self, block: Block) -> bool:
        return block.slot is not None and block.slot not in self.slots

    def _bind(self, block: Block) -> None:
        assert block.slot is not None, "a block in use has a slot"
        block.bind(block.slot.views_of(block))

    def _release(self, block: Block) -> None:
        if block.users == 1:
            block.bind(block.views)
        self._clock += 1
        block.used = self._clock
        block.users -= 1  # last: another thread may read a weight, see `Touched.read`

    def _fetch(self, block: Block, sparing: Sequence[Block] = ()) -> None:
        if block.slot is not None:
            if block.stale:
                block.slot.free = computed(self.device)
                self._copy_in(block, block.slot)
            return
        slot = self._take_slot(sparing)
        if slot is None:
            msg = (
                f"block {block.name!r} needs more slots than max_active_layers = {len(self.slots)};"
                f" set it to the number of blocks whose parameters are used together"
            )
            raise ModelError(msg)
        block.slot = slot
        self._copy_in(block, slot)

    def _copy_in(self, block: Block, slot: Slot) -> None:
        block.stale = False
        after = (slot.free, slot.leaving, block.written)
        block.arrival = self._lane.submit(f"fetch {block.name}", block.fetching(slot), after)
        self.fetches += 1

    def _fetch_ahead(self, sparing: Sequence[Block] = ()) -> None:
        coming = [self.blocks[index] for index in self.order.ahead(self._distance)]
        for block in coming:
            for needed in (one for one in block.needs if one not in self.touched):
                if needed.slot is not None and needed.stale and not needed.users:
                    self._fetch(needed)
                if needed.slot is None:
                    slot = self._take_slot([*coming, *sparing])
                    if slot is None:
                        return
                    needed.slot = slot
                    self._copy_in(needed, slot)

    def _take_slot(self, sparing: Sequence[Block] = ()) -> Slot | None:
        if not self._free:
            spared = {id(needed) for block in sparing for needed in block.needs}
            idle = [
                block
                for block in self.blocks
                if block.slot in self.slots and not block.users and id(block) not in spared
            ]
            if not idle:
                return None
            self.evict(min(idle, key=lambda block: block.used))
        return self._free.pop()
