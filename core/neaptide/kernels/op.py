"""An op as torch sees it: a custom op with fake, autograd and FLOP formulas."""

from __future__ import annotations

from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.flop_counter import register_flop_formula

from .spec import argument_names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .spec import OpSpec


class Op:
    """One op, registered with torch; call it with tensors as its schema says."""

    def __init__(self, spec: OpSpec, dispatch: Callable[[Sequence[Any]], Any]) -> None:
        self.spec = spec
        self._custom = torch.library.custom_op(
            spec.qualified,
            lambda *arguments: dispatch(self.complete(arguments)),
            mutates_args=spec.mutates,
            schema=spec.schema(),
        )
        self._custom.register_fake(spec.fake)
        if spec.backward is not None:
            self._custom.register_autograd(spec.backward, setup_context=spec.setup_context)
        self.overload: Any = self._custom._opoverload  # noqa: SLF001 - opcheck and the counter take it
        """`torch.ops.<namespace>.<name>.default`."""
        self.names = argument_names(self.overload)
        """The arguments, in order."""
        taken = signature(spec.reference).parameters
        self._defaults = {name: taken[name].default for name in self.names}
        if spec.flops is not None:
            register_flop_formula(self.overload.overloadpacket)(spec.flops)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Run the op through torch's dispatcher, by the provider that `explain` names."""
        return self._custom(*arguments, **named)

    def complete(self, arguments: Sequence[Any]) -> list[Any]:
        """Return all arguments by position: those given, then the reference's defaults."""
        # The schema holds a default dtype as a number.
        left_out = [self._defaults[name] for name in self.names[len(arguments) :]]
        missing = [
            name
            for name, value in zip(self.names[len(arguments) :], left_out, strict=True)
            if value is Parameter.empty
        ]
        if missing:
            msg = f"{self.spec.qualified} needs {', '.join(missing)}"
            raise TypeError(msg)
        return [*arguments, *left_out]
