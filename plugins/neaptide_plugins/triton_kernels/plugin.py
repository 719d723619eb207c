"""Registers the Triton providers of Neaptide's ops for a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import torch

from neaptide import ConfigError, Finding, Plugin, hookimpl
from neaptide_kernels.catalogue import triton_providers
from neaptide_kernels.registry import KernelError
from neaptide_toolkit.machine.devices import lacks

from .config import TritonKernelsConfig

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neaptide import Run
    from neaptide_kernels.registry import KernelScope


@attrs.define(eq=False)
class TritonKernels(Plugin[TritonKernelsConfig]):
    """Adds Triton providers of ops; `neaptide kernels explain` shows the provider of each call."""

    @hookimpl
    def register_kernels(self, kernels: KernelScope) -> None:
        """Add the Triton kernels, and set the configured provider of each op."""
        for provider in triton_providers():
            kernels.add(provider)
        try:
            kernels.use(tuning=self.config.tuning, **self.config.providers)
        except KernelError as error:
            msg = f"{error} @ plugins.triton-kernels.providers"
            raise ConfigError(msg) from error

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        """If Triton cannot run, log a warning that other implementations run instead."""
        reason = lacks(run.device, "Triton")
        if reason:
            run.log.warning("triton_kernels.not_used", reason=reason)

    @hookimpl
    def diagnose(self) -> Iterable[Finding]:
        """Report whether Triton can run here."""
        kind = torch.accelerator.current_accelerator(check_available=True)
        problem = lacks(kind or torch.device("cpu"), "Triton")
        if not problem:
            yield Finding("ok", "Triton", "its kernels run here")
        else:
            reason, _, command = problem.partition(": ")
            yield Finding("note", "Triton", reason, command or None)
