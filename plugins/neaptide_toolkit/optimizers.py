"""What plugins that build an optimizer share: their hooks, and ranges of options. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import attrs
from attrs.validators import and_, ge, gt, le, lt

from neaptide import ConfigError, NoConfig, Plugin, hookimpl, structure_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch import nn

    from neaptide import ParameterStore, PluginSpec, Run

FACTOR = and_(ge(0.0), le(1e6))
"""Validator of a weight decay, or of another factor that may be 0."""
EPS = and_(gt(0.0), le(1.0))
"""Validator of what is added to a divisor."""
SEED = and_(ge(0), lt(2**32))
"""Validator of a seed."""

_COUNTS = {2: "two", 3: "three"}


def decays(_: Any, attribute: attrs.Attribute[Any], value: Sequence[float]) -> None:
    """Validate decays of averages: as many as the default has, each in [0, 1)."""
    wanted = len(attribute.default or ())
    if len(value) != wanted or not all(0.0 <= decay < 1.0 for decay in value):
        count = _COUNTS.get(wanted, wanted)
        msg = f"{attribute.name!r} must be {count} numbers in [0, 1) (got {list(value)})"
        raise ValueError(msg)


@attrs.define(eq=False)
class OptimizerPlugin(Plugin[NoConfig]):
    """Builds the optimizer of a run whose `[optimizer] name` is the plugin's.

    The manifest names the class of its options under `"optimizer:<name>"`. A subclass sets `spec`
    and `optimizer`, and overrides `build` or `started` where its optimizer needs more.
    """

    spec: ClassVar[PluginSpec]
    optimizer: ClassVar[type[torch.optim.Optimizer]]
    """Takes parameters, `lr`, and the options by their names."""

    def build(self, model: nn.Module, lr: float, options: Any) -> torch.optim.Optimizer:
        """Return the optimizer over the trainable parameters; ValueError for what it refuses."""
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer: Callable[..., torch.optim.Optimizer] = self.optimizer
        return optimizer(parameters, lr=lr, **attrs.asdict(options, recurse=False))

    def started(self, run: Run, optimizer: torch.optim.Optimizer) -> None:
        """Do what is left once a run with this optimizer starts; by default nothing."""

    @hookimpl
    def configure_optimizer(
        self, model: nn.Module, name: str, lr: float, options: Mapping[str, Any]
    ) -> torch.optim.Optimizer | None:
        """Build it; a ConfigError has the words of a ValueError."""
        if name != self.spec.name:
            return None
        kind = self.spec.options[f"optimizer:{name}"]
        chosen = structure_options(kind, options, "optimizer", "options")
        try:
            return self.build(model, lr, chosen)
        except ConfigError:
            raise
        except ValueError as error:
            msg = f"{error} @ optimizer.name"
            raise ConfigError(msg) from error

    @hookimpl
    def on_run_start(self, run: Run, store: ParameterStore) -> None:
        """Log `<name>.unused` where another optimizer is used."""
        if isinstance(store.optimizer, self.optimizer):
            self.started(run, store.optimizer)
        else:
            event = f"{self.spec.name}.unused"
            run.log.info(event, optimizer=type(store.optimizer).__name__)
