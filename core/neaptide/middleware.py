"""Composes the around hooks: plain functions `f(next, **arguments)`, outermost plugin first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_BLAMED = "_neaptide_blamed"


def blame(error: BaseException, plugin: str | None, where: str) -> None:
    """Note once, on the innermost culprit, that `error` came out of `plugin` in hook `where`.

    With `plugin` None the error is the core's or the user's own: nobody further out is blamed.
    """
    if hasattr(error, _BLAMED):
        return
    setattr(error, _BLAMED, plugin)
    if plugin is not None:
        error.add_note(f"raised by plugin {plugin!r} in hook {where!r}")


def culprit(error: BaseException) -> str | None:
    """Return the plugin `error` was blamed on, if any."""
    return getattr(error, _BLAMED, None)


def compose(
    where: str,
    core: Callable[..., Any],
    layers: Iterable[tuple[str, Callable[..., Any]]],
) -> Callable[..., Any]:
    """Return `core` wrapped in `layers`; the first layer is the outermost.

    Each layer is called as `layer(next, **arguments)` and may change the arguments, call `next`
    never, once or again, and return something of the same type.
    """
    call = _guarded(core, None, where)
    for plugin, layer in reversed(list(layers)):
        if not callable(layer):
            msg = (
                f"plugin {plugin!r} must return a function f(next, **arguments) or None "
                f"from {where!r} (got {layer!r})"
            )
            raise PluginError(msg)
        call = _layer(layer, call, plugin, where)
    return call


def _layer(
    layer: Callable[..., Any], inner: Callable[..., Any], plugin: str, where: str
) -> Callable[..., Any]:
    def call(**arguments: Any) -> Any:
        return layer(inner, **arguments)

    return _guarded(call, plugin, where)


def _guarded(call: Callable[..., Any], plugin: str | None, where: str) -> Callable[..., Any]:
    def guarded(**arguments: Any) -> Any:
        try:
            return call(**arguments)
        except BaseException as error:
            blame(error, plugin, where)
            raise

    return guarded
