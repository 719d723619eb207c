"""The plugin that builds `Apollo` for a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from neaptide import ConfigError
from neaptide_toolkit.optimizers import OptimizerPlugin

from .config import SPEC, ApolloOptions
from .groups import parameter_groups
from .optimizer import Apollo, rank_in

if TYPE_CHECKING:
    import torch
    from torch import nn

    from neaptide import Run


class ApolloPlugin(OptimizerPlugin):
    """Builds `[optimizer] name = "apollo"`."""

    spec = SPEC
    optimizer = Apollo

    def build(self, model: nn.Module, lr: float, options: ApolloOptions) -> Apollo:
        """Return the optimizer for a model; ConfigError if nothing can be trained."""
        given = attrs.asdict(options, recurse=False)
        groups = parameter_groups(model, given.pop("adamw"))
        if not groups:
            msg = "the model has no trainable parameters; unfreeze some (requires_grad=True)"
            raise ConfigError(msg)
        return Apollo(groups, lr=lr, **given)

    def started(self, run: Run, optimizer: torch.optim.Optimizer) -> None:
        """Log how many elements are projected; warn if there are none."""
        elements = {"projected": 0, "adamw": 0}
        for group in optimizer.param_groups:
            for param in group["params"]:
                kind = "adamw" if rank_in(group, param) is None else "projected"
                elements[kind] += param.numel()
        run.log.info("apollo.started", **elements)
        if not elements["projected"]:
            run.log.warning("apollo.no-matrix", adamw=elements["adamw"])
