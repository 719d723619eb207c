"""State that is given up when it leaves, so that the optimizer begins anew with its next update."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from neaptide.api.memory import tensor_bytes

from .restarting import Restart, made_again, remembered, tried
from .state_tensors import Room, is_on, tensors_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .state_tensors import State


class Dropped:
    """Forgets the state of parameters, step counts with it, and gives the first one back.

    A class that makes its state in the first update does so again. What a class has made before
    that, or counts in its groups, becomes what it was when this object was made.

    Args:
        optimizer: any; ValueError, in one line, where it does not step again without its state.
        parameters: those whose state may be forgotten.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]
    ) -> None:
        self.left: Mapping[str, int] = {}
        self.note: str | None = None
        self.error: float | None = None
        self._optimizer = optimizer
        self._gone: list[torch.Tensor] = []
        self._initial: dict[torch.Tensor, Any] = {}
        self._settings: list[dict[str, tuple[bool, Any]]] = []
        """Of each group: whether a setting was there, and its value."""
        mine = set(parameters)
        first = {each: optimizer.state[each] for each in parameters if each in optimizer.state}
        for number, group in enumerate(optimizer.param_groups):
            own = [each for each in group["params"] if each in mine]
            restart = tried(optimizer, group, first) if own else Restart()
            if restart.counted and len(own) < len(group["params"]):
                msg = (
                    f"{type(optimizer).__name__} counts in {min(restart.counted)!r} of parameter "
                    f"group {number}, of which only a part would be forgotten; use 'cpu'"
                )
                raise ValueError(msg)
            if restart.needs_state:
                self._initial |= {each: remembered(first[each]) for each in own if each in first}
            self._settings.append(
                {key: (key in group, copy.deepcopy(group.get(key))) for key in restart.counted}
            )

    @property
    def is_away(self) -> bool:
        """Whether state was forgotten and `finish` has not been called since."""
        return bool(self._gone)

    def leave(self, state: State) -> None:
        """Forget the entries of the parameters, whatever they hold."""
        self._gone = [each for each in state.parameters if self._optimizer.state.get(each)]
        for parameter in self._gone:
            del self._optimizer.state[parameter]
        if not self._gone:
            return
        for group, settings in zip(self._optimizer.param_groups, self._settings, strict=False):
            for key, (was_there, value) in settings.items():
                if was_there:
                    group[key] = copy.deepcopy(value)
                else:
                    group.pop(key, None)

    def begin(self) -> None:
        """Do nothing: there is nothing to bring."""

    def finish(self) -> None:
        """Give back the state that the class does not make itself."""
        for parameter in self._gone:
            if parameter in self._initial and not self._optimizer.state.get(parameter):
                self._optimizer.state[parameter] = made_again(self._initial[parameter])
        self._gone = []

    def close(self) -> None:
        """Do nothing: no memory is kept."""

    def room(self, state: State) -> Room:
        """Return what would be given up."""
        leaves = tensor_bytes(
            tensor
            for tensor in tensors_in(state.entries)
            if tensor.layout is torch.strided and is_on(tensor.device, state.device)
        )
        return Room(leaves=leaves)
