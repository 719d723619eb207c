"""The plugin that adds the provider to a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

import neaptide_kernels.int8  # noqa: F401 - defines the op
from neaptide import NoConfig, Plugin, hookimpl

from .provider import PROVIDER

if TYPE_CHECKING:
    from neaptide.api.kernels import KernelScope


@attrs.define(eq=False)
class ExampleKernel(Plugin[NoConfig]):
    """Registers the provider; it has no other effect."""

    @hookimpl
    def register_kernels(self, kernels: KernelScope) -> None:
        """Register the provider for the duration of the run."""
        kernels.add(PROVIDER)
