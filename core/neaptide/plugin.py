"""A plugin has a manifest, a config class and optional state. The manifest needs no torch.

Distributions ship plugins, verbs (subcommands), presets and converters as entry points. `shipped`
returns these entry points.
"""

from __future__ import annotations

import logging
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import attrs
import pluggy

from neaptide.errors import PluginError
from neaptide.renamed import missing_in
from neaptide.text import called

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ENTRY_POINT_GROUP = "neaptide.plugins"
PROJECT = "neaptide"

hookimpl = pluggy.HookimplMarker(PROJECT)

Numerics = Literal["exact", "tolerance", "changes-training"]


def _names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(names)


@attrs.frozen(kw_only=True)
class NoConfig:
    """The config of a plugin that has no settings."""


@attrs.frozen(kw_only=True)
class PluginSpec:
    """A plugin's manifest, named by an entry point of the group `neaptide.plugins`.

    The manifest's module must not import torch, because `plugins list` and config checks import it.
    """

    name: str = attrs.field(validator=attrs.validators.matches_re(r"[a-z][a-z0-9-]*"))
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
    `"model:<name>"`, `"data:<name>"` or `"optimizer:<name>"`."""
    needs: frozenset[str] = attrs.field(default=frozenset(), converter=_names)
    """Optional measurements of the core that the plugin uses: `"grad_norm"`."""
    presets: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    """Named settings, chosen by `preset = "name"` in the plugin's own table."""
    converts: dict[str, str] = attrs.field(factory=dict)
    """Functions that convert another framework's settings: `{"deepspeed": "module:function"}`."""
    numerics: Numerics = "exact"
    """`exact`: the plugin changes no bit of the weights; `tolerance`: it may, within `rtol`."""
    rtol: float = 0.0
    """Relative tolerance on the weights after a few steps, if `numerics` is `tolerance`."""
    observer: bool = False
    """True if the plugin only observes. If such a plugin raises, the core logs the error, removes
    the plugin and continues the training."""

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
        except (Exception, SystemExit) as error:  # foreign code may raise anything
            text = " ".join(str(error).split())
            msg = f"importing {self.target!r} raised {type(error).__name__}: {text}"
            raise PluginError(msg) from error


def shipped_all(group: str) -> list[ShippedEntry]:
    """Return every entry point of a group, sorted by name. Imports none of them."""
    found = sorted(entry_points(group=group), key=lambda entry: entry.name)
    nobody = "an unknown distribution"
    dists = [f"{one.dist.name} {one.dist.version}" if one.dist else nobody for one in found]
    return list(map(ShippedEntry, found, dists))


def shipped(group: str) -> dict[str, ShippedEntry]:
    """Return the entry points of a group by name. Imports none of them."""
    found: dict[str, ShippedEntry] = {}
    for current in shipped_all(group):
        before = found.setdefault(current.name, current)
        if before.target != current.target:
            found[current.name] = attrs.evolve(current, rival=before.distribution)
    return found


def loaded(group: str) -> Iterator[Any]:
    """Import and yield each entry point of a group; log a warning if an import fails."""
    for name, one in shipped(group).items():
        try:
            yield one.load()
        except PluginError as error:
            kind = group.rpartition(".")[2].removesuffix("s")
            logging.getLogger("neaptide").warning(
                "%s %r of %s: %s", kind, name, one.distribution, error
            )


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
