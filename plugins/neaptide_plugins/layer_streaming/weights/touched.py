"""Notices what other code does to the weights of streamed blocks inside a step.

A change in place raises a version counter. A change of `.data` leaves no trace. So while blocks
stream, `nn.Parameter.data` tells that it is read or set, and the weight is compared later.
"""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import nn

from neaptide.errors import ModelError

from .block import adopted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from .block import Block

_DATA: Any = torch.Tensor.data
_LISTENERS: WeakSet[Touched] = WeakSet()


class _TellingData:
    """`nn.Parameter.data`, as long as blocks stream."""

    def __get__(self, parameter: nn.Parameter | None, owner: type | None = None) -> Any:
        if parameter is None:
            return _DATA
        _tell(parameter)
        return _DATA.__get__(parameter)

    def __set__(self, parameter: nn.Parameter, value: torch.Tensor) -> None:
        _tell(parameter)
        _DATA.__set__(parameter, value)


def _tell(parameter: nn.Parameter) -> None:
    for listener in list(_LISTENERS):
        listener.told(parameter)


class Touched:
    """The weights that other code may have changed since the step began.

    Args:
        blocks: all blocks that stream.
        between_steps: whether the weights are the user's. Then nothing is noticed.
        changed: is called with each block whose weights on the host have changed.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        between_steps: Callable[[], bool],
        changed: Callable[[Block], None],
    ) -> None:
        self._blocks = blocks
        self._between_steps = between_steps
        self._changed = changed
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
        self._on_host = self._told_on_host = False

    def listen(self) -> None:
        """Be told of `.data` from now on, until `close`."""
        _LISTENERS.add(self)
        nn.Parameter.data = _TellingData()  # type: ignore[assignment]

    def __contains__(self, block: Block) -> bool:
        """Return whether other code may change the block's weights on the host at any time.

        No copy may then be under way while other code runs.
        """
        return block in self._digests

    def told(self, parameter: nn.Parameter) -> None:
        """Remember the values of a parameter, of which `.data` will be read or set."""
        found = self._places.get(id(parameter))
        if found is None or self._between_steps():
            return
        block, place = found
        if self._on_host:
            self._told_on_host = True
        elif block.users:
            values = self._inside.setdefault(block, {})
            if place not in values:
                values[place] = parameter.detach().clone()
        elif place not in self._digests.get(block, {}):
            block.settle()  # whoever reads the weight sees the last update
            self._digests.setdefault(block, {})[place] = _digest(block, place)

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
            adopted(one for one in self._blocks if not one.users)
            known = self._digests.get(block, {})
            if in_place or known != _digests(block, known):
                self._changed(block)
            self._versions[block] = now
            self._digests.update({block: _digests(block, known)} if known else {})

    @contextmanager
    def inside(self, held: Sequence[Block]) -> Iterator[None]:
        """Use the blocks `held`. Raises ModelError if this changes a weight, see `look_inside`."""
        try:
            yield
            for block in held:
                self.look_inside(block)
        except BaseException:
            for block in held:
                self._spoilt(block)
            raise

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

    def end(self) -> None:
        """End a step after which the copies on the device are kept."""
        self.look(list(self._digests))
        self._digests.clear()

    @contextmanager
    def host_update(self) -> Iterator[None]:
        """Let the optimizer change all weights on the host, also by `.data`."""
        self._on_host, self._told_on_host = True, False
        try:
            yield
        finally:
            self._on_host = False
            if self._told_on_host:
                adopted(self._blocks)
            self.forget(self._blocks)

    def close(self) -> None:
        """Notice nothing any more."""
        _LISTENERS.discard(self)
        if not _LISTENERS and isinstance(vars(nn.Parameter).get("data"), _TellingData):
            del nn.Parameter.data


def _versions(block: Block) -> tuple[int, ...]:
    return tuple([parameter._version for parameter in block.parameters])


def _digests(block: Block, places: Iterable[int]) -> dict[int, bytes]:
    return {place: _digest(block, place) for place in places}


def _digest(block: Block, place: int) -> bytes:
    there = block.layout.places[place]
    flat = block.host[there.offset : there.offset + there.bytes]
    return hashlib.sha256(flat.numpy().data).digest()


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
