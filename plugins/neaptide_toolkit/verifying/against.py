"""Another configuration of the same training, in the place of the one without plugins."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.config import unstructure
from neaptide.config.tables import at, leaves
from neaptide.errors import ConfigError, NeaptideError

from .bisecting import guilty, guilty_settings
from .checks import says
from .differences import first
from .runs import Runs, TrainerMaker
from .stacks import Stack, prepared
from .value import VerifyFinding
from .watching import Wish

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .bisecting import Names
    from .differences import Difference
    from .watching import Watched

_FREE = ("run", "plugins", "eval", "train.device", "train.threads")
"""Settings that do not change what is computed, or that are compared by themselves."""


def compared(stack: Stack, against: Any, make: TrainerMaker) -> Runs:
    """Return the runs of the other configuration.

    Raises:
        ConfigError: the two are not the same training, so they cannot have the same bits.
    """
    named = against.get("plugins", {}) if isinstance(against, dict) else {}
    given = [spec for name, spec in stack.specs.items() if name in named]
    other = prepared(against, stack.config.train.steps, given)
    one, two = (_flat(unstructure(each.config)) for each in (stack, other))
    unlike = sorted(key for key in one.keys() | two.keys() if one.get(key) != two.get(key))
    if unlike:
        key = unlike[0]
        msg = (
            f"the two configurations train otherwise: {key} is {one.get(key)!r} and "
            f"{two.get(key)!r}; make them equal, or compare each with plain @ --against"
        )
        raise ConfigError(msg)
    for name in sorted(stack.specs.keys() | other.specs.keys()):
        spec = stack.specs.get(name) or other.specs[name]
        same = stack.config.plugins.get(name) == other.config.plugins.get(name)
        if spec.numerics != "exact" and not same:
            msg = (
                f"plugin {name!r} is not exact ({spec.numerics}), and the two configurations "
                f"differ in it; give it the same settings in both @ --against"
            )
            raise ConfigError(msg)
    return Runs(other, make)


_OUTSIDE = ("train.device", "train.threads")
"""Settings of no plugin that may differ."""
_EXPECTED = "the other configuration has other bits"


@attrs.frozen(eq=False)
class Changes:
    """What differs between two configurations of the same training: each can be made alone.

    A change has the name of its plugin, which is added, left out or set otherwise, or of a setting.
    """

    ours: Runs
    other: Runs
    _known: dict[Names, Runs] = attrs.field(factory=dict, init=False)

    @property
    def every(self) -> list[str]:
        """The names of all changes."""
        ours, other = (each.stack.config for each in (self.ours, self.other))
        names = dict.fromkeys([*self.ours.stack.specs, *self.other.stack.specs])
        plugins = [name for name in names if ours.plugins.get(name) != other.plugins.get(name)]
        return [*plugins, *(one for one in _OUTSIDE if _set(ours, one) != _set(other, one))]

    def closed(self, names: Iterable[str]) -> Names:
        """Return the changes with the plugins that they need, as far as those are changes."""
        needed = self.ours.stack.closed(set(names) & self.ours.stack.specs.keys())
        return frozenset(names) | (needed & frozenset(self.every))

    def can_be(self, names: Iterable[str]) -> bool:
        """Return whether the other configuration can have these changes without the rest."""
        stack = self._runs(frozenset(names)).stack
        try:
            stack.with_only(stack.specs)
        except NeaptideError:
            return False
        return True

    def differs(
        self, names: Names, settings: Mapping[str, Any] | None = None, *, until: int | None = None
    ) -> Difference | None:
        """Return the first difference that these changes make."""
        if not names:
            return None
        return first(self._reference(Wish()), self._of(names, Wish(until=until), settings))

    def findings(self, found: Difference) -> list[VerifyFinding]:
        """Return what makes `found`, the smallest sets of changes first."""
        until = None if found.step is None else max(1, found.step)
        differs = partial(self.differs, until=until)
        told = []
        for names in guilty(self, frozenset(), self.every, differs):
            seen = self._by_how_much(names, differs(names) or found)
            own = tuple(name for name in self.every if name in names)
            plugins = tuple(name for name in own if name not in _OUTSIDE)
            settings = (*self._settings(own), *self._added(names, differs))
            told.append(VerifyFinding("training", plugins, seen, settings, says(seen, _EXPECTED)))
        return told

    def _added(self, names: Names, differs: Any) -> tuple[str, ...]:
        added = names & (self.ours.stack.specs.keys() - self.other.stack.specs.keys())
        return guilty_settings(self.ours.stack, added, names, differs)

    def _settings(self, names: Iterable[str]) -> Iterable[str]:
        """Return what is set otherwise, as far as it is guilty."""
        ours, other = (each.stack.config for each in (self.ours, self.other))
        for name in names:
            if name in _OUTSIDE:
                yield f"{name} = {_set(ours, name)!r} (the other has {_set(other, name)!r})"
            elif name not in ours.plugins:
                yield f"{name} left out, which the other has"
            elif name in other.plugins:
                yield from self._set_otherwise(name, frozenset(names))

    def _set_otherwise(self, name: str, names: Names) -> Iterable[str]:
        one, two = (each.stack.config.plugins[name] for each in (self.ours, self.other))
        for field in attrs.fields(type(one)):
            mine, its = (getattr(each, field.name) for each in (one, two))
            if not field.init or mine == its:
                continue
            try:
                seen = self.differs(names, {name: attrs.evolve(one, **{field.alias: its})})
            except (NeaptideError, TypeError, ValueError):
                continue  # it cannot be changed alone
            if seen is None:
                yield f"{name}.{field.alias} = {mine!r} (the other has {its!r})"

    def _by_how_much(self, names: Names, seen: Difference) -> Difference:
        step = seen.step
        keep = frozenset() if step is None else frozenset({step})
        until = None if step is None else max(1, step)
        wish = Wish(keep=keep, keep_traces=step is None, until=until)
        again = first(self._reference(wish), self._of(names, wish))
        return again if again is not None and again.step == step else seen

    def _reference(self, wish: Wish) -> Watched:
        return self.other.of(self.other.stack.specs, wish)

    def _of(self, names: Names, wish: Wish, settings: Mapping[str, Any] | None = None) -> Watched:
        runs = self._runs(names)
        return runs.of(runs.stack.specs, wish, settings)

    def _runs(self, names: Names) -> Runs:
        if names == frozenset(self.every):
            return self.ours
        if names not in self._known:
            self._known[names] = Runs(self._stack(names), self.ours.make)
        return self._known[names]

    def _stack(self, names: Names) -> Stack:
        ours, other = self.ours.stack, self.other.stack
        chosen = {}
        for name in dict.fromkeys([*ours.specs, *other.specs]):
            source = ours if name in names else other
            if name in source.specs:
                chosen[name] = source
        train = other.config.train
        for name in names & {*_OUTSIDE}:
            train = attrs.evolve(train, **{name.partition(".")[2]: _set(ours.config, name)})
        plugins = {name: source.config.plugins[name] for name, source in chosen.items()}
        return Stack(
            attrs.evolve(other.config, plugins=plugins, train=train),
            {name: source.specs[name] for name, source in chosen.items()},
        )


def _set(config: Any, path: str) -> Any:
    return getattr(config.train, path.partition(".")[2])


def _flat(table: Any) -> dict[str, Any]:
    found = {".".join(map(str, path)): at(table, path) for path in leaves(table)}
    return {
        name: value
        for name, value in found.items()
        if not any(name == free or name.startswith(f"{free}.") for free in _FREE)
    }
