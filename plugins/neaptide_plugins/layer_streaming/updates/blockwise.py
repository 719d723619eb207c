"""The optimizer's step on the device, block by block.

The state of a block is copied to the device before the block's step, and back to the host after
it. If the device is the host, the step changes the state where it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide_kernels.state_codes.optimizer import CodedOptimizer
from neaptide_toolkit.offload import BufferLayout, Lane, computed
from neaptide_toolkit.optim.foreach_optimizer import STEP, ForeachOptimizer

from .kernel_step import left_by_kernels
from .members import members
from .state_slots import StateBuffer, StateSlots
from .stepping import LO, Item, state_layout, step_away

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch import nn

    from ..tiers.homes import Homes
    from ..weights.block import Block
    from ..weights.residency import Residency

_AT_ONCE = 32 << 20
"""Largest number of elements in one step. The optimizer allocates a few times this number."""


class Updates:
    """Updates blocks with the user's optimizer class.

    The results are bitwise equal to the results of `optimizer.step()`.

    Args:
        optimizer: an optimizer that `stepping.adoptable` accepts.
        residency: the device slots of the blocks' weights.
        inwards: the lane (queue) of copies to the device.
        outwards: the lane of copies to the host.
        homes: allocates the state on the host, and its slots on the device.
        split: store the lower half of a float32 master for bfloat16 parameters.
        slots: number of blocks whose state is on the device at once. With 1, no state is
            prefetched.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        residency: Residency,
        inwards: Lane,
        outwards: Lane,
        homes: Homes,
        *,
        split: bool,
        slots: int = 2,
    ) -> None:
        self._optimizer = optimizer
        self._residency = residency
        self._device = residency.device
        self._outwards = outwards
        self._split = split
        self._homes = {
            block.index: self._new_home(block, homes.allocate) for block in residency.blocks
        }
        size = max((home.layout.bytes for home in self._homes.values()), default=0)
        slots = 0 if homes.are_on_the_device else slots
        # A fetch of state comes after a fetch of weights, which waited for kernels that may still
        # use the memory that the allocator has returned.
        self._slots = StateSlots([homes.on_device(size) for _ in range(slots)], inwards, outwards)
        self.adopt()

    def buffers(self) -> list[torch.Tensor]:
        """Return the slots for state, on the device; none if the device is the host."""
        return [slot.flat for slot in self._slots.all]

    def stored(self) -> list[torch.Tensor]:
        """Return the buffers for state, on the host."""
        return [home.flat for home in self._homes.values()]

    def using(self, block: Block) -> AbstractContextManager[None]:
        """Hold a block's weights on the device for its step."""
        return self._residency.use(block, "update")

    def prefetch_next(self, block: Block) -> None:
        """If there are several slots, start to copy the state of the next block to the device."""
        if len(self._slots.all) > 1:
            self.prefetch(block)

    def prefetch(self, block: Block) -> None:
        """Start to copy a block's state to the device."""
        self._slots.fetch(self._homes[block.index])

    def prefetch_coming(self) -> None:
        """Start to copy the state of the next block that is updated, if a slot is idle.

        One block at a time: what its backward needs sooner waits in the same queue. With one slot,
        the state in it would leave too late.
        """
        count, residency = len(self._slots.all), self._residency
        for index in residency.order.updates(count) if count > 1 else ():
            homes = [self._homes[one.index] for one in residency.blocks[index].needs]
            if not self._slots.fetch_early(homes):
                return

    def step(self, block: Block, gradients: Sequence[torch.Tensor | None]) -> None:
        """Run the optimizer's step for a block that is on the device.

        Then start to copy the block's weights and state to the host.
        """
        self._residency.touched.look_inside(block)
        self.prefetch(block)
        home = self._homes[block.index]
        home.arrival.wait()
        block.written.wait()  # the last write-back may still read the slots
        self._slots.renew(home)
        items = list(self._items(block, home, gradients))
        for batch in _batches(items):
            left = left_by_kernels(self._optimizer, batch)
            if left:
                step_away(self._optimizer, left)
        self._write_back(block, home)

    def adopt(self, block: Block | None = None) -> None:
        """Copy state to the host buffers, for example from the tensors of a loaded checkpoint.

        With `block`, only that block's state is copied. The state's copy on the device is
        discarded.
        """
        for one in self._residency.blocks if block is None else (block,):
            home = self._homes[one.index]
            self._forget(one, home)
            for parameter, tensors in home.shown.items():
                held = self._optimizer.state.get(parameter)
                if not held:
                    if LO in tensors:
                        tensors[LO].zero_()
                    continue
                for name, tensor in tensors.items():
                    value = held.get(name)
                    if value is None and name == LO:
                        tensor.zero_()
                        held[name] = tensor
                    elif isinstance(value, torch.Tensor) and value is not tensor:
                        tensor.copy_(value)
                        held[name] = tensor

    def forget(self) -> None:
        """Discard every copy of state on the device."""
        for block in self._residency.blocks:
            self._forget(block, self._homes[block.index])

    def _new_home(self, block: Block, allocate: Callable[[int], torch.Tensor]) -> StateBuffer:
        keys, tensors, dtypes = state_tensors(block.parameters, self._optimizer, split=self._split)
        layout = BufferLayout.of(tensors, dtypes)
        flat = allocate(layout.bytes)
        shown: dict[nn.Parameter, dict[str, torch.Tensor]] = {}
        for (parameter, name), view in zip(keys, layout.views(flat), strict=True):
            shown.setdefault(parameter, {})[name] = view
        return StateBuffer(block.name, keys, layout, flat, shown)

    def _items(
        self, block: Block, home: StateBuffer, gradients: Sequence[torch.Tensor | None]
    ) -> Iterator[Item]:
        on_device: dict[nn.Parameter, dict[str, torch.Tensor]] = {}
        if not self._slots.all:
            on_device = home.shown
        elif home.slot is not None or not home.layout.bytes:  # empty state has no slot of its own
            views = (home.slot or self._slots.all[0]).views_of(home.layout)
            for (parameter, name), view in zip(home.keys, views, strict=True):
                on_device.setdefault(parameter, {})[name] = view
        found = members(self._optimizer, block.parameters).values()
        known = {id(parameter) for own in found for parameter in own}
        assert block.slot is not None, "a block in use has a slot"
        weights = block.slot.proxies_of(block)
        for parameter, weight, gradient in zip(block.parameters, weights, gradients, strict=True):
            if gradient is not None and id(parameter) in known:
                state: Mapping[str, Any] = on_device.get(parameter, {})
                shown = home.shown.get(parameter, {})
                yield Item(parameter, weight, gradient, state, state.get(LO), shown, weight)

    def _write_back(self, block: Block, home: StateBuffer) -> None:
        assert block.slot is not None, "a block that was updated is on the device"
        # The weights leave first: their slot is needed before that of the state.
        done, leave = computed(self._device), block.leaving(block.slot)
        ticket = left = self._outwards.submit(f"write back {block.name}", leave, (done,))
        if home.slot is not None:
            left = self._slots.leave(home, done=ticket)  # who waits for it learns of either error
        self._residency.leaving(block, ticket, left)

    def _forget(self, block: Block, home: StateBuffer) -> None:
        """Discard the state's copy on the device; the host may then write the buffer."""
        block.written.finish()
        self._slots.forget(home)


