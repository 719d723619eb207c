"""The configuration that a verb's arguments describe."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from neaptide import config as configuration
from neaptide.errors import ConfigError
from neaptide.hooks.registry import (
    DISABLED_VARIABLE,
    disabled_plugins,
    disabled_strangers,
    installed_plugins,
)
from neaptide.plugin import loaded as entries

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from neaptide.config import LoadedConfig, RunConfig
    from neaptide.plugin import PluginSpec

ADVICE_GROUP = "neaptide.advice"
"""The group of entry points `advise(config, ordered)` that yield lines of advice for a run."""

LOG = logging.getLogger(__name__)


def loaded(files: tuple[Path, ...], preset: str | None, sets: list[str] | None) -> LoadedConfig:
    """Return the combined config, and the origin of each setting. Imports no plugin."""
    if not (files or preset or sets):
        msg = "give a configuration file or --preset NAME (see neaptide presets list)"
        raise ConfigError(msg)
    strangers = disabled_strangers()
    if strangers:
        LOG.warning("%s: %s; see neaptide plugins list", DISABLED_VARIABLE, ", ".join(strangers))
    return configuration.load(
        files,
        specs=installed_plugins(),
        preset=preset,
        sets=sets or (),
        environ=os.environ,
        disabled=disabled_plugins(),
    )


def advice(config: RunConfig, ordered: Sequence[PluginSpec]) -> list[str]:
    """Return a line for each setting that is valid, but probably not meant."""
    return [line for advise in entries(ADVICE_GROUP) for line in advise(config, ordered)]
