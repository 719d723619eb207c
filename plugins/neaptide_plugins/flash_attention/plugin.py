"""Connects the replaced calls of attention to the hooks of a run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import attrs

from neaptide import ConfigError, Plugin, hookimpl
from neaptide_kernels.attention import TRITON
from neaptide_kernels.registry import KernelError

from .config import SPEC, FlashAttentionConfig
from .functional import replaced
from .tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from neaptide import AroundBackward, AroundForward, AroundTrainStep, Run
    from neaptide_kernels.registry import KernelScope

    from .interface import Interfaces


@attrs.define(eq=False)
class FlashAttention(Plugin[FlashAttentionConfig]):
    """Computes the attention of models by the ops `attention` and `attention_backward`."""

    _tally: Tally = attrs.field(init=False, factory=Tally)
    _interfaces: Interfaces | None = attrs.field(init=False, default=None)
    _said: bool = attrs.field(init=False, default=False)

    @hookimpl
    def register_kernels(self, kernels: KernelScope) -> None:
        """Add the Triton kernels of attention, and request the configured provider."""
        for provider in TRITON:
            kernels.add(provider)
        name = self.config.provider
        if name == "auto":
            return
        try:
            kernels.use(attention=name, attention_backward=name)
        except KernelError as error:
            msg = f"{error} @ plugins.{SPEC.name}.provider"
            raise ConfigError(msg) from error

    @hookimpl
    def on_run_start(self, run: Run, model: nn.Module) -> None:
        """Make models of transformers use the op; log which ones do not."""
        if "transformers" not in sys.modules:
            return  # then no part of the model is one of its models
        from .interface import Interfaces  # noqa: PLC0415 - it needs transformers

        self._interfaces = Interfaces(self._tally)
        left = self._interfaces.replace(model)
        if left:
            run.log.info("flash_attention.models_left", **left)

    @hookimpl
    def around_train_step(self, run: Run) -> AroundTrainStep:
        """After the first step, log how many calls were replaced, and which ones were not."""

        def step(following: Callable[..., Any], **arguments: Any) -> Any:
            result = following(**arguments)
            if not self._said:
                self._said = True
                tally = self._tally
                whole = tally.replaced and not tally.left
                log = run.log.info if whole else run.log.warning
                log("flash_attention.calls", replaced=tally.replaced, left=tally.reasons or "none")
            return result

        return step

    @hookimpl
    def around_forward(self) -> AroundForward:
        """Replace torch's attention during forwards."""
        return self._replacing

    @hookimpl
    def around_backward(self) -> AroundBackward:
        """Replace torch's attention in forwards that a backward computes again."""
        return self._replacing

    @hookimpl
    def on_run_end(self) -> None:
        """Give models of transformers their own attention back."""
        if self._interfaces is not None:
            self._interfaces.restore()
            self._interfaces = None

    def report(self) -> str | None:
        """Return one line with the numbers of calls that were replaced and that were not."""
        tally = self._tally
        if not tally.replaced and not tally.left:
            return None
        dense = f" ({tally.dense} with a mask of all scores)" if tally.dense else ""
        left = tally.reasons or "none"
        return f"calls of attention: {tally.replaced} replaced{dense}; left: {left}"

    def _replacing(self, following: Callable[..., Any], **arguments: Any) -> Any:
        with replaced(self._tally):
            return following(**arguments)
