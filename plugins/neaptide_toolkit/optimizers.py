"""Base class of plugins that build an optimizer, and validators of its options.

This module does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import attrs
from attrs.validators import and_, ge, gt, in_, le, lt

from neaptide import ConfigError, NoConfig, Plugin, hookimpl, structure_options
from neaptide.config import field

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch import nn

    from neaptide import ParameterStore, PluginSpec, Run

FACTOR = and_(ge(0.0), le(1e6))
"""Validator of a weight decay or another factor, in [0, 1e6]."""
EPS = and_(gt(0.0), le(1.0))
"""Validator of the small number added to a divisor, in (0, 1]."""
FUSED = {"Adam", "AdamW"}
"""Classes of torch.optim whose step is fused by default.

Not SGD: its fused step on a CPU leaves most bfloat16 and float16 weights as they are, and fails if
a weight gets its first gradient later than others (torch 2.13). Not Adagrad: its fused step takes
no sparse gradients, which its plain step takes.
"""
FORMS = {"fused", "foreach", "capturable", "differentiable"}
"""Options that choose how a step of torch.optim computes: with one, nothing is fused by default."""
SEED = and_(ge(0), lt(2**32))
"""Validator of a seed, in [0, 2**32)."""

Rounding = Literal["stochastic", "nearest"]
"""How weights are rounded to bfloat16 and float16."""

_COUNTS = {2: "two", 3: "three"}


def decays(_: Any, attribute: attrs.Attribute[Any], value: Sequence[float]) -> None:
    """Validate decay rates of averages: as many as the default has, each in [0, 1)."""
    wanted = len(attribute.default or ())
    if len(value) != wanted or not all(0.0 <= decay < 1.0 for decay in value):
        count = _COUNTS.get(wanted, wanted)
        msg = f"{attribute.name!r} must be {count} numbers in [0, 1) (got {list(value)})"
        raise ValueError(msg)


def rounding_field() -> Any:
    """Return the option `rounding` of an optimizer, of type `Rounding`."""
    return field(
        "stochastic",
        validator=in_(get_args(Rounding)),
        help="rounding of bfloat16 and float16 weights; `nearest` loses changes below half of the "
        "last digit, `stochastic` keeps them on average",
    )


def rounding_seed_field() -> Any:
    """Return the option `seed` of an optimizer that rounds."""
    return field(0, validator=SEED, help="seed of stochastic rounding")


@attrs.define(eq=False)
class OptimizerPlugin(Plugin[NoConfig]):
    """Builds the optimizer of a run if `[optimizer] name` is the name of the plugin.

    The manifest names the class of the optimizer's options under `"optimizer:<name>"`. A subclass
    sets `spec` and `optimizer`; it may override `build` and `started`.
    """

    spec: ClassVar[PluginSpec]
    optimizer: ClassVar[type[torch.optim.Optimizer]]
    """The function that builds the optimizer. It gets the parameters, `lr`, and the options by
    name."""

    def build(self, model: nn.Module, lr: float, options: Any) -> torch.optim.Optimizer:
        """Return the optimizer of the trainable parameters; raise ValueError for wrong options."""
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer: Callable[..., torch.optim.Optimizer] = self.optimizer
        return optimizer(parameters, lr=lr, **attrs.asdict(options, recurse=False))

    def started(self, run: Run, optimizer: torch.optim.Optimizer) -> None:
        """Called when a run with this optimizer has started. A subclass may override it."""

    @hookimpl
    def configure_optimizer(
        self, model: nn.Module, name: str, lr: float, options: Mapping[str, Any]
    ) -> torch.optim.Optimizer | None:
        """Build the optimizer; a ValueError of `build` becomes a ConfigError."""
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
        """Call `started`, or log `<name>.unused` if the run uses another optimizer."""
        if isinstance(store.optimizer, self.optimizer):
            self.started(run, store.optimizer)
        else:
            event = f"{self.spec.name}.unused"
            run.log.info(event, optimizer=type(store.optimizer).__name__)
