"""Composes the middleware of the around hooks; the first plugin's middleware is the outermost."""

from __future__ import annotations

import re
from contextlib import suppress
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from neaptide.api import middleware as protocols
from neaptide.errors import ConfigError, PluginError, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from neaptide.api.timeline import Timeline

_BLAMED = "_neaptide_blamed"


def _returns(protocol: Any) -> tuple[type, ...]:
    hint = get_type_hints(protocol.__call__)["return"]
    return get_args(hint) or (hint,)


RETURNS = {
    re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower(): _returns(protocol)
    for name, protocol in vars(protocols).items()
    if name.startswith("Around")
}
"""The types that a middleware of each hook may return."""


def blame(error: BaseException, plugin: str | None, where: str) -> None:
    """Add a note to `error`: `plugin` raised it in the hook `where`. Later calls change nothing.

    `plugin=None` adds no note. It means that the core or the user's code raised `error`.
    """
    with suppress(Exception):  # a stranger's class may allow no attribute
        if hasattr(error, _BLAMED):
            return
        setattr(error, _BLAMED, plugin)
        named = isinstance(error, ConfigError) and f"plugins.{plugin}" in text_of(error)
        if plugin is not None and not named:
            error.add_note(f"raised by plugin {plugin!r} in hook {where!r}")


def culprit(error: BaseException) -> str | None:
    """Return the plugin that raised `error`, or None."""
    return getattr(error, _BLAMED, None)


def compose(
    where: str,
    core: Callable[..., Any],
    layers: Iterable[tuple[str, Callable[..., Any]]],
    timeline: Timeline,
) -> Callable[..., Any]:
    """Return `core` wrapped in `layers`: functions `layer(next, **arguments)`, outermost first."""
    call = _core(core, where, timeline)
    for plugin, layer in reversed(list(layers)):
        if not callable(layer):
            msg = (
                f"plugin {plugin!r} must return a function f(next, **arguments) or None "
                f"from {where!r} (got {layer!r})"
            )
            raise PluginError(msg)
        call = _layer(layer, call, plugin, where, timeline)
    return call


def _core(core: Callable[..., Any], where: str, timeline: Timeline) -> Callable[..., Any]:
    def call(**arguments: Any) -> Any:
        try:
            if timeline.opener is None:  # skips the cost of an empty context in each step
                return core(**arguments)
            with timeline.open(where, "core"):
                return core(**arguments)
        except BaseException as error:
            blame(error, None, where)
            raise

    return call


def _layer(
    layer: Callable[..., Any],
    inner: Callable[..., Any],
    plugin: str,
    where: str,
    timeline: Timeline,
) -> Callable[..., Any]:
    expected, name = RETURNS[where], f"{plugin}: {where}"

    def call(**arguments: Any) -> Any:
        try:
            if timeline.opener is None:
                value = layer(inner, **arguments)
            else:
                with timeline.open(name, plugin):
                    value = layer(inner, **arguments)
            if not isinstance(value, expected):
                msg = returned_wrong(plugin, where, expected, value)
                raise PluginError(msg)  # noqa: TRY301 - the handler below blames the layer
        except BaseException as error:
            blame(error, plugin, where)
            raise
        return value

    return call


def returned_wrong(plugin: str, where: str, expected: tuple[type, ...], value: object) -> str:
    """Return the error text for a hook that returned the wrong type."""
    names = " or ".join("None" if kind is NoneType else kind.__name__ for kind in expected)
    return f"plugin {plugin!r} must return {names} from {where!r} (got {type(value).__name__})"
