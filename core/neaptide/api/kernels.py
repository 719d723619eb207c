"""KernelScope: the interface through which the core and plugins use the kernel registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

KERNEL_GROUP = "neaptide.kernels"
"""The entry-point group of the kernel registry: a function that opens a `KernelScope`."""


class KernelScope(Protocol):
    """Adds providers (implementations) of ops for one run; the argument of `register_kernels`."""

    @property
    def ops(self) -> Mapping[str, Any]:
        """The ops that this process knows, by name."""

    def add(self, provider: Any) -> None:
        """Add a provider; ValueError if the op is unknown or has a provider with this name."""

    def use(self, *, tuning: Any = None, **providers: str) -> None:
        """Require a provider (`op="provider"`), or set how timings choose providers (`tuning`)."""

    def close(self) -> None:
        """Undo everything that `add` and `use` did."""
