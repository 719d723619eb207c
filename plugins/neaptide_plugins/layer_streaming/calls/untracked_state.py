"""State of a block that is not in tensors: attributes, and Python's and numpy's random state."""

from __future__ import annotations

import ctypes
import pickle
import random
import struct
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
from torch import nn

from neaptide_toolkit.recompute import parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_OWN = frozenset(
    [*vars(nn.Module()), "forward", "_compiled_call_impl", "_is_full_backward_hook"]
) - {"training"}
"""Names of a module's attributes that belong to torch or to streaming, except `training`."""

_MERSENNE = struct.Struct("=2496si")
"""The memory of an MT19937 generator: 624 numbers of 32 bits, and the place of the next."""


@attrs.frozen(eq=False)
class RandomState:
    """The state of Python's generator and, if numpy is loaded, of numpy's global generator."""

    of_python: Any
    of_numpy: Any

    @classmethod
    def now(cls) -> RandomState:
        """Return a copy of the current state."""
        numpy = sys.modules.get("numpy.random")
        return cls(random.getstate(), None if numpy is None else _state_of(numpy))

    def equals(self, other: RandomState) -> bool:
        """Return whether both states are the same."""
        if self.of_python != other.of_python:
            return False
        same = self.of_numpy is other.of_numpy
        return same or pickle.dumps(self.of_numpy) == pickle.dumps(other.of_numpy)

    def bring_back(self) -> None:
        """Restore this state."""
        random.setstate(self.of_python)
        numpy = sys.modules.get("numpy.random")
        if numpy is not None and self.of_numpy is not None:
            numpy.set_state(self.of_numpy)


@attrs.define(eq=False)
class UntrackedState:
    """A copy of the attributes of a block's modules and of Python's and numpy's random state."""

    attributes: list[tuple[dict[str, Any], dict[str, Any]]]
    """For each module: its `__dict__`, and a copy of the content. Lists, dicts, sets are copied."""
    random: RandomState
    moved: bool = True
    """False if the call has left the generators as they were, so that its repetition does so."""

    @classmethod
    def now(cls, module: nn.Module) -> UntrackedState:
        """Return a copy of the current state."""
        attributes = []
        for part in parts_of(module):
            live = vars(part)
            copied = {key: _held(one) for key, one in live.items() if key not in _OWN}
            attributes.append((live, copied))
        return cls(attributes, RandomState.now())

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Set this state while the context is open; afterwards set back the earlier state.

        Generators are set only if it changes them: to set takes longer than to compare.
        """
        live = [({**held}, held) for held, _ in self.attributes]
        before = RandomState.now()
        other = not before.equals(self.random)
        try:
            self._bring_attributes_back()
            if other:
                self.random.bring_back()
            yield
        finally:
            for earlier, held in live:
                _put(held, {key: one for key, one in earlier.items() if key not in _OWN})
            if other or self.moved:
                before.bring_back()

    def bring_back(self) -> None:
        """Restore this state."""
        self._bring_attributes_back()
        self.random.bring_back()

    def _bring_attributes_back(self) -> None:
        for held, before in self.attributes:
            _put(held, {key: _held(value) for key, value in before.items()})


def learn_moves(states: Sequence[UntrackedState]) -> None:
    """After a call whose pieces began with `states`, note whether each piece moved a generator."""
    now = RandomState.now()
    ends = [*(state.random for state in states[1:]), now]
    for state, end in zip(states, ends, strict=True):
        state.moved = not state.random.equals(end)


_LAST: dict[bytes, Any] = {}
"""The state of numpy's generator that was copied last, by its bytes."""


def _state_of(numpy: Any) -> Any:
    """Return the state of numpy's global generator, the same object while it does not change.

    To compare the generator's memory takes a fortieth of the time of a copy. A generator that
    holds a second normal number is always copied: the number is not in that memory.
    """
    generator = numpy.get_bit_generator()
    if type(generator) is not numpy.MT19937:
        return numpy.get_state(legacy=False)
    now = ctypes.string_at(generator.ctypes.state_address, _MERSENNE.size)
    state = _LAST.get(now)
    if state is None:
        state = numpy.get_state()
        _LAST.clear()
        if not state[3]:
            _LAST[_MERSENNE.pack(state[1].tobytes(), state[2])] = state
    return state


def _held(value: Any) -> Any:
    return value.copy() if type(value) in (list, dict, set) else value


def _put(live: dict[str, Any], wanted: dict[str, Any]) -> None:
    for key in live.keys() - wanted.keys() - _OWN:
        del live[key]
    live.update(wanted)
