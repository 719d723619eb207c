"""Notices what other code does to the weights of streamed blocks inside a step.

A change in place raises a version counter. A change of `.data` leaves no trace. So while blocks
stream, `nn.Parameter.data` tells that it is read or set, and the weight is compared later.
"""

from __future__ import annotations

import ctypes
import hashlib
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING

import torch
from torch._guards import TracingContext
from torch.utils._python_dispatch import _disable_current_modes

from neaptide.errors import ModelError, ended_by

from .adoption import DATA, adopted
from .telling import leave, listen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import nn

    from .block import Block


class Touched:
    """The weights that other code may have changed since the step began.

    Args:
        blocks: all blocks that stream.
        between_steps: whether the weights are the user's. Then nothing is noticed.
        changed: is called with each block whose weights on the host have changed.
        outside: returns the tensors of the model that are in no block.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        between_steps: Callable[[], bool],
        changed: Callable[[Block], None],
        outside: Callable[[], Iterable[torch.Tensor]] = tuple,
    ) -> None:
        self._blocks = blocks
        self._between_steps = between_steps
        self._changed = changed
        self._outside = outside
        self._places = {
            id(parameter): (block, place)
            for block in blocks
            for place, parameter in enumerate(block.parameters)
        }
        self._versions = {block: _versions(block) for block in blocks}
        self._digests: dict[Block, dict[int, bytes]] = {}
        """Of the weights on the host whose `.data` was read or set: their last digest."""
        self._inside: dict[Block, dict[int, torch.Tensor]] = {}
        """Of the weights whose `.data` was read or set while they were in use: their values."""
        self._on_host = self._assigned = False
        self._compiled_inside = self._compiled_outside = False
        """Whether code that uses `.data` was compiled. Compiled code tells of no further use."""
        self._thread = get_ident()
        self._inside_threads: list[int] = []

    def listen(self) -> None:
        """Be told of `.data` from now on, until `close`."""
        listen(self)

    def begin(self) -> None:
        """Begin a step: this thread is the one that may change weights."""
        self._thread = get_ident()

    def __contains__(self, block: Block) -> bool:
        """Return whether other code may change the block's weights on the host at any time.

        No copy may then be under way while other code runs.
        """
        return block in self._digests

    def read(self, parameter: nn.Parameter) -> torch.Tensor | None:
        """Remember the values of a weight whose `.data` is read, as it may be changed by it.

        A thread that does not run the step gets the weight on the host, and is not remembered.
        """
        found = self._places.get(id(parameter))
        if found is None:
            return None
        block, place = found
        if self._in_step_or_backward():
            self._told(block, place)
            return None
        if not self._between_steps():
            block.written.finish()
        before = block.users, block.used
        tensor: torch.Tensor = DATA.__get__(parameter)
        if before[0] or before != (block.users, block.used):  # it may be a view of a slot
            tensor = DATA.__get__(block.views[place])
        return tensor

    def will_set(self, parameter: nn.Parameter) -> None:
        """Remember the values of a weight whose `.data` is set next.

        Raises ModelError in a thread that does not run the step.
        """
        found = self._places.get(id(parameter))
        if found is None:
            return
        if not self._in_step_or_backward() and not self._between_steps():
            raise ModelError(_by_a_thread(found[0].name))
        self._told(*found)
        self._assigned = True

    def _in_step_or_backward(self) -> bool:
        """Return whether this thread runs the step, a block, or a part of a backward."""
        thread = get_ident()
        return (
            thread == self._thread
            or thread in self._inside_threads
            or torch._C._current_graph_task_id() != -1
        )

    def _told(self, block: Block, place: int) -> None:
        if self._between_steps() or self._on_host:
            return
        compiled = TracingContext.try_get() is not None
        if block.users:
            self._compiled_inside |= compiled
            self._remember_inside(block, [place])
        else:
            self._compiled_outside |= compiled
            if place not in self._digests.get(block, {}):
                block.settle()  # whoever reads the weight sees the last update
                self._digests.setdefault(block, {})[place] = _digest(block, place)

    def _remember_inside(self, block: Block, places: Iterable[int]) -> None:
        values = self._inside.setdefault(block, {})
        with _disable_current_modes():  # a tensor of a mode would have no values
            for place in places:
                if place not in values:
                    values[place] = block.parameters[place].detach().clone()

    def look(self, blocks: Iterable[Block]) -> None:
        """Find out whether the weights on the host have changed; `blocks` in use are left out."""
        for block in blocks:
            now = _versions(block)
            in_place = now != self._versions[block]
            if block.users or not (in_place or block in self):
                continue
            if in_place and block.written_in_step:
                raise ModelError(_while_copied(block.name))
            block.settle()
            if in_place or self._assigned:
                adopted(self._blocks, self._outside)
                self._assigned = False
            known = self._digests.get(block, {})
            if in_place or known != _digests(block, known):
                self._changed(block)
            self._versions[block] = now
            self._digests.update({block: _digests(block, known)} if known else {})

    @contextmanager
    def inside(self, held: Sequence[Block]) -> Iterator[None]:
        """Use the blocks `held`. Raises ModelError if this changes a weight, see `look_inside`."""
        thread = get_ident()
        self._inside_threads.append(thread)
        try:
            if self._compiled_inside:
                for block in held:
                    self._remember_inside(block, range(len(block.parameters)))
            yield
            for block in held:
                self.look_inside(block)
        except BaseException:
            for block in held:
                self._spoilt(block)
            raise
        finally:
            self._inside_threads.remove(thread)

    def look_inside(self, block: Block) -> None:
        """Raise ModelError if a block in use has changed a weight, which would be lost."""
        versions, values = self._versions[block], self._inside.get(block, {})
        for place, parameter in enumerate(block.parameters):
            if parameter._version != versions[place] or (
                place in values and not _same_bits(parameter, values[place])
            ):
                raise ModelError(_while_it_runs(block.name, list(parameter.shape)))
        self._inside.pop(block, None)

    def _spoilt(self, block: Block) -> None:
        """After an error, do not use a copy on the device that may differ from the host."""
        now = _versions(block)
        if self._inside.pop(block, None) is not None or now != self._versions[block]:
            block.stale = True
            block.changes += 1
        self._versions[block] = now

    def updated(self, block: Block) -> None:
        """Take the weights that an update on the device is copying to the host as known."""
        block.written_in_step = True
        if block in self:
            block.written.finish()
            self._digests[block] = _digests(block, self._digests[block])

    def forget(self, blocks: Iterable[Block]) -> None:
        """Take the weights of `blocks` as known. No copy of them may be under way."""
        for block in blocks:
            self._digests.pop(block, None)
            self._versions[block] = _versions(block)
            if self._compiled_outside:
                self._digests[block] = _digests(block, range(len(block.parameters)))

    def end(self) -> None:
        """End a step after which the copies on the device are kept."""
        try:
            self.look(list(self._digests))
        finally:
            self._digests.clear()
        if self._compiled_outside:
            for block in self._blocks:
                block.settle()
            self.forget(self._blocks)

    @contextmanager
    def host_update(self) -> Iterator[None]:
        """Let the optimizer change all weights on the host, also by `.data`."""
        self._on_host = True
        with ended_by(self._after_host_update):
            yield

    def _after_host_update(self) -> None:
        self._on_host = False
        adopted(self._blocks, self._outside)
        self.forget(self._blocks)

    def close(self) -> None:
        """Notice nothing any more."""
        leave(self)


def _versions(block: Block) -> tuple[int, ...]:
    return tuple([parameter._version for parameter in block.parameters])


def _digests(block: Block, places: Iterable[int]) -> dict[int, bytes]:
    return {place: _digest(block, place) for place in places}


def _digest(block: Block, place: int) -> bytes:
    """Hash the memory, without an operation: a mode or a transform of torch may be active."""
    view = block.views[place]
    there = (ctypes.c_char * view.nbytes).from_address(view.data_ptr())
    return hashlib.sha256(there).digest()


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device):
        return False
    both = [tensor.detach().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return torch.equal(*both)


def _while_copied(block: str) -> str:
    return (
        f"a weight of block {block!r} was changed in place inside a step, while its last update "
        f"may still be copied to RAM; change its `.data` instead, or change it between steps of "
        f"your own loop"
    )


def _while_it_runs(block: str, shape: list[int]) -> str:
    return (
        f"block {block!r} changes a parameter of shape {shape} in place while it runs (an "
        f"embedding's max_norm does), which would be lost; exclude it from layer streaming"
    )


def _by_a_thread(block: str) -> str:
    return (
        f"a thread that does not run the step sets `.data` of a weight of block {block!r} inside a "
        f"step; set it between steps, or in loss_fn"
    )
