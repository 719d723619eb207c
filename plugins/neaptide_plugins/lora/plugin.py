"""The plugin: adds the adapters before the optimizer is built, and saves them at the end."""

from __future__ import annotations

import logging
import math
from importlib import import_module
from typing import TYPE_CHECKING

import attrs

from neaptide import ConfigError, Plugin, hookimpl
from neaptide.errors import described

from .config import SPEC, LoraSettings
from .optimizers import train_instead

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import nn

    from neaptide import ParameterStore, Run

    from .adapters import AddedAdapters

_WHERE = f"@ plugins.{SPEC.name}"


@attrs.define(eq=False)
class Lora(Plugin[LoraSettings]):
    """Trains adapters in place of the model's weights."""

    _added: AddedAdapters | None = attrs.field(init=False, default=None)
    _begun: bool = attrs.field(init=False, default=False)
    _store: ParameterStore = attrs.field(init=False)
    _give_back: Callable[[], None] | None = attrs.field(init=False, default=None)

    @hookimpl(tryfirst=True)
    def convert_model(self, model: nn.Module) -> None:
        """Freeze the model and add the adapters."""
        _check_installed("peft", "lora", _WHERE)
        if self.config.base == "nf4":
            _check_installed("bitsandbytes", "qlora", f"{_WHERE}.base")
        else:  # peft imports bitsandbytes, which misses a kernel for 4 bits on some CPUs
            logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
        from .adapters import add_adapters  # noqa: PLC0415 - it needs peft

        try:
            self._added = add_adapters(model, self.config)
        except ValueError as error:
            msg = f"{error} {_WHERE}"
            raise ConfigError(msg) from error

    @hookimpl(tryfirst=True)
    def provide_parameters(self, optimizer: torch.optim.Optimizer) -> None:
        """Give an optimizer that was built over the model's own weights the adapters instead."""
        try:
            self._give_back = train_instead(optimizer, self._adapters.parameters)
        except ValueError as error:
            msg = f"{error} {_WHERE}"
            raise ConfigError(msg) from error

    @hookimpl
    def on_run_start(self, run: Run, store: ParameterStore) -> None:
        """Log how much trains."""
        self._begun, self._store = True, store
        sizes = [(math.prod(span.shape), span.trainable) for span in store.spans()]
        run.log.info(
            "lora.started",
            trained=sum(size for size, trains in sizes if trains),
            of=sum(size for size, _ in sizes),
            held=self._adapters.held,
        )

    @hookimpl
    def on_run_end(self, run: Run) -> None:
        """Save the adapter in the run directory; remove it if it is merged, or if no run began."""
        if self._added is None:
            return
        try:
            folder = run.plugin_folder(SPEC.name) if self._begun else None
            if folder is not None:
                for name, content in self._added.files(self._store).items():
                    folder.replace(name, content)
        finally:
            if self.config.merge or not self._begun:
                self._added.remove(merge=self._begun)
                if self._give_back is not None:
                    self._give_back()

    @property
    def _adapters(self) -> AddedAdapters:
        assert self._added is not None, "the model was converted"
        return self._added


def _check_installed(module: str, extra: str, where: str) -> None:
    try:
        import_module(module)
    except ImportError as error:
        msg = f'{described(error)}: pip install "neaptide[{extra}]" {where}'
        raise ConfigError(msg) from error
