"""The user's own calls of a model, each as a forward of a `SteppedRun`."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn

    from .pieces import SteppedRun


class UserCalls:
    """While open, each outermost call of one of `modules` is a forward of `pieces`.

    With gradients it is the forward of a step, and else that of an evaluation. `finish` is called
    with each result, inside.
    """

    def __init__(
        self,
        pieces: SteppedRun,
        modules: Iterable[nn.Module],
        finish: Callable[[Any], Any] | None = None,
    ) -> None:
        self._pieces = pieces
        self._finish = finish
        self._inside = False
        self._patched: list[tuple[nn.Module, _Forward, Any]] = []
        for module in modules:
            before = vars(module).get("forward")
            patch = _Forward(module.forward, self)
            module.forward = patch
            self._patched.append((module, patch, before))

    def close(self) -> None:
        """Give the modules their own forwards back."""
        for module, patch, before in self._patched:
            if vars(module).get("forward") is not patch:
                continue  # somebody has wrapped it since
            if before is None:
                del module.forward
            else:
                module.forward = before
        self._patched.clear()

    def call(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return `forward(*args, **kwargs)`, inside the middleware unless a call is under way."""

        def run() -> Any:
            result = forward(*args, **kwargs)
            return result if self._finish is None else self._finish(result)

        return forward(*args, **kwargs) if self._inside else self.within(kwargs or args, run)

    def within(self, batch: Any, run: Callable[[], Any]) -> Any:
        """Return `run()`, which calls modules: all these calls are one forward."""
        if self._inside:
            return run()
        self._inside = True
        try:
            if torch.is_grad_enabled():
                return self._pieces.forward(batch, run)
            return self._pieces.evaluated(batch, run, lambda _: None)
        finally:
            self._inside = False


class _Forward:
    """A forward of a module that goes to `UserCalls`; a copy of the module gets its own one."""

    def __init__(self, inner: Callable[..., Any], calls: UserCalls) -> None:
        functools.update_wrapper(self, inner)  # callers look at the signature
        self._inner, self._calls = inner, calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._calls.call(self._inner, args, kwargs)

    def __deepcopy__(self, memo: Any) -> Any:
        return copy.deepcopy(self._inner, memo)

    def __reduce__(self) -> Any:
        return self._inner.__reduce__()
