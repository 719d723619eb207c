"""Discards the state on eviction. The next update is then like the update of a new optimizer."""

from __future__ import annotations

import copy
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from neaptide_toolkit.offload import tensors_in
from neaptide_toolkit.tensors import tensor_bytes

from .accounting import Room
from .restart import Restart, made_again, remembered, tried

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from neaptide import ParameterStore, Span
    from neaptide.api.spans import SharedStorage


class DroppedState:
    """Discards the state of parameters, including their step counts.

    An optimizer that creates its state in its first update creates the state again. State that
    exists before the first update, and step counts in parameter groups, are reset to their initial
    values.

    Args:
        store: the store, with an optimizer of any class. If the class cannot step without its
            state, the constructor raises ValueError, in one line.
        spans: the parameters whose state may be discarded.
    """

    readable = False

    def __init__(self, store: ParameterStore, spans: Collection[Span]) -> None:
        self.left: Mapping[str, int] = {}
        self.note: str | None = None
        self.error: float | None = None
        self._store = store
        self._gone: list[Span] = []
        self._end: Callable[[], None] | None = None
        self._initial: dict[str, Any] = {}
        self._settings: list[dict[str, tuple[bool, Any]]] = []
        """For each parameter group and each counted setting: whether it existed, and its value."""
        optimizer = store.optimizer
        mine = {store.parameters[span.name]: span for span in spans}
        with ExitStack() as loans:
            lent: dict[torch.Tensor, dict[str, Any]] = {
                each: loans.enter_context(store.loan(span, "read", of="state"))
                for each, span in mine.items()
            }
            first = {each: state for each, state in lent.items() if state}
            for number, group in enumerate(optimizer.param_groups):
                own = [each for each in group["params"] if each in mine]
                restart = tried(optimizer, group, first) if own else Restart()
                if restart.counted and len(own) < len(group["params"]):
                    msg = (
                        f"{type(optimizer).__name__} counts steps in {min(restart.counted)!r} of "
                        f"parameter group {number}, but only some of its parameters would lose "
                        f"their state; use 'cpu'"
                    )
                    raise ValueError(msg)
                if restart.needs_state:
                    self._initial |= {
                        mine[each].name: remembered(first[each]) for each in own if each in first
                    }
                self._settings.append(
                    {key: (key in group, copy.deepcopy(group.get(key))) for key in restart.counted}
                )

    @property
    def is_away(self) -> bool:
        """True if state was discarded and `finish` has not been called since."""
        return bool(self._gone)

    def leave(self, store: ParameterStore, spans: Collection[Span]) -> None:
        """Discard the state of `spans`."""
        self._gone = []
        for span in spans:
            with store.loan(span, "write", of="state") as state:
                if state:
                    self._gone.append(span)
                    state.clear()
        if not self._gone:
            return
        # No tensor is evicted, but the store now calls `give_back` before any use of the state.
        self._end = store.evict([], of="state", refuge=self)
        for group, settings in zip(store.optimizer.param_groups, self._settings, strict=False):
            for key, (was_there, value) in settings.items():
                if was_there:
                    group[key] = copy.deepcopy(value)
                else:
                    group.pop(key, None)

    def begin(self) -> None:
        """Do nothing: there is nothing to copy."""

    def take(self, storages: list[SharedStorage]) -> None:
        """Do nothing: the state is discarded already."""

    def give_back(self) -> None:
        """Restore the part of the initial state that the optimizer does not create in its step."""
        for span in self._gone:
            if span.name in self._initial:
                with self._store.loan(span, "write", of="state") as state:
                    if not state:
                        state.update(made_again(self._initial[span.name]))
        self._gone = []

    def finish(self) -> None:
        """Make the store end the eviction."""
        if self._end is not None:
            self._end()
            self._end = None

    def close(self) -> None:
        """Do nothing: there is no thread and no memory to free."""

    def room(self, store: ParameterStore, spans: Collection[Span]) -> Room:
        """Return the bytes that would be discarded."""
        leaves = 0
        for span in spans:
            with store.loan(span, "read", of="state") as state:
                device = store.parameters[span.name].device
                leaves += tensor_bytes(
                    tensor
                    for tensor in tensors_in(state)
                    if tensor.layout is torch.strided and tensor.device == device
                )
        return Room(leaves=leaves)
