"""A plugin has a manifest, a config class and optional state. The manifest needs no torch.

Distributions ship plugins, verbs (subcommands), presets and converters as entry points. `shipped`
returns these entry points.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_args

import attrs
import pluggy

from neaptide.errors import PluginError, described
from neaptide.renamed import missing_in
from neaptide.text import called

if TYPE_CHECKING:
    from collections.abc import Iterator

ENTRY_POINT_GROUP = "neaptide.plugins"
PROJECT = "neaptide"

hookimpl = pluggy.HookimplMarker(PROJECT)

Numerics = Literal["exact", "tolerance", "changes-training"]


def _names(names: Iterable[str]) -> frozenset[str]:
    found: Any = list(names) if isinstance(names, Iterable) and not isinstance(names, str) else None
    if found is None or not all(isinstance(name, str) for name in found):
        return names  # type: ignore[return-value]  # `_FORMS` refuses it
    return frozenset(found)


def _dict_of(kind: type) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, dict) and all(isinstance(one, kind) for one in v.values())


_NAME = re.compile(r"[a-z][a-z0-9-]*").fullmatch
_FORMS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "name": (lambda v: isinstance(v, str) and _NAME(v), "small letters, digits and hyphens"),
    "load": (lambda value: isinstance(value, str), "a string"),
    "config": (lambda value: isinstance(value, type), "a class"),
    "summary": (lambda value: isinstance(value, str), "a string"),
    "version": (lambda value: type(value) is int, "a whole number"),
    "options": (_dict_of(type), "a dict of classes"),
    "search_space": (
        lambda v: isinstance(v, tuple) and all(isinstance(one, dict) for one in v),
        "a tuple of dicts",
    ),
    "dry_run": (lambda value: isinstance(value, dict), "a dict"),
    "presets": (_dict_of(dict), "a dict of dicts"),
    "converts": (_dict_of(str), "a dict of strings"),
    "numerics": (lambda v: v in get_args(Numerics), f"one of {', '.join(get_args(Numerics))}"),
    "rtol": (lambda value: type(value) in (int, float), "a number"),
    "observer": (lambda value: isinstance(value, bool), "True or False"),
}
_NAMES = (lambda value: isinstance(value, frozenset), "a set of names")


@attrs.frozen(kw_only=True)
class NoConfig:
    """The config of a plugin that has no settings."""


@attrs.frozen(kw_only=True)
class PluginSpec:
    """A plugin's manifest, named by an entry point of the group `neaptide.plugins`.

    The manifest's module must not import torch, because `plugins list` and config checks import it.
    """

    name: str
    """The name in `[plugins.<name>]`; the entry point has the same name."""
    load: str
    """The class as `"package.module:Class"`. It is imported only if the plugin is enabled."""
    config: type[Any] = NoConfig
    """An `attrs.frozen(kw_only=True)` class; every field has a default."""
    summary: str = ""
    """One line of text that `plugins list` shows."""
    version: int = 1
    """Version of the saved state; a checkpoint of another version is refused."""
    claims: frozenset[str] = attrs.field(default=frozenset(), converter=_names)
    """Exclusive resources, such as `predictor`. Each is claimed by at most one enabled plugin."""
    requires: frozenset[str] = attrs.field(default=frozenset(), converter=_names)
    """Names or claims. For each of them, a plugin with this name or claim must be enabled."""
    conflicts: frozenset[str] = attrs.field(default=frozenset(), converter=_names)
    """Names or claims of plugins that must not be enabled together with this plugin."""
    before: frozenset[str] = attrs.field(default=frozenset(), converter=_names)
    """This plugin is ordered before these plugins: its middleware wraps their middleware."""
    after: frozenset[str] = attrs.field(default=frozenset(), converter=_names)
    """This plugin is ordered after these plugins."""
    phases: frozenset[str] = attrs.field(default=frozenset(), converter=_names)
    """Phases in which the plugin acts, for display only. An empty value means all phases."""
    schemes: frozenset[str] = attrs.field(default=frozenset(), converter=_names)
    """What the plugin builds: `"model:builtin"` for `[model] name = "builtin:…"`,
    `"optimizer:adam8bit"` for `[optimizer] name = "adam8bit"`. Such a name enables the plugin."""
    options: dict[str, type[Any]] = attrs.field(factory=dict)
    """Classes that check the options of a model, data or optimizer. The keys of the dict are
    `"model:<name>"`, `"data:<name>"` or `"optimizer:<name>"`; `*` as a name stands for all."""
    needs: frozenset[str] = attrs.field(default=frozenset(), converter=_names)
    """Optional measurements of the core that the plugin uses: `"grad_norm"`."""
    presets: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    """Named settings, chosen by `preset = "name"` in the plugin's own table."""
    converts: dict[str, str] = attrs.field(factory=dict)
    """Functions that convert another framework's settings: `{"deepspeed": "module:function"}`."""
    search_space: tuple[dict[str, Any], ...] = ()
    """Settings with which a planner may use the plugin, as tables of a configuration, such as
    `{"plugins": {"ema": {"decay": 0.9}}}`. The first is the first choice."""
    dry_run: dict[str, Any] = attrs.field(factory=dict)
    """The plugin's own settings in a dry run: the same memory, and a jump after few updates."""
    numerics: Numerics = "exact"
    """`exact`: the plugin changes no bit of the weights; `tolerance`: it may, within `rtol`."""
    rtol: float = 0.0
    """Relative tolerance on the weights after a few steps, if `numerics` is `tolerance`."""
    observer: bool = False
    """True if the plugin only observes. If such a plugin raises, the core logs the error, removes
    the plugin and continues the training."""

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(PluginSpec):
            value = getattr(self, field.name)
            fits, form = _FORMS.get(field.name, _NAMES)
            if not fits(value):
                msg = f"{field.name} must be {form} (got {value!r:.80})"
                raise PluginError(msg)

    def __repr__(self) -> str:
        return called(self, repr(self.name), self.load)


