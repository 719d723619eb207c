"""An op registered with torch: a custom op with a fake kernel, a backward and a FLOP formula."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .spec import OpSpec


class Op:
    """One op, registered with torch. It is called with the arguments of its schema."""

    def __init__(self, spec: OpSpec, dispatch: Callable[[Sequence[Any]], Any]) -> None:
        self.spec = spec
        self.names = spec.names
        """Names of the arguments, in order."""
        self._custom = torch.library.custom_op(
            spec.qualified,
            lambda *arguments: dispatch(spec.complete(arguments)),
            mutates_args=spec.mutates,
            schema=spec.schema(),
        )
        self._custom.register_fake(spec.fake)
        if spec.backward is not None:
            self._custom.register_autograd(spec.backward, setup_context=spec.setup_context)
        self.overload: Any = self._custom._opoverload  # noqa: SLF001 - opcheck and the counter take it
        """`torch.ops.<namespace>.<name>.default`."""
        if spec.flops is not None:
            from torch.utils.flop_counter import register_flop_formula  # noqa: PLC0415 - slow

            register_flop_formula(self.overload.overloadpacket)(spec.flops)

    def __repr__(self) -> str:
        return f"Op({self.spec.qualified!r})"

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Run the op through torch's dispatcher, with the provider that `explain` names."""
        return self._custom(*arguments, **named)
