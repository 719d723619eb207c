"""State of a block that is not in tensors: attributes, and Python's and numpy's random state."""

from __future__ import annotations

import random
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator

_OWN = frozenset(
    [*vars(nn.Module()), "forward", "_compiled_call_impl", "_is_full_backward_hook"]
) - {"training"}
"""Names of a module's attributes that belong to torch or to streaming, except `training`."""


@attrs.frozen(eq=False)
class UntrackedState:
    """A copy of the attributes of a block's modules and of Python's and numpy's random state."""

    attributes: list[tuple[dict[str, Any], dict[str, Any]]]
    """For each module: its `__dict__`, and a copy of the content. Lists, dicts, sets are copied."""
    rng_state: Any
    numpy_rng_state: Any

    @classmethod
    def now(cls, module: nn.Module) -> UntrackedState:
        """Return a copy of the current state."""
        attributes = []
        for part in module.modules():
            live = vars(part)
            attributes.append((live, {key: _held(live[key]) for key in live.keys() - _OWN}))
        numpy = sys.modules.get("numpy.random")
        return cls(attributes, random.getstate(), None if numpy is None else numpy.get_state())

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Set this state while the context is open; afterwards set back the earlier state."""
        live = [({**held}, held) for held, _ in self.attributes]
        rng_state, numpy = random.getstate(), sys.modules.get("numpy.random")
        numpy_rng_state = None if numpy is None else numpy.get_state()
        try:
            self.bring_back()
            yield
        finally:
            for before, held in live:
                _put(held, {key: before[key] for key in before.keys() - _OWN})
            random.setstate(rng_state)
            if numpy is not None:
                numpy.set_state(numpy_rng_state)

    def bring_back(self) -> None:
        """Restore this state."""
        for held, before in self.attributes:
            _put(held, {key: _held(value) for key, value in before.items()})
        random.setstate(self.rng_state)
        numpy = sys.modules.get("numpy.random")
        if numpy is not None and self.numpy_rng_state is not None:
            numpy.set_state(self.numpy_rng_state)


def _held(value: Any) -> Any:
    return value.copy() if type(value) in (list, dict, set) else value


def _put(live: dict[str, Any], wanted: dict[str, Any]) -> None:
    for key in live.keys() - wanted.keys() - _OWN:
        del live[key]
    live.update(wanted)
