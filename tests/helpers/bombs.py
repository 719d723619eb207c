"""Plugins with a bomb: at the n-th call of a hook they raise an error, or do something else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support import plugin_with, stranger

from neaptide import hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import PluginSpec

DYNAMICS = {"forecast": {"claims": {"dynamics"}}, "propose_update": {"claims": {"predictor"}}}


class Bomb:
    """Raises `load` at the n-th call, once, or calls it if it is no error."""

    def __init__(self, at: int, load: BaseException | Callable[[], None]) -> None:
        self._left, self.load = at, load

    def tick(self) -> None:
        self._left -= 1
        if self._left == 0:
            if isinstance(self.load, BaseException):
                raise self.load
            self.load()

    @property
    def went_off(self) -> bool:
        return self._left <= 0


def bombed(hook: str, bomb: Bomb, **manifest: Any) -> PluginSpec:
    """Return a plugin whose `hook` ticks, in its middleware where it returns one."""

    def plain(self: Any) -> None:
        bomb.tick()

    def wrapping(self: Any) -> Any:
        def middleware(following: Any, **arguments: Any) -> Any:
            value = following(**arguments)
            bomb.tick()
            return value

        return middleware

    def folding(self: Any, ledger: Any) -> Any:
        bomb.tick()
        return ledger

    implementation: Any = wrapping if hook.startswith("around_") else plain
    implementation = folding if hook == "estimate_memory" else implementation
    implementation.__name__ = hook
    cls = plugin_with(**{hook: hookimpl(implementation)})
    return stranger(cls, "bomb", **DYNAMICS.get(hook, {}), **manifest)
