"""What several processes cannot train, refused before the first step in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from neaptide import ConfigError

if TYPE_CHECKING:
    from neaptide import ParameterStore, Run

REFUSED = {
    "layer-streaming": "updates blocks inside the backward, before gradients are added up",
    "metrics": "would measure the first process's samples only",
}
"""Plugins that do not run on several processes, and why."""


def check(run: Run, model: nn.Module, store: ParameterStore, size: int) -> None:
    """Raise ConfigError if `size` processes cannot train as one process would."""
    problems = [
        f"{name} cannot run on {size} processes: it {why}; remove it @ plugins.{name}"
        for name, why in REFUSED.items()
        if name in run.config.plugins
    ]
    if not problems and not store.stores_gradients:
        problems.append(
            f"a plugin updates weights inside the backward, before the gradients of {size} "
            f"processes are added up @ plugins.sharding"
        )
    if run.device.type != "cpu":
        problems.append(
            f"several processes train on the CPU only (got {str(run.device)!r}); set "
            f'train.device = "cpu" @ train.device'
        )
    batch_size = run.config.train.batch_size
    if run.config.data.name and batch_size < size:
        problems.append(
            f"train.batch_size = {batch_size} is divided among the processes, so it must be at "
            f"least their number (got {size} processes) @ train.batch_size"
        )
    mixing = next((name for name, one in model.named_modules() if _mixes(one)), None)
    if mixing is not None:
        problems.append(
            f"{mixing!r} is a BatchNorm, which would normalize by the samples of one process; use "
            f"GroupNorm or LayerNorm @ model.name"
        )
    if problems:
        raise ConfigError(*problems)


def _mixes(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._BatchNorm)  # noqa: SLF001 - the base of all of them
