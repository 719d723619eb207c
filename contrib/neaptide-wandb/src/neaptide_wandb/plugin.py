"""Checks the account before training, and opens a run of W&B at the first step."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from neaptide import ConfigError
from neaptide_toolkit.loggers import LoggerPlugin, WrittenPoints, check_installed, settings_of

from .config import WandbConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import Run
    from neaptide_toolkit.loggers import LogSink

_WAY_OUT = 'or set plugins.wandb.mode = "offline" @ plugins.wandb.mode'


@attrs.define(eq=False)
class WandbPlugin(LoggerPlugin[WandbConfig]):
    """An observer."""

    def __attrs_post_init__(self) -> None:
        """Raise ConfigError if the package wandb is missing."""
        check_installed("wandb", "neaptide-wandb", "wandb")

    def prepare(self, run: Run) -> Callable[[], LogSink] | None:
        """Check that W&B knows the user, unless it is offline; return what opens its run."""
        import wandb  # noqa: PLC0415 - it may be missing, and takes a second

        mode = self.config.mode or wandb.setup().settings.mode
        if self.config.dir is not None:
            _check_directory(Path(self.config.dir))
        if mode in ("online", "shared", "run"):
            _check_account()

        def opened() -> LogSink:
            from .sink import WandbSink  # noqa: PLC0415 - as above

            folder = run.plugin_folder("wandb")
            directory = self.config.dir or (str(folder.path) if folder is not None else None)
            name = self.config.name or (run.directory.name if run.directory is not None else None)
            settings = attrs.evolve(self.config, mode=mode, dir=directory, name=name)
            return WandbSink(WrittenPoints(folder, run.log), settings, settings_of(run))

        return opened


def _check_directory(path: Path) -> None:
    """Raise ConfigError if W&B cannot write there: it would write to /tmp instead."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        writable = os.access(path, os.W_OK | os.X_OK)
    except OSError:
        writable = False
    if not writable:
        msg = f"W&B cannot write to {path}; name another directory @ plugins.wandb.dir"
        raise ConfigError(msg)


def _check_account() -> None:
    """Raise ConfigError if there is no API key, or W&B refuses it. Never asks for one."""
    import wandb  # noqa: PLC0415 - it may be missing

    try:
        known = wandb.login(prompt=False, verify=True)
    except wandb.errors.Error as error:
        msg = f"W&B: {' '.join(str(error).split())}; run `wandb login`, {_WAY_OUT}"
        raise ConfigError(msg) from error
    if not known:
        msg = f"W&B has no API key; run `wandb login`, set WANDB_API_KEY, {_WAY_OUT}"
        raise ConfigError(msg)
