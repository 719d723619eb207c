"""HookManager: calls the hooks, names the plugin in errors, disables observers that raise.

pluggy declares, validates and orders the implementations. This module calls them, because a call
by pluggy cannot name the plugin that raised or returned a wrong value.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import pluggy

from neaptide.api.memory import Ledger
from neaptide.api.timeline import Timeline
from neaptide.errors import ConfigError, PluginError, described, ends, suggest
from neaptide.plugin import PROJECT

from . import hookspecs
from .middleware import blame, compose, returned_wrong

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neaptide.api.phases import Phase
    from neaptide.api.task import Run
    from neaptide.plugin import Plugin, PluginSpec

_SPECS = {name for name, value in vars(hookspecs).items() if hasattr(value, f"{PROJECT}_spec")}
_FIRST = {name for name in _SPECS if getattr(hookspecs, name).neaptide_spec["firstresult"]}
_AROUND = {name for name in _SPECS if name.startswith("around_")}

DEFAULTS = "neaptide"


@attrs.frozen(eq=False)
class _Implementation:
    """The function with which one plugin implements one hook, and its argument names."""

    plugin: str
    hook: str
    function: Callable[..., Any]
    arguments: tuple[str, ...]
    timeline: Timeline

    def __call__(self, given: Mapping[str, Any]) -> Any:
        try:
            arguments = map(given.__getitem__, self.arguments)
            if self.timeline.opener is None or self.plugin == DEFAULTS:
                return self.function(*arguments)
            with self.timeline.open(f"{self.plugin}: {self.hook}", self.plugin):
                return self.function(*arguments)
        except BaseException as error:
            blame(error, None if self.plugin == DEFAULTS else self.plugin, self.hook)
            raise


class _Implementations(pluggy.PluginManager):
    """Reads no attribute of a plugin that only exists in a run. pluggy 1.5 and 1.6 read all."""

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        is_method = callable(getattr(type(plugin), name, None))
        return super().parse_hookimpl_opts(plugin, name) if is_method else None


class HookManager:
    """Stores the enabled plugins in resolved order and calls the plugins' hooks."""

    def __init__(
        self, plugins: Sequence[tuple[PluginSpec, Plugin[Any]]], defaults: object, log: Any
    ) -> None:
        self.plugins = {spec.name: plugin for spec, plugin in plugins}
        self.specs = {spec.name: spec for spec, _ in plugins}
        self._log = log
        self._pluggy = _Implementations(PROJECT)
        self._pluggy.add_hookspecs(hookspecs)
        self._pluggy.register(defaults, DEFAULTS)
        for spec, plugin in reversed(plugins):  # pluggy calls the last registered plugin first
            _check_hooks(spec, plugin)
            self._pluggy.register(plugin, spec.name)
        self.timeline = Timeline(log)
        self._quarantine: set[str] = set()
        self._calls: dict[str, tuple[_Implementation, ...]] = {}
        self._index()

    def _index(self) -> None:
        self._calls = {
            name: tuple(
                _Implementation(
                    impl.plugin_name, name, impl.function, tuple(impl.argnames), self.timeline
                )
                for impl in reversed(getattr(self._pluggy.hook, name).get_hookimpls())
                if impl.plugin_name not in self._quarantine or name == "on_run_end"
            )
            for name in _SPECS
        }

    def implements(self, hook: str) -> bool:
        """Return whether a plugin or the core implements `hook`."""
        return bool(self._calls[hook])

    def left_to_core(self, hook: str) -> bool:
        """Return whether no plugin implements `hook`, so that the core's default is used."""
        return all(call.plugin == DEFAULTS for call in self._calls[hook])

    # -- ways of calling --------------------------------------------------------------------------

    def _collect(
        self, hook: str, check: Callable[[Any, str, str], object] | None, **given: Any
    ) -> Iterator[tuple[str, Any]]:
        for implementation in self._calls[hook]:
            try:
                value = implementation(given)
                if value is not None and check is not None:
                    check(value, implementation.plugin, hook)
            except BaseException as error:
                if not self._quarantined(implementation.plugin, hook, error):
                    raise
                continue
            if value is not None:
                yield implementation.plugin, value

    def notify(self, hook: str, **given: Any) -> None:
        """Call a hook on every plugin; PluginError if an implementation does not return None."""
        for implementation in self._calls[hook]:
            try:
                value = implementation(given)
                if value is not None:
                    _expect(type(None), value, implementation.plugin, hook)
            except BaseException as error:
                if not self._quarantined(implementation.plugin, hook, error):
                    raise

    def ask(self, name: str, method: str, call: Callable[[], Any]) -> Any:
        """Return `call()`, a method of the plugin `name`; {} if it is an observer that raises."""
        try:
            return call()
        except BaseException as error:
            blame(error, name, method)
            if not self._quarantined(name, method, error):
                raise
        return {}

    def first(self, hook: str, expected: Any, **given: Any) -> Any:
        """Return the first result that is not None; PluginError if its type is not `expected`."""
        for implementation in self._calls[hook]:
            value = implementation(given)
            if value is not None:
                return _expect(expected, value, implementation.plugin, hook)
        return None

    def around(self, hook: str, core: Callable[..., Any], run: Run) -> Callable[..., Any]:
        """Return `core` wrapped in the middleware that the plugins return for `hook`."""
        return compose(hook, core, self._collect(hook, None, run=run), self.timeline)

    def _quarantined(self, name: str, hook: str, error: BaseException) -> bool:
        spec = self.specs.get(name)
        if spec is None or not spec.observer or ends(error):
            return False
        if hook == "on_run_start" and isinstance(error, ConfigError):
            return False  # the user must correct settings
        told = {"plugin": name, "hook": hook, "error": f"{described(error):.300}"}
        if name in self._quarantine:
            self._log.info("plugin.teardown_failed", **told)
            return True
        self._log.warning("plugin.quarantined", **told)
        self._quarantine.add(name)  # from now on, only its on_run_end runs
        self._index()
        return True

    # -- hooks whose results the core uses --------------------------------------------------------

    def on_run_end(self, run: Run, error: BaseException | None) -> list[BaseException]:
        """Call `on_run_end` on every plugin in reverse order; return the errors."""
        return self._teardown("on_run_end", run=run, error=error)

    def leave_phase(self, phase: Phase, step: int) -> list[BaseException]:
        """Call `on_phase_exit` on every plugin at the end of the run; return the errors."""
        return self._teardown("on_phase_exit", phase=phase, following=None, step=step)

    def _teardown(self, hook: str, **given: Any) -> list[BaseException]:
        errors: list[BaseException] = []
        for implementation in reversed(self._calls[hook]):
            try:
                implementation(given)
            except BaseException as error:  # noqa: BLE001 - returned, so that the other teardowns run
                if not self._quarantined(implementation.plugin, hook, error):
                    errors.append(error)
        return errors

    def estimate_memory(self, ledger: Ledger, phase: Phase) -> Ledger:
        """Let every plugin change `ledger`, the memory estimate of `phase`; return the result."""
        for implementation in self._calls["estimate_memory"]:
            try:
                value = implementation({"ledger": ledger, "phase": phase})
                ledger = _expect(Ledger, value, implementation.plugin, "estimate_memory")
            except BaseException as error:
                if not self._quarantined(implementation.plugin, "estimate_memory", error):
                    raise
        return ledger

    def collect_metrics(self, step: int, phase: Phase) -> dict[str, float]:
        """Return a dict from `"plugin.name"` to a number: the metrics of all plugins."""
        metrics: dict[str, float] = {}
        for plugin, values in self._collect("collect_metrics", _numbers, step=step, phase=phase):
            metrics.update({f"{plugin}.{name}": value for name, value in values.items()})
        return metrics


