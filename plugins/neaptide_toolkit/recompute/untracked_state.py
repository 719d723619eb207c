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

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Attributes = tuple[dict[str, Any], list[str], dict[str, Any]]

_OWN = frozenset(
    [*vars(nn.Module()), "forward", "_compiled_call_impl", "_is_full_backward_hook"]
) - {"training"}
"""Names of a module's attributes that belong to torch or to a patch, except `training`."""

_MERSENNE = struct.Struct("=2496si")
"""The memory of numpy's MT19937 generator: 624 numbers of 32 bits, and the place of the next."""


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

    attributes: list[Attributes]
    """For each module: its `__dict__`, all keys of it, and a copy of the content without what is in
    `_OWN`. Lists, dicts, sets are copied."""
    random: RandomState
    moved: bool = True
    """False if the call has left the generators as they were, so that its repetition does so."""

    @classmethod
    def now(cls, parts: Iterable[nn.Module]) -> UntrackedState:
        """Return a copy of the current state of a block with the modules `parts`."""
        attributes = []
        for part in parts:
            live = vars(part)
            copied = {
                key: one.copy() if type(one) in _COPIED else one
                for key, one in live.items()
                if key not in _OWN
            }
            attributes.append((live, [*live], copied))
        return cls(attributes, RandomState.now())

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Set this state while the context is open; afterwards set back the earlier state.

        What is the same is not set: to set takes longer than to compare.
        """
        same: list[Attributes] = []
        changed: list[Attributes] = []
        for each in self.attributes:
            (same if _is_same(*each) else changed).append(each)
        live = [({**held}, held) for held, _, _ in changed]
        before = RandomState.now()
        other = not before.equals(self.random)
        try:
            _bring_back(changed)
            if other:
                self.random.bring_back()
            yield
        finally:
            for earlier, held in live:
                _put(held, {key: one for key, one in earlier.items() if key not in _OWN})
            _bring_back(each for each in same if not _is_same(*each))
            if other or self.moved:
                before.bring_back()

    def bring_back(self) -> None:
        """Restore this state."""
        _bring_back(self.attributes)
        self.random.bring_back()


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
    return value.copy() if type(value) in _COPIED else value


_COPIED = frozenset({list, dict, set})


def _is_same(live: dict[str, Any], keys: list[str], wanted: dict[str, Any]) -> bool:
    """Return whether `live` is as it was when it was copied. Of a list it is not known."""
    if [*live] != keys:
        return False
    for key, value in wanted.items():
        if live[key] is not value or type(value) in _COPIED:
            return False
    return True


def _bring_back(attributes: Iterable[Attributes]) -> None:
    for held, _, before in attributes:
        _put(held, {key: _held(value) for key, value in before.items()})


def _put(live: dict[str, Any], wanted: dict[str, Any]) -> None:
    for key in live.keys() - wanted.keys() - _OWN:
        del live[key]
    live.update(wanted)
