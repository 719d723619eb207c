"""Adds the provider to a run."""

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
    """Wiring only."""

    @hookimpl
    def register_kernels(self, kernels: KernelScope) -> None:
        """Add it for the length of the run."""
        kernels.add(PROVIDER)