def state_tensors(
    parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer, *, split: bool
) -> tuple[list[tuple[nn.Parameter, str]], list[torch.Tensor], list[torch.dtype]]:
    """Return descriptions of the state tensors that the optimizer will have for `parameters`.

    The result is three lists with one entry per state tensor. An entry of the first list is the
    parameter and the name. An entry of the second list is a tensor of the state tensor's shape. An
    entry of the third list is the dtype. With `split`, the lists also describe the lower half of
    each bfloat16 parameter's float32 master.
    """
    groups = {
        id(parameter): group for group in optimizer.param_groups for parameter in group["params"]
    }
    known: dict[tuple[int, torch.dtype], dict[str, torch.dtype]] = {}
    keys: list[tuple[nn.Parameter, str]] = []
    tensors: list[torch.Tensor] = []
    dtypes: list[torch.dtype] = []
    for parameter in parameters:
        group = groups.get(id(parameter))
        if group is None:
            continue
        halved = split and parameter.dtype == torch.bfloat16
        dtype = torch.float32 if halved else parameter.dtype
        like = torch.empty_like(parameter, dtype=dtype, device="meta")
        made = _new_state(optimizer, like, group)
        if made is not None:
            named = {name: (each, each.dtype) for name, each in made.items() if name != STEP}
        else:
            if (id(group), dtype) not in known:
                known[id(group), dtype] = state_layout(optimizer, group, dtype)
            named = {name: (parameter, stored) for name, stored in known[id(group), dtype].items()}
        for name, (like, stored) in named.items():
            keys.append((parameter, name))
            tensors.append(like)
            dtypes.append(stored)
        if halved:
            keys.append((parameter, LO))
            tensors.append(parameter)
            dtypes.append(torch.int16)
    return keys, tensors, dtypes


def _new_state(
    optimizer: torch.optim.Optimizer, parameter: torch.Tensor, group: Mapping[str, Any]
) -> Mapping[str, torch.Tensor] | None:
    """Return the state of a parameter before its first update; None: the class does not tell it."""
    if isinstance(optimizer, ForeachOptimizer):
        return optimizer.new_state(parameter, group)
    if isinstance(optimizer, CodedOptimizer):
        return dict(zip(optimizer.state_names, optimizer.new_state(parameter), strict=True))
    return None


def _batches(items: Sequence[Item]) -> Iterator[list[Item]]:
    batch: list[Item] = []
    elements = 0
    for item in items:
        own = item.weight.numel()
        if batch and elements + own > _AT_ONCE:
            yield batch
            batch, elements = [], 0
        batch.append(item)
        elements += own
    if batch:
        yield batch
