"""The inputs of a forward that are not arguments: buffers, random state, autocast."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import attrs
import torch

from neaptide.devices import api_in_use
from neaptide.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

_SMALL = 65_536


@attrs.define(eq=False)
class _Buffer:
    owner: nn.Module
    name: str
    live: torch.Tensor
    version: int
    copy: torch.Tensor | None


@attrs.define(eq=False)
class Buffers:
    """A block's buffers, and the names of the large buffers that its calls have changed so far."""

    module: nn.Module
    changing: set[tuple[nn.Module, str]] = attrs.field(factory=set)
    called: bool = False

    __repr__ = one_line

    def before(self) -> BuffersBefore:
        """Copy the buffers that the next call may change.

        Before the first call all buffers are copied. Before a later call only two groups are
        copied: the small buffers, and those large buffers that the first call changed.
        """
        entries = []
        for owner in self.module.modules():
            for name, live in owner._buffers.items():
                if live is not None:
                    known = live.numel() <= _SMALL or (owner, name) in self.changing
                    copy = None if self.called and not known else live.clone()
                    entries.append(_Buffer(owner, name, live, live._version, copy))
        first, self.called = not self.called, True
        return BuffersBefore(self, entries, first)


@attrs.define(eq=False)
class BuffersBefore:
    """A block's buffers as they were before one call."""

    buffers: Buffers
    entries: list[_Buffer]
    first: bool

    __repr__ = one_line

    def settle(self, block: str) -> None:
        """After the call, free the copies of those large buffers that the call did not change.

        torch's batch norm changes its statistics without a new version number of the buffers. So
        small buffers are always copied, and large buffers are compared by value after the first
        call.
        """
        for entry in self.entries:
            now = entry.owner._buffers[entry.name]
            changed = now is not entry.live or entry.live._version != entry.version
            if entry.copy is None and changed:
                msg = (
                    f"block {block!r} changes its buffer {entry.name!r} only in a later call; "
                    f"exclude the block"
                )
                raise RuntimeError(msg)
            if self.first and entry.copy is not None and entry.live.numel() > _SMALL:
                if changed or not torch.equal(entry.copy, entry.live):
                    self.buffers.changing.add((entry.owner, entry.name))
                else:
                    entry.copy = None
        self.entries = [entry for entry in self.entries if entry.copy is not None]

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Set the module's buffers to clones of the copies. The original buffers stay unchanged."""
        live = [(entry, entry.owner._buffers[entry.name]) for entry in self.entries]
        for entry in self.entries:
            assert entry.copy is not None, "settled entries have one"
            entry.owner._buffers[entry.name] = entry.copy.clone()
        try:
            yield
        finally:
            for entry, buffer in live:
                entry.owner._buffers[entry.name] = buffer


@attrs.frozen(eq=False)
class CallContext:
    """Random state, autocast and buffers at the start of one call."""

    buffers: BuffersBefore
    cpu_random: torch.Tensor
    device_random: tuple[int, torch.Tensor] | None
    autocast: tuple[tuple[str, bool, torch.dtype], ...]

    __repr__ = one_line

    @classmethod
    def now(cls, buffers: BuffersBefore) -> CallContext:
        """Record the current state."""
        api, on_device = api_in_use(), None
        if api is not None:
            index = torch.accelerator.current_device_index()
            on_device = (index, api.get_rng_state(index))
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        kinds = ["cpu"] if accelerator is None else ["cpu", accelerator.type]
        autocast = tuple(
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in kinds
        )
        return cls(buffers, torch.get_rng_state(), on_device, autocast)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Set the recorded state inside the context; at its end, restore the previous state."""
        now = CallContext.now(self.buffers)
        with ExitStack() as stack:
            stack.callback(now.set_random)
            stack.enter_context(self.buffers.swapped_in())
            for kind, enabled, dtype in self.autocast:
                # Without autocast's cache: the cache would keep cast weights after this context.
                stack.enter_context(
                    torch.autocast(kind, enabled=enabled, dtype=dtype, cache_enabled=False)
                )
            self.set_random()
            yield

    def random_moved(self) -> bool:
        """Return whether random numbers have been drawn since the state was recorded."""
        now = CallContext.now(self.buffers)
        if not torch.equal(now.cpu_random, self.cpu_random):
            return True
        if now.device_random is None or self.device_random is None:
            return now.device_random is not self.device_random
        return not torch.equal(now.device_random[1], self.device_random[1])

    def set_random(self) -> None:
        """Restore the random state."""
        torch.set_rng_state(self.cpu_random)
        if self.device_random is not None:
            index, state = self.device_random
            api_in_use().set_rng_state(state, index)
