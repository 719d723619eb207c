"""Loads a configuration from all sources and records the origin of each value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide.config.convert import plugin_preset, structure, unstructure
from neaptide.config.layers import from_env, from_files, from_preset, from_sets, merge
from neaptide.config.tables import leaves
from neaptide.config.values import dotted
from neaptide.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from neaptide.config.schema import RunConfig
    from neaptide.plugin import PluginSpec


@attrs.frozen
class LoadedConfig:
    """A configuration, and a dict from the dotted path of each value to its origin."""

    config: RunConfig
    origins: Mapping[str, str]

    __repr__ = one_line


def load(
    files: Iterable[str | Path] = (),
    *,
    specs: Mapping[str, PluginSpec],
    preset: str | None = None,
    sets: Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
    disabled: frozenset[str] = frozenset(),
) -> LoadedConfig:
    """Combine the settings from all sources and check the result.

    Values of a later source replace values of an earlier source. The order of the sources is:
    defaults, preset, files in their order, environment, `sets`.

    `specs` maps names to installed plugins. `sets` are settings such as `train.steps=100`. In
    `environ` only environment variables such as `NEAPTIDE__TRAIN__STEPS` are read. Plugins named in
    `disabled` are not enabled. Raises ConfigError. If files, environment variables or `sets` cannot
    be read, the error text lists the problems of all sources of this kind. If every source can be
    read, the error text lists all problems of the combined configuration.
    """
    layers = [] if preset is None else [from_preset(preset)]
    layers += from_files(files)
    layers += from_env(environ or {}, specs)
    layers += from_sets(sets)
    values, origins = merge(layers)
    # If there is a single source, messages do not name it.
    named = origins if len(layers) > 1 else None
    config = structure(values, specs, disabled=disabled, origins=named)
    explicit = _preset_origins(config, values.get("plugins", {}), specs) | origins
    effective = map(dotted, leaves(unstructure(config)))
    return LoadedConfig(config, {path: explicit.get(path, "default") for path in effective})


def _preset_origins(
    config: RunConfig, tables: Mapping[str, Any], specs: Mapping[str, PluginSpec]
) -> dict[str, str]:
    return {
        dotted(("plugins", name, *path)): f"preset {tables[name]['preset']} of plugin {name}"
        for name in config.plugins
        for path in leaves(plugin_preset(name, tables.get(name), specs))
    }
