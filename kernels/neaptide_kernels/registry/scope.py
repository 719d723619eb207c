"""The providers that the plugins of a run add, and that are removed when the run ends."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .op import Op
    from .provider import Provider
    from .registry import Kernels
    from .requests import Tuning


class KernelScope:
    """The argument of the hook `register_kernels`; it adds providers for the duration of a run."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._stack = ExitStack()

    @property
    def ops(self) -> Mapping[str, Op]:
        """The ops of this process by name."""
        return self._kernels.ops

    def add(self, provider: Provider) -> None:
        """Add a provider; ValueError if the op is unknown or has another provider of that name."""
        self._kernels.add(provider)
        self._stack.callback(self._kernels.remove, provider)

    def use(self, *, tuning: Tuning | None = None, **providers: str) -> None:
        """Request providers by op, or a tuning mode; see `Kernels.using`."""
        self._stack.enter_context(self._kernels.using(tuning=tuning, **providers))

    def close(self) -> None:
        """Remove all providers and requests made through this scope."""
        self._stack.close()
