"""Puts the enabled plugins in order and finds all conflicts between them. Imports no torch."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from neaptide.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from neaptide.plugin import PluginSpec


def resolve(
    enabled: Sequence[PluginSpec], installed: Callable[[], Iterable[PluginSpec]] = tuple
) -> list[PluginSpec]:
    """Return `enabled` in the order in which their hooks run; the first plugin is the outermost.

    `before` and `after` in the manifests determine the order. If they allow several orders, the
    order of the config is used. ConfigError lists all problems: two plugins with the same claim, a
    conflict, a missing requirement, a cycle. `installed()` returns the installed manifests. An
    error about a missing requirement names the installed plugins that meet the requirement.
    """
    specs = {spec.name: spec for spec in enabled}
    problems = [
        *_duplicates(enabled),
        *_claimed_twice(enabled),
        *_conflicts(enabled),
        *_missing(enabled, installed),
    ]
    order = _sorted(specs, problems)
    if problems:
        raise ConfigError(*problems)
    return [specs[name] for name in order]


def _duplicates(enabled: Sequence[PluginSpec]) -> Iterable[str]:
    names = [spec.name for spec in enabled]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"plugin {name!r} is enabled twice @ plugins"


def _claimed_twice(enabled: Sequence[PluginSpec]) -> Iterable[str]:
    for claim in sorted({claim for spec in enabled for claim in spec.claims}):
        holders = [spec.name for spec in enabled if claim in spec.claims]
        if len(holders) > 1:
            names = " and ".join(repr(name) for name in holders)
            yield (
                f"{names} both claim {claim!r}; "
                f"keep one (set enabled = false in the other's table) @ plugins"
            )


def _conflicts(enabled: Sequence[PluginSpec]) -> Iterable[str]:
    for spec in enabled:
        for other in enabled:
            clash = spec.conflicts & ({other.name} | other.claims)
            if other is not spec and clash:
                yield (
                    f"{spec.name!r} cannot run beside {other.name!r} "
                    f"(it conflicts with {min(clash)!r}) @ plugins.{spec.name}"
                )


def _missing(
    enabled: Sequence[PluginSpec], installed: Callable[[], Iterable[PluginSpec]]
) -> Iterable[str]:
    present = {name for spec in enabled for name in _provided(spec)}
    for spec in enabled:
        for need in sorted(spec.requires - present):
            remedy = _remedy([each.name for each in installed() if need in _provided(each)])
            yield f"{spec.name!r} requires {need!r}, which nothing provides; {remedy} @ plugins"


def _provided(spec: PluginSpec) -> frozenset[str]:
    return spec.claims | {spec.name}


def _remedy(providers: Sequence[str]) -> str:
    if not providers:
        return "install a plugin that does"
    tables = [f"[plugins.{name}]" for name in sorted(providers)]
    return f"add {tables[0]}" if len(tables) == 1 else f"add one of {', '.join(tables)}"


def _sorted(specs: Mapping[str, PluginSpec], problems: list[str]) -> list[str]:
    rank = {name: index for index, name in enumerate(specs)}
    graph: dict[str, set[str]] = {name: set() for name in specs}
    for name, spec in specs.items():
        for other in spec.after & specs.keys():
            graph[name].add(other)
        for other in spec.before & specs.keys():
            graph[other].add(name)
    sorter = TopologicalSorter(graph)
    try:
        sorter.prepare()
    except CycleError as error:
        cycle = " -> ".join(repr(name) for name in error.args[1])
        problems.append(
            f"the order of plugins is circular: {cycle}; change before or after @ plugins"
        )
        return list(specs)
    order: list[str] = []
    ready: list[str] = list(sorter.get_ready())
    while ready:
        # Take the ready plugin that is first in the config.
        name = min(ready, key=rank.__getitem__)
        ready.remove(name)
        order.append(name)
        sorter.done(name)
        ready.extend(sorter.get_ready())
    return order
