"""Replace a module's forward, and restore the original exactly."""

from __future__ import annotations

import operator
from functools import wraps
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch

from neaptide.text import brief, called

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


def eager(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a replaced forward: in a model that is compiled as a whole, it runs eagerly."""

    @wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(method)(*args, **kwargs)  # type: ignore[no-untyped-call]  # torch leaves it so
        return method(*args, **kwargs)

    return called


class Patch:
    """Replaces `module.forward` from the call of `apply` until the call of `remove`.

    A deep copy of the patched module is not patched: it runs the forward of the module's class. If
    the module was compiled in place (`module.compile()`), `forward` runs the compiled module.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._own: Callable[..., Any] = module.forward
        self._compiled: Callable[..., Any] | None = module._compiled_call_impl
        self._call: Callable[..., Any] = self.forward

    def __repr__(self) -> str:
        return called(self, brief(self.module), brief(self._call))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module's original forward, or the compiled module if there is one."""
        if self._compiled is None:
            return self._own(*args, **kwargs)
        self._put_back()  # compilation of the module's call needs the module's own forward
        try:
            return self._compiled(*args, **kwargs)
        finally:
            self.module.__dict__["forward"] = self

    def apply(self, call: Callable[..., Any]) -> None:
        """From now on, call `call` instead of the module's forward."""
        self._call = call
        if self._compiled is not None:
            self.module._compiled_call_impl = None
        self.module.__dict__["forward"] = self

    def remove(self) -> None:
        """Restore the original forward."""
        if self._compiled is not None:
            self.module._compiled_call_impl = self._compiled
        self._put_back()

    def _put_back(self) -> None:
        if isinstance(self._own, MethodType) and self._own.__self__ is self.module:
            self.module.__dict__.pop("forward", None)
        else:
            self.module.__dict__["forward"] = self._own

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the replacement."""
        return self._call(*args, **kwargs)

    def __reduce__(self) -> Any:
        # A pickled module has its own forward, and can be loaded without this package.
        return operator.getitem, ((self._own,), 0)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        module = memo[id(self.module)]
        return MethodType(type(module).forward, module)
