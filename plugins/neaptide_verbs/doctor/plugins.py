"""The findings on installed plugins: whether each one can be used, and what it reports."""

from __future__ import annotations

import re
from shlex import quote
from threading import Thread
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.api.records import Finding
from neaptide.errors import ConfigError, NeaptideError, PluginError, described, text_of
from neaptide.hooks.registry import (
    DISABLED_VARIABLE,
    disabled_plugins,
    installed_plugins,
    load_class,
)

from .requirements import missing_needs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from neaptide.hooks.registry import Installed
    from neaptide.plugin import PluginSpec

PATIENCE = 30.0
"""Seconds within which a plugin must be imported and return its findings."""

_INSTALLING = re.compile(r"""pip install (?:"[^"]+"|'[^']+'|[^\s,;]+)""")


def findings(*, manifests_only: bool = False, patience: float = PATIENCE) -> Iterator[Finding]:
    """Yield the findings on every installed plugin, sorted by the plugins' names.

    The finding on a plugin is followed by the findings that this plugin returns itself. If torch is
    missing, the plugins' classes cannot be imported, and only their manifests are read.
    """
    blocked = disabled_plugins()
    for found in installed_plugins().installed.values():
        if found.rival is not None:
            yield _shipped_twice(found, found.rival)
        elif found.spec is None:
            yield _broken(found, found.problem or "")
        elif found.name in blocked:
            detail = f"{found.distribution}, blocked by {DISABLED_VARIABLE}"
            yield Finding("note", found.name, detail)
        elif manifests_only:
            detail = f"{found.distribution}, manifest only: a dependency of its class is missing"
            yield Finding("note", found.name, detail)
        else:
            yield from _tried(found, found.spec, patience)


def _tried(found: Installed, spec: PluginSpec, patience: float) -> Iterable[Finding]:
    """Import the plugin and call its `diagnose` in a thread. A thread that hangs is abandoned."""
    answers: list[tuple[Finding, ...]] = []
    thread = Thread(target=lambda: answers.append(_heard(found, spec)), daemon=True)
    thread.start()
    thread.join(patience)
    if answers:
        return answers[0]
    detail = f"{found.distribution} did not answer within {patience:g} s"
    return (Finding("error", found.name, detail, _without(found)),)


def _heard(found: Installed, spec: PluginSpec) -> tuple[Finding, ...]:
    from neaptide.hooks.manager import HookManager  # noqa: PLC0415 - it imports torch

    try:
        try:
            plugin = load_class(spec)(spec.config())
        except ConfigError as error:  # the plugin works; the error states its requirements
            return (_lacking(found, error),)
        HookManager([(spec, plugin)], defaults=object(), log=None)  # checks the hooks' names
    except BaseException as error:  # noqa: BLE001 - a third party's code may raise anything
        return (_broken(found, _said(error)),)
    usable = Finding("ok", found.name, found.distribution)
    try:
        own = _findings(found.name, plugin)
    except BaseException as error:  # noqa: BLE001 - as above
        problem = f"{found.distribution}: its diagnose failed: {_said(error)}"
        return usable, Finding("error", found.name, problem, _without(found))
    return usable, *(attrs.evolve(one, what=f"{found.name}: {one.what}") for one in own)


def _findings(name: str, plugin: Any) -> list[Finding]:
    from neaptide.hooks.middleware import returned_wrong  # noqa: PLC0415 - it imports torch

    found: list[Any] = list(getattr(plugin, "diagnose", list)() or ())
    for one in found:
        if not isinstance(one, Finding):
            msg = returned_wrong(name, "diagnose", (Finding,), one)
            raise PluginError(msg)
    return found


def _lacking(found: Installed, error: ConfigError) -> Finding:
    problem = _said(error)
    command = _INSTALLING.search(problem)
    detail = f"{found.distribution} cannot run yet: {problem}"
    return Finding("note", found.name, detail, command[0] if command else None)


def _shipped_twice(found: Installed, rival: str) -> Finding:
    names = [shipper.split()[0] for shipper in (found.distribution, rival)]
    others = [name for name in names if name != "neaptide"]
    advice = f"pip uninstall {others[0]}" if others else "pip install --force-reinstall neaptide"
    return Finding("error", found.name, found.problem or "", advice)


def _broken(found: Installed, problem: str) -> Finding:
    name, *_ = found.distribution.split()
    problem = problem.removeprefix(f"plugin {found.name!r}: ")
    missing = missing_needs(name)
    if missing:
        advice = f"pip install {' '.join(map(quote, missing))}"
        problem = f"{problem}; it needs {', '.join(missing)}"
    elif " raised " in problem:  # an import failed: a file may be missing
        advice = f"pip install --force-reinstall {name}"
    else:
        advice = f"pip install --upgrade {name}"
    return Finding("error", found.name, f"{found.distribution} is broken: {problem}", advice)


def _without(found: Installed) -> str:
    return f"export {DISABLED_VARIABLE}={found.name}"


def _said(error: BaseException) -> str:
    if isinstance(error, NeaptideError):
        return " ".join(text_of(error).split())
    return described(error)
