"""Finds the plugins that a config enables, and sorts these plugins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from neaptide import config as configs
from neaptide.config import RunConfig, structure_options
from neaptide.errors import ConfigError, suggest
from neaptide.plugin import PluginSpec

from .registry import disabled_plugins, installed_plugins
from .resolve import resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

DYNAMICS = "dynamics"
"""The claim (exclusive resource) of plugins that implement `forecast`."""
PLACEMENT = "device.placement"
PREDICTOR = "predictor"
"""The claim (exclusive resource) of plugins that implement `propose_update`."""


def configured(
    config: RunConfig | Mapping[str, Any] | str | Path | None,
    plugins: Iterable[str | PluginSpec] = (),
) -> tuple[RunConfig, list[PluginSpec]]:
    """Return the complete config and the manifests of the enabled plugins in resolved order.

    `plugins` are names or manifests of further plugins to enable. Plugins that build the model,
    data or optimizer are also enabled. Raises ConfigError or PluginError with all problems.
    """
    if isinstance(plugins, str | PluginSpec):
        msg = f"plugins must be a list of names or manifests, such as ['ema'] (got {plugins!r})"
        raise TypeError(msg)
    given = list(plugins)
    specs = _Known(_by_name(entry for entry in given if isinstance(entry, PluginSpec)))
    loaded = _load(config, specs)
    blocked = disabled_plugins()
    enabled = dict(loaded.plugins)
    for entry in given:
        name = entry.name if isinstance(entry, PluginSpec) else entry
        if name not in enabled:
            single = configs.structure({"plugins": {name: {}}}, specs, disabled=blocked)
            enabled.update(single.plugins)
    for kind in ("model", "data", "optimizer"):
        section = getattr(loaded, kind)
        builder = _builder(kind, section.name, section.options, [specs[name] for name in enabled])
        if builder is not None and builder.name not in enabled:
            enabled[builder.name] = builder.config()
    ordered = resolve(
        [specs[name] for name in enabled], lambda: installed_plugins().usable().values()
    )
    _check_prediction(loaded, ordered)
    settings = {spec.name: enabled[spec.name] for spec in ordered}
    return attrs.evolve(loaded, plugins=settings), ordered


def _by_name(specs: Iterable[PluginSpec]) -> dict[str, PluginSpec]:
    found: dict[str, PluginSpec] = {}
    for spec in specs:
        if found.setdefault(spec.name, spec) != spec:
            loads = f"{found[spec.name].load!r} and {spec.load!r}"
            msg = f"two given manifests have the name {spec.name!r} ({loads}); rename one @ plugins"
            raise ConfigError(msg)
    return found


def split_name(name: str, enabled: Iterable[PluginSpec] = ()) -> tuple[str, str]:
    """Split `"builtin:byte-gpt"` into scheme and name; `package.module:factory` has no scheme.

    The part before the colon is a scheme if an installed or `enabled` plugin builds this scheme. It
    is also a scheme if the part after the colon is not a Python name.
    """
    scheme, colon, rest = name.partition(":")
    known = {
        entry.partition(":")[2]
        for spec in (*installed_plugins().usable().values(), *enabled)
        for entry in spec.schemes
    }
    if colon and (scheme in known or not rest.replace(".", "_").isidentifier()):
        return scheme, rest
    return "", name


class _Known(dict[str, PluginSpec]):
    """The given and the installed manifests. A broken manifest raises only when it is read."""

    def __missing__(self, name: str) -> PluginSpec:
        return installed_plugins()[name]

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in installed_plugins()

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*super().__iter__(), *installed_plugins()]))


def _load(config: Any, specs: Mapping[str, PluginSpec]) -> RunConfig:
    if config is None:
        return RunConfig()
    if isinstance(config, RunConfig):
        return config
    if isinstance(config, str | Path):
        return configs.load([config], specs=specs, disabled=disabled_plugins()).config
    return configs.structure(config, specs, disabled=disabled_plugins())


def _builder(
    kind: str, name: str, options: Mapping[str, Any], enabled: Sequence[PluginSpec]
) -> PluginSpec | None:
    """Check `options`; return the plugin that builds the model, data or optimizer, or None."""
    is_optimizer = kind == "optimizer"
    scheme, rest = (name, name) if is_optimizer else split_name(name, enabled)
    wanted = f"{kind}:{scheme}"
    held = [spec for spec in enabled if wanted in spec.schemes]
    usable = installed_plugins().usable().values()
    of_torch = is_optimizer and not any(wanted in spec.schemes for spec in (*held, *usable))
    if not scheme or of_torch:
        return None
    builder = held[0] if held else installed_plugins().for_scheme(wanted, f"{kind}.name")
    prefix = f"{kind}:"
    known = [key.removeprefix(prefix) for key in builder.options if key.startswith(prefix)]
    rest = "*" if "*" in known else rest
    if known and rest not in known and not is_optimizer:
        msg = (
            f"{builder.name!r} has no {kind} {rest!r}{suggest(rest, known)}; there is "
            f"{', '.join(sorted(known))} @ {kind}.name"
        )
        raise ConfigError(msg)
    if rest in known:
        structure_options(builder.options[prefix + rest], options, kind, "options")
    return builder


def _check_prediction(config: RunConfig, ordered: Sequence[PluginSpec]) -> None:
    forecasts = any(DYNAMICS in spec.claims for spec in ordered)
    if config.phases.predict.confidence is not None and not forecasts:
        msg = (
            f"confidence needs a dynamics model, and no enabled plugin claims {DYNAMICS!r}; "
            f"remove the setting or enable such a plugin @ phases.predict.confidence"
        )
        raise ConfigError(msg)
