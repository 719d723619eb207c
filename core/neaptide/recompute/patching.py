"""Standing in for a module's forward, and leaving without a trace."""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


class Patch:
    """Calls something else in place of `module.forward` from `apply` on, until `remove`.

    A deep copy of the module, made meanwhile, runs its own class's forward on itself.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.forward: Callable[..., Any] = module.forward
        """What the module had before."""
        self._call: Callable[..., Any] = self.forward

    def apply(self, call: Callable[..., Any]) -> None:
        """Let `call` answer from here on."""
        self._call = call
        self.module.__dict__["forward"] = self

    def remove(self) -> None:
        """Put back the forward as it was."""
        if isinstance(self.forward, MethodType) and self.forward.__self__ is self.module:
            self.module.__dict__.pop("forward", None)
        else:
            self.module.__dict__["forward"] = self.forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer in place of the module's forward."""
        return self._call(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        module = memo[id(self.module)]
        return MethodType(type(module).forward, module)
