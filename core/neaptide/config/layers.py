"""Reads and merges layers (settings from a preset, file, environment variable or `--set`)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from neaptide.config import presets, toml
from neaptide.config.formats import by_suffix, read_text
from neaptide.config.tables import leaves, nested, overlay
from neaptide.config.values import TOO_DEEP, dotted, shown, too_deep
from neaptide.errors import ConfigError
from neaptide.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from neaptide.config.values import KeyPath

ENV_PREFIX = "NEAPTIDE__"

T = TypeVar("T")

_KEY = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_SETTING = re.compile(rf"\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*=(.*)", re.DOTALL)


@attrs.frozen
class Layer:
    """A nested table of settings from one origin, such as `base.toml`."""

    origin: str
    values: dict[str, Any]


def merge(layers: Iterable[Layer]) -> tuple[dict[str, Any], dict[str, str]]:
    """Merge the layers. A later value replaces an earlier value; tables are merged key by key.

    Returns the merged table, and a dict from the dotted path of each value to its origin. Raises
    ConfigError if a layer nests deeper than `values.MAX_DEPTH`.
    """
    values: dict[str, Any] = {}
    origins: dict[KeyPath, str] = {}
    for layer in layers:
        if too_deep(layer.values):
            msg = f"{TOO_DEEP} @ {layer.origin}"
            raise ConfigError(msg)
        values = overlay(values, layer.values)
        origins.update(dict.fromkeys(leaves(layer.values), layer.origin))
    # Drop the paths of replaced values: a table may have replaced a value, or a value a table.
    return values, {dotted(path): origins[path] for path in leaves(values)}


def from_preset(name: str) -> Layer:
    """Read a preset; raise ConfigError for an unknown name."""
    return Layer(f"preset {name}", toml.parse(presets.text(name)))


def from_files(paths: Iterable[str | Path]) -> list[Layer]:
    """Read each file as a layer; raise ConfigError with one line per unusable file."""
    return _layers(_from_file, paths)


def from_env(environ: Mapping[str, str], plugins: Iterable[str] = ()) -> list[Layer]:
    """Read environment variables such as `NEAPTIDE__TRAIN__STEPS=100` as layers, sorted by name.

    Two underscores separate keys, and keys become lower case. `plugins` are the names of plugins.
    In these names an underscore can stand for a hyphen: `NEAPTIDE__PLUGINS__LAYER_DROP__RATE` sets
    `plugins.layer-drop.rate`.
    """
    by_variable = {name.replace("-", "_"): name for name in plugins}

    def read(variable: str) -> Layer:
        keys = variable.removeprefix(ENV_PREFIX).lower().split("__")
        if not all(keys):
            msg = (
                f"expected keys joined by two underscores, such as {ENV_PREFIX}TRAIN__STEPS "
                f"(got {shown(variable)})"
            )
            raise ConfigError(msg)
        if keys[0] == "plugins" and len(keys) > 1:
            keys[1] = by_variable.get(keys[1], keys[1])
        values = nested(keys, toml.parse_value(environ[variable]))
        return Layer(visible(variable, kept=""), values)

    return _layers(read, sorted(name for name in environ if name.startswith(ENV_PREFIX)))


def from_sets(settings: Iterable[str]) -> list[Layer]:
    """Read each `--set` argument such as `train.steps=100` as a layer; keys may be quoted."""
    return _layers(lambda setting: Layer("--set", _setting(setting)), settings)


def _layers(read: Callable[[T], Layer], sources: Iterable[T]) -> list[Layer]:
    """Read every source. If there are problems, raise one ConfigError with all of them."""
    layers: list[Layer] = []
    problems: list[str] = []
    for source in sources:
        try:
            layers.append(read(source))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)
    return layers


def _from_file(path: str | Path) -> Layer:
    name = visible(str(path), kept="")
    try:
        text = read_text(path)
        table = by_suffix(Path(path)).parse(text)
    except ConfigError as error:
        raise ConfigError(*(f"{problem} @ {name}" for problem in error.problems)) from error
    # `$schema` names the JSON Schema for editors; it is not a setting.
    if isinstance(table.get("$schema"), str):
        table = {key: value for key, value in table.items() if key != "$schema"}
    return Layer(name, table)


def _setting(text: str) -> dict[str, Any]:
    match = _SETTING.fullmatch(text)
    if match is None:
        msg = f"expected key=value, such as train.steps=100 (got {shown(text)}) @ --set"
        raise ConfigError(msg)
    key, value = match.groups()
    try:
        table = toml.parse(f"{key} = 0")
    except ConfigError as error:
        msg = f"expected a key such as train.steps (got {shown(key)}) @ --set"
        raise ConfigError(msg) from error
    (path,) = leaves(table)
    return nested([str(part) for part in path], toml.parse_value(value))
