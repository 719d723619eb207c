"""The plugin that builds the model and the loss function of a run that names a built-in model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide import ConfigError, Loss, NoConfig, Plugin, Task, hookimpl
from neaptide.config import structure_options

from . import byte_gpt, digits_cnn, mlp
from .config import SPEC

if TYPE_CHECKING:
    from types import ModuleType

    from torch import nn

    from neaptide.api.task import ModelSpec

_MODELS: dict[str, ModuleType] = {"byte-gpt": byte_gpt, "mlp": mlp, "digits-cnn": digits_cnn}


@attrs.define(eq=False)
class BuiltinModels(Plugin[NoConfig]):
    """Builds `builtin:byte-gpt`, `builtin:mlp` and `builtin:digits-cnn`."""

    @hookimpl
    def build_model(self, spec: ModelSpec) -> Task | None:
        """Build the named model and its loss, the cross-entropy in nats summed over the targets."""
        if spec.scheme != "builtin":
            return None
        options = structure_options(
            SPEC.options[f"model:{spec.name}"], spec.options, "model", "options"
        )
        module = _MODELS[spec.name]

        def loss_fn(model: nn.Module, batch: Any) -> Loss:
            try:
                total, count = module.loss(model, batch)
            except (KeyError, TypeError) as error:
                got = ", ".join(map(repr, batch)) if isinstance(batch, dict) else type(batch)
                msg = (
                    f"{spec.name} finds no {error} in a batch of {got}; choose data that matches "
                    f"the model @ data.name"
                )
                raise ConfigError(msg) from error
            except (ValueError, IndexError) as error:
                msg = f"model and data do not match: {error} @ model.options"
                raise ConfigError(msg) from error
            return Loss(total, count, per_token=module is byte_gpt)

        return Task(module.build(options), loss_fn)
