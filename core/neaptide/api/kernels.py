"""What `register_kernels` is given. The core knows no more of kernels than this."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

KERNEL_GROUP = "neaptide.kernels"
"""Entry-point group of the registry: a function that opens a `KernelScope`."""


class KernelScope(Protocol):
    """A way to add providers of ops for the length of a run."""

    @property
    def ops(self) -> Mapping[str, Any]:
        """The ops of this process by name."""

    def add(self, provider: Any) -> None:
        """Add a provider; ValueError where the op is unknown or has another one of that name."""

    def use(self, *, tuning: Any = None, **providers: str) -> None:
        """Ask for providers by op, or for a way to tune."""

    def close(self) -> None:
        """Take everything back."""
