"""`nn.Parameter.data` as a Python property that tells of each use, as long as blocks stream."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol
from weakref import finalize, ref

import torch
from torch import nn

from .adoption import DATA

if TYPE_CHECKING:
    from collections.abc import Iterator


class Listens(Protocol):
    """Is told of each use of `.data`."""

    def read(self, parameter: nn.Parameter) -> torch.Tensor | None:
        """Return what a read of `.data` gives; None for the parameter's own tensor."""

    def will_set(self, parameter: nn.Parameter) -> None:
        """Be told that `.data` of a parameter is set next."""


_listeners: list[ref[Listens]] = []


class _TellingData:
    def __get__(self, parameter: nn.Parameter | None, owner: type | None = None) -> Any:
        if parameter is None:
            return DATA
        for listener in _listening():
            found = listener.read(parameter)
            if found is not None:
                return found
        return DATA.__get__(parameter)

    def __set__(self, parameter: nn.Parameter, value: torch.Tensor) -> None:
        for listener in _listening():
            listener.will_set(parameter)
        DATA.__set__(parameter, value)


def _listening() -> Iterator[Listens]:
    return (found for one in tuple(_listeners) if (found := one()) is not None)


def listen(listener: Listens) -> None:
    """Tell `listener` of `.data` until `leave`, or until it is garbage-collected."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()  # code that is compiled now would tell this listener nothing
    _listeners.append(ref(listener))
    nn.Parameter.data = _TellingData()  # type: ignore[assignment]
    finalize(listener, leave).atexit = False


def leave(listener: Listens | None = None) -> None:
    """Tell `listener` nothing any more; the last one leaves the class as it was."""
    left = [one for one in _listeners if one() is not None and one() is not listener]
    _listeners[:] = left
    if not left and isinstance(vars(nn.Parameter).get("data"), _TellingData):
        del nn.Parameter.data
