"""The inputs of a forward that are not arguments: buffers, random state, autocast."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import attrs
import torch

from neaptide.devices import api_in_use
from neaptide.errors import ModelError
from neaptide.text import one_line

from .parts import KeptParts

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
    parts: KeptParts = attrs.field(
        init=False, default=attrs.Factory(lambda self: KeptParts(self.module), takes_self=True)
    )

    __repr__ = one_line

    def before(self) -> BuffersBefore:
        """Copy the buffers that the next call may change.

        Before the first call all buffers are copied. Before a later call only two groups are
        copied: the small buffers, and those large buffers that the first call changed.
        """
        entries = []
        parameters: list[tuple[nn.Module, str, torch.Tensor | None]] = []
        training: list[tuple[nn.Module, bool]] = []
        for owner in self.parts.now():
            if owner._parameters:
                parameters += [(owner, name, one) for name, one in owner._parameters.items()]
            training.append((owner, owner.training))
            for name, live in owner._buffers.items() if owner._buffers else ():
                if live is not None:
                    known = live.numel() <= _SMALL or (owner, name) in self.changing
                    copy = None if self.called and not known else live.clone()
                    entries.append(_Buffer(owner, name, live, live._version, copy))
        first, self.called = not self.called, True
        return BuffersBefore(self, entries, parameters, training, first)


@attrs.define(eq=False)
class BuffersBefore:
    """A block's buffers, parameters and modes as they were before one call."""

    buffers: Buffers
    entries: list[_Buffer]
    parameters: list[tuple[nn.Module, str, torch.Tensor | None]]
    """The parameters at the time of the call; `torch.func.functional_call` exchanges them."""
    training: list[tuple[nn.Module, bool]]
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
                raise ModelError(msg)
            if self.first and entry.copy is not None and entry.live.numel() > _SMALL:
                if changed or not torch.equal(entry.copy, entry.live):
                    self.buffers.changing.add((entry.owner, entry.name))
                else:
                    entry.copy = None
        self.entries = [entry for entry in self.entries if entry.copy is not None]

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Set the module's buffers to clones of the copies. The original buffers stay unchanged.

        Also set the module's parameters and its train or eval mode to those of the call.
        """
        live = [(entry, entry.owner._buffers[entry.name]) for entry in self.entries]
        present = [
            (owner._parameters, name, owner._parameters.get(name), then)
            for owner, name, then in self.parameters
            if owner._parameters.get(name) is not then
        ]
        modes = [(owner, owner.training) for owner, mode in self.training if owner.training != mode]
        for owner, mode in modes:
            owner.training = not mode
        for parameters, name, _, then in present:
            parameters[name] = then  # type: ignore[assignment]  # any tensor works
        for entry in self.entries:
            assert entry.copy is not None, "settled entries have one"
            entry.owner._buffers[entry.name] = entry.copy.clone()
        try:
            yield
        finally:
            for entry, buffer in live:
                entry.owner._buffers[entry.name] = buffer
            for parameters, name, now, _ in present:
                parameters[name] = now
            for owner, mode in modes:
                owner.training = mode


def in_autocast() -> bool:
    """Return whether an autocast context is open, even one that is switched off."""
    depth = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return depth > 1


@attrs.frozen(eq=False)
class CallContext:
    """Random state, autocast and buffers at the start of one call."""

    buffers: BuffersBefore
    cpu_random: torch.Tensor
    device_random: tuple[int, torch.Tensor] | None
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    caches: bool
    """Whether autocast casts a weight once, and not at each use."""
    nested: bool
    """Whether the call is in an autocast context, at whose end the casts are forgotten."""

    __repr__ = one_line

    @classmethod
    def now(cls, buffers: BuffersBefore, *, caches: bool | None = None) -> CallContext:
        """Record the current state; `caches`, if given, instead of the present one."""
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        kinds = ["cpu"] if accelerator is None else ["cpu", accelerator.type]
        autocast = tuple(
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in kinds
        )
        caches = torch.is_autocast_cache_enabled() if caches is None else caches
        return cls(buffers, *random_numbers(), autocast, caches, in_autocast())

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Set the recorded state inside the context; at its end, restore the previous state."""
        now = CallContext.now(self.buffers)
        try:
            with self.buffers.swapped_in(), ExitStack() as stack:
                if self.nested or self.autocast != now.autocast:
                    for kind, enabled, dtype in self.autocast:
                        stack.enter_context(
                            torch.autocast(
                                kind, enabled=enabled, dtype=dtype, cache_enabled=self.caches
                            )
                        )
                else:  # a context would keep the casts of the call's own contexts until its end
                    stack.callback(torch.set_autocast_cache_enabled, now.caches)
                    torch.set_autocast_cache_enabled(self.caches)
                self.set_random()
                yield
        finally:
            if self.caches:
                torch.clear_autocast_cache()  # the casts of this call's weights
            now.set_random()

    def random_moved(self, until: RandomNumbers | None = None) -> bool:
        """Return whether random numbers were drawn after the state was recorded.

        Args:
            until: what `random_numbers` returned at the end; None: up to now.
        """
        on_cpu, on_device = random_numbers() if until is None else until
        if not torch.equal(on_cpu, self.cpu_random):
            return True
        if on_device is None or self.device_random is None:
            return on_device is not self.device_random
        return not torch.equal(on_device[1], self.device_random[1])

    def set_random(self) -> None:
        """Restore the random state."""
        torch.set_rng_state(self.cpu_random)
        if self.device_random is not None:
            index, state = self.device_random
            api_in_use().set_rng_state(state, index)


RandomNumbers = tuple[torch.Tensor, tuple[int, torch.Tensor] | None]
"""The state of the CPU's generator, and the number of the current device with its state."""


def random_numbers() -> RandomNumbers:
    """Return the state of torch's generators."""
    return torch.get_rng_state(), _device_random()


def _device_random() -> tuple[int, torch.Tensor] | None:
    """Return the index and the random state of the current device, if a device is in use."""
    api = api_in_use()
    if api is None:
        return None
    index = torch.accelerator.current_device_index()
    return index, api.get_rng_state(index)