def _expect(expected: Any, value: Any, plugin: str, hook: str) -> Any:
    if isinstance(value, expected):
        return value
    kinds = expected if isinstance(expected, tuple) else (expected,)
    raise PluginError(returned_wrong(plugin, hook, kinds, value))


def _numbers(value: Any, plugin: str, hook: str) -> None:
    for name, number in _expect(Mapping, value, plugin, hook).items():
        # Reading a tensor would wait for the device. No float is as large as some integers.
        huge = isinstance(number, int) and number.bit_length() > 1023  # noqa: PLR2004 - of a float
        if huge or not isinstance(number, int | float):
            msg = (
                f"plugin {plugin!r} must return numbers from {hook!r} "
                f"(got {'a huge int' if huge else type(number).__name__} for {name!r}); "
                f"convert a tensor with tensor.item()"
            )
            raise PluginError(msg)


def _check_hooks(spec: PluginSpec, plugin: Plugin[Any]) -> None:
    for name, method in inspect.getmembers(type(plugin), inspect.isroutine):
        marked = getattr(method, f"{PROJECT}_impl", None)
        if marked is None:
            if name in _SPECS:
                msg = f"plugin {spec.name!r}: {name!r} is a hook but lacks the @hookimpl marker"
                raise PluginError(msg)
            continue
        if name not in _SPECS:
            msg = f"plugin {spec.name!r}: there is no hook {name!r}{suggest(name, _SPECS)}"
            raise PluginError(msg)
        if marked["wrapper"] or marked["hookwrapper"]:
            msg = (
                f"plugin {spec.name!r}: {name!r} is a pluggy wrapper; use an around_* hook instead"
            )
            raise PluginError(msg)
        if spec.observer and name in _AROUND | _FIRST:
            msg = f"plugin {spec.name!r} is an observer; it cannot implement {name!r}"
            raise PluginError(msg)
        accepted = set(inspect.signature(getattr(hookspecs, name)).parameters)
        unknown = set(inspect.signature(method).parameters) - {"self"} - accepted
        if unknown:
            wrong = min(unknown)
            msg = (
                f"plugin {spec.name!r}: hook {name!r} has no argument {wrong!r}"
                f"{suggest(wrong, accepted)}; it has {', '.join(sorted(accepted))}"
            )
            raise PluginError(msg)
