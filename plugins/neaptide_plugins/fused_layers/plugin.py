"""The plugin: replaces layers of the model for the time of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from neaptide import Plugin, hookimpl
from neaptide_kernels.liger import LIGER, liger_version

from .config import FusedLayersConfig
from .replacing import Replacements

if TYPE_CHECKING:
    from collections import Counter

    from torch import nn

    from neaptide import Run
    from neaptide_kernels.registry import KernelScope


@attrs.define(eq=False)
class FusedLayers(Plugin[FusedLayersConfig]):
    """Computes norms, gated MLPs and rotary embeddings by ops that keep fewer activations."""

    _replaced: Replacements | None = attrs.field(init=False, default=None)

    @hookimpl
    def register_kernels(self, kernels: KernelScope) -> None:
        """Add the providers of Liger, if it is installed."""
        if liger_version() is not None:
            for provider in LIGER:
                kernels.add(provider)

    @hookimpl
    def convert_model(self, model: nn.Module) -> None:
        """Replace the forwards of the layers."""
        self._replaced = Replacements(self.config.layers, self.config.min_elements)
        self._replaced.attach(model)

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        """Log what is replaced, and what is not."""
        done = self._replaced
        assert done is not None, "the model was converted"
        run.log.info("fused-layers.started", replaced=_counted(done.replaced) or "nothing")
        if done.left or not done.replaced:
            left = _counted(done.left) or "no layer is of a kind that can be replaced"
            run.log.warning("fused-layers.not_replaced", left=left)

    @hookimpl
    def on_run_end(self) -> None:
        """Restore the forwards."""
        if self._replaced is not None:
            self._replaced.detach()

    def report(self) -> str | None:
        """Return one line with the layers that are replaced, and those that are not."""
        if self._replaced is None:
            return None
        text = f"replaced: {_counted(self._replaced.replaced) or 'nothing'}"
        left = _counted(self._replaced.left)
        return f"{text}; not replaced: {left}" if left else text


def _counted(layers: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in layers.items())