@attrs.frozen
class ShippedEntry:
    """One entry point of a distribution."""

    entry: EntryPoint
    distribution: str
    """`"name version"` of the distribution that ships the entry point."""
    rival: str | None = None
    """`"name version"` of another distribution that ships an entry point with this name."""

    def __repr__(self) -> str:
        return called(self, repr(self.name), self.target, self.distribution)

    @property
    def name(self) -> str:
        """The name of the entry point."""
        return self.entry.name

    @property
    def target(self) -> str:
        """The value of the entry point: `"package.module:name"`, or a module."""
        return self.entry.value

    def load(self) -> Any:
        """Import and return the target; PluginError for an ambiguous name or a failed import."""
        if self.rival is not None:
            kind = self.entry.group.rpartition(".")[2].removesuffix("s")
            both = f"{self.rival} and {self.distribution}"
            msg = f"{both} both ship a {kind} of this name; uninstall one"
            raise PluginError(msg)
        try:
            return self.entry.load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # foreign code may raise anything
            msg = f"importing {self.target!r} raised {described(error)}"
            raise PluginError(msg) from error


_installed = cache(lambda _: entry_points())
"""Every entry point, once for each path: reading them takes longer than a small run."""


def shipped_all(group: str) -> list[ShippedEntry]:
    """Return every entry point of a group, by name and distribution. Imports none of them."""
    found, nobody = _installed((*sys.path,)).select(group=group), "an unknown distribution"
    dists = [f"{one.dist.name} {one.dist.version}" if one.dist else nobody for one in found]
    return sorted(map(ShippedEntry, found, dists), key=lambda one: (one.name, one.distribution))


def shipped(group: str) -> dict[str, ShippedEntry]:
    """Return the entry points of a group by name. Imports none of them."""
    found: dict[str, ShippedEntry] = {}
    for current in shipped_all(group):
        before = found.setdefault(current.name, current)
        if (before.target, before.distribution) != (current.target, current.distribution):
            found[current.name] = attrs.evolve(current, rival=before.distribution)
    return found


def loaded(group: str) -> Iterator[Any]:
    """Import and yield each entry point of a group; log a warning if an import fails."""
    for name, one in shipped(group).items():
        try:
            yield one.load()
        except PluginError as error:
            kind = group.rpartition(".")[2].removesuffix("s")
            text = f"{kind} {name!r} of {one.distribution}: {error}"
            logging.getLogger("neaptide").warning("%s", text)


def sole(group: str) -> Any:
    """Import the only entry point of a group. Raise PluginError unless exactly one is installed."""
    entries = [*shipped(group).values()]
    if len(entries) != 1:
        found = ", ".join(entry.distribution for entry in entries) or "none"
        msg = f"exactly one distribution must have an entry point of {group!r} (got {found})"
        raise PluginError(msg)
    return entries[0].load()


C = TypeVar("C")


@attrs.define(eq=False)
class Plugin(Generic[C]):
    """Base of every plugin class: a config, hooks marked with `@hookimpl`, optional state."""

    config: C

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        # Otherwise attrs generates a repr for each subclass, which prints the whole state.
        cls.__repr__ = cls.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        return called(self, str(self.config))

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save: a tree of dicts, lists, tensors, numbers, strings and None."""
        return {}

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise ValueError if `state`, whose tensors are on meta, cannot be loaded.

        It is called before anything of a checkpoint is loaded. Names at the top, types and dtypes
        have been compared with those of the present `state_dict`.
        """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a value that `state_dict` returned."""
        if state:
            msg = f"{type(self).__name__} saved state {sorted(state)} but does not load any"
            raise ValueError(msg)

    def report(self) -> str | None:
        """Return a text about the run (`trainer.report(name)`), or None."""
        return None


if not TYPE_CHECKING:  # so that type checkers report unknown names
    __getattr__ = missing_in(__name__)
