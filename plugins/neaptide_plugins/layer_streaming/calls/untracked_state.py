"""What a block depends on that no tensor shows: attributes, Python's and numpy's rng state."""

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
"""What torch and the streaming itself keep in a module, its mode aside."""


@attrs.frozen(eq=False)
class UntrackedState:
    """Attributes of a block's modules and the state of Python's and numpy's generators."""

    attributes: list[tuple[dict[str, Any], dict[str, Any]]]
    """Each module's `__dict__`, and what was in it; containers as copies."""
    rng_state: Any
    numpy_rng_state: Any

    @classmethod
    def now(cls, module: nn.Module) -> UntrackedState:
        """Note them as they are."""
        attributes = []
        for part in module.modules():
            live = vars(part)
            attributes.append((live, {key: _held(live[key]) for key in live.keys() - _OWN}))
        numpy = sys.modules.get("numpy.random")
        return cls(attributes, random.getstate(), None if numpy is None else numpy.get_state())

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Bring them back meanwhile, and leave everything as it was."""
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
        """Set everything as it was."""
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
