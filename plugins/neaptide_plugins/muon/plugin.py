"""The plugin that builds `Muon` for a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neaptide import ConfigError
from neaptide_toolkit.optimizers import OptimizerPlugin

from .checks import KINDS
from .config import SPEC, MuonOptions
from .groups import parameter_groups
from .optimizer import Muon

if TYPE_CHECKING:
    import torch
    from torch import nn

    from neaptide import Run


class MuonPlugin(OptimizerPlugin):
    """Builds `[optimizer] name = "muon"`."""

    spec = SPEC
    optimizer = Muon

    def build(self, model: nn.Module, lr: float, options: MuonOptions) -> Muon:
        """Return the optimizer for a model; ConfigError if an option does not fit the model."""
        try:
            groups = parameter_groups(
                model,
                adamw=options.adamw,
                split=options.split,
                stacked=options.stacked,
                convolutions=options.convolutions,
            )
        except ValueError as error:
            msg = f"{error} @ optimizer.options.split"
            raise ConfigError(msg) from error
        if not groups:
            msg = "the model has no trainable parameters; unfreeze some (requires_grad=True)"
            raise ConfigError(msg)
        for group in groups:
            if group["kind"] == "adamw":
                group["lr"] = lr * options.adamw_lr_ratio
        return Muon(
            groups,
            lr=lr,
            momentum=options.momentum,
            nesterov=options.nesterov,
            ns_steps=options.ns_steps,
            polynomial=options.polynomial,
            norm=options.norm,
            ns_dtype=options.ns_dtype,
            scale=options.scale,
            weight_decay=options.weight_decay,
            betas=options.adamw_betas,
            eps=options.adamw_eps,
            rounding=options.rounding,
            seed=options.seed,
        )

    def started(self, run: Run, optimizer: torch.optim.Optimizer) -> None:
        """Log how many elements Muon and AdamW update; warn if Muon updates none."""
        elements = dict.fromkeys(KINDS, 0)
        for group in optimizer.param_groups:
            elements[group["kind"]] += sum(param.numel() for param in group["params"])
        run.log.info("muon.started", **elements)
        if not elements["muon"]:
            run.log.warning("muon.no-matrix", adamw=elements["adamw"])
