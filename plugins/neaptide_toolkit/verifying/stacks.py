"""The plugins of a configuration, by what they declare of their numerics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide.errors import ConfigError, NeaptideError
from neaptide.hooks.enabling import PREDICTOR, configured

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from neaptide.config import RunConfig
    from neaptide.plugin import PluginSpec


@attrs.frozen(eq=False)
class Stack:
    """A configuration whose plugins can be left out.

    Attributes:
        config: prepared by `prepared`, with every plugin.
        specs: the manifests of its plugins, in resolved order.
    """

    config: RunConfig
    specs: Mapping[str, PluginSpec]

    @property
    def builders(self) -> frozenset[str]:
        """Plugins that build the model, the data or the optimizer."""
        return frozenset(name for name, spec in self.specs.items() if spec.schemes)

    @property
    def foundation(self) -> frozenset[str]:
        """Builders, plugins that change training by declaration, and what these require."""
        changing = {
            name for name, spec in self.specs.items() if spec.numerics == "changes-training"
        }
        return self.closed(self.builders | changing)

    @property
    def tolerant(self) -> frozenset[str]:
        """Plugins that change results by rounding, and what these require."""
        found = {name for name, spec in self.specs.items() if spec.numerics == "tolerance"}
        return self.closed(found) - self.foundation

    @property
    def exact(self) -> frozenset[str]:
        """All other plugins: they must change no bit."""
        return frozenset(self.specs) - self.foundation - self.tolerant

    def rtol(self, names: Iterable[str]) -> float:
        """Return the sum of the declared tolerances."""
        return sum(
            self.specs[name].rtol for name in names if self.specs[name].numerics == "tolerance"
        )

    def closed(self, names: Iterable[str]) -> frozenset[str]:
        """Return the plugins with those that they require, as far as they are in the stack."""
        found, new = set[str](), set(names)
        while new:
            found |= new
            wanted = {need for name in new for need in self.specs[name].requires}
            new = {
                name for name, spec in self.specs.items() if name in wanted or spec.claims & wanted
            } - found
        return frozenset(found)

    def with_only(
        self, names: Iterable[str], settings: Mapping[str, Any] | None = None
    ) -> tuple[RunConfig, list[PluginSpec]]:
        """Return the configuration with these plugins, some with other settings.

        Raises:
            NeaptideError: they cannot be enabled without the others.
        """
        chosen = self.closed(names)
        plugins = {
            name: (settings or {}).get(name, self.config.plugins[name])
            for name in self.specs
            if name in chosen
        }
        given = [self.specs[name] for name in plugins]
        return configured(attrs.evolve(self.config, plugins=plugins), given)

    def can_be(self, names: Iterable[str]) -> bool:
        """Return whether these plugins can be enabled without the others."""
        try:
            self.with_only(names)
        except NeaptideError:
            return False
        return True


def prepared(
    config: RunConfig | Mapping[str, Any] | str | Path, steps: int, plugins: Iterable[Any] = ()
) -> Stack:
    """Return the stack of a configuration for a run of `steps` updates.

    If a plugin predicts, the phases are shortened so that all four are in the run, and plugins have
    their settings of a dry run.
    """
    full, ordered = configured(config, plugins)
    specs = {spec.name: spec for spec in ordered}
    settings = dict(full.plugins)
    phases = full.phases
    if any(PREDICTOR in spec.claims for spec in ordered):
        phases = attrs.evolve(
            phases,
            warmup=attrs.evolve(phases.warmup, steps=1),
            full=attrs.evolve(phases.full, steps=2),
            predict=attrs.evolve(phases.predict, correction_interval=1),
            correct=attrs.evolve(phases.correct, steps=1),
        )
        for name, spec in specs.items():
            try:
                settings[name] = attrs.evolve(settings[name], **spec.dry_run)
            except (TypeError, ValueError) as error:
                msg = f"plugin {name!r}: its settings refuse its dry_run: {error}"
                raise ConfigError(msg) from error
    middle = max(1, steps // 2)
    return Stack(
        attrs.evolve(
            full,
            plugins=settings,
            phases=phases,
            run=attrs.evolve(
                full.run,
                dir=None,
                checkpoint_dir=None,
                checkpoint_every=middle,
                checkpoint_minutes=0.0,
                keep=0,
                progress="quiet",
            ),
            train=attrs.evolve(full.train, steps=steps, epochs=None),
            eval=attrs.evolve(full.eval, every=middle, batches=min(2, full.eval.batches)),
        ),
        specs,
    )
