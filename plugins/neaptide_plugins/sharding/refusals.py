"""What several processes cannot train, refused before the first step in one line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch
from torch import nn

from neaptide import ConfigError

from .config import REGATHERS, Stage
from .fully_sharded import units
from .optimizer_shards import OptimizerShards
from .shard_store import ShardStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neaptide import ParameterStore, Run

    from .config import ShardingConfig

REFUSED = {
    "layer-streaming": "updates blocks inside the backward, before gradients are added up",
    "metrics": "would measure the first process's samples only",
}
"""Plugins that do not run on several processes, and why."""
REFUSED_BY_SHARDS = {
    "int8": "replaces weights, which each forward gathers anew",
}
"""Plugins that do not run in the stages 2, 3 and hybrid, and why."""
_BY_ELEMENT = {
    *(torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam),
    *(torch.optim.RAdam, torch.optim.RMSprop, torch.optim.Rprop, torch.optim.Adagrad),
    *(torch.optim.Adadelta, torch.optim.ASGD),
}


def tell_unused(run: Run, own: ShardingConfig) -> None:
    """Say so if a run that does not divide the model ignores a setting that changes its losses."""
    if own.param_dtype != "own":
        reason = "the run has one process, which computes in the dtype of its weights"
        run.log.warning("sharding.param_dtype_unused", reason=reason)


def check_stage(
    run: Run, model: nn.Module, optimizer: torch.optim.Optimizer, own: ShardingConfig
) -> None:
    """Raise ConfigError if the model or its optimizer cannot be divided as the settings say."""
    stage = own.stage
    shown = json.dumps(stage)
    way_out = f'set stage = "replicate" @ plugins.sharding.stage = {shown}'
    problems = [
        f"{name} cannot run with stage = {shown}: it {why}; remove it @ plugins.{name}"
        for name, why in REFUSED_BY_SHARDS.items()
        if name in run.config.plugins and stage != 1
    ]
    if "mixed-precision" in run.config.plugins and own.param_dtype != "own":
        problems.append(
            f"mixed-precision casts weights at each use, and param_dtype before they are gathered; "
            f"remove one of the two @ plugins.sharding.param_dtype = {json.dumps(own.param_dtype)}"
        )
    interval = getattr(run.config.plugins.get("activation-checkpointing"), "interval", 1)
    if interval > 1 and stage in REGATHERS:
        problems.append(
            f"activation-checkpointing computes {interval} blocks again at once, which "
            f"stage = {shown} has not gathered; set interval = 1 @ "
            f"plugins.activation-checkpointing.interval"
        )
    kind = type(optimizer)
    if kind not in _BY_ELEMENT and not vars(kind).get("elementwise", False):
        problems.append(
            f"{kind.__name__} may update a weight as a whole (its class has no `elementwise = "
            f"True`), so a process cannot update some rows of it; {way_out}"
        )
    problems += [f"{problem}; {way_out}" for problem in _undivided(model, stage)]
    if stage == 1:
        problems += _scattered(model, optimizer)
    if problems:
        raise ConfigError(*problems[:4])


def _scattered(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[str]:
    """Yield which weights a fused step cannot take: it takes rows in the order of memory."""
    groups = (group["params"] for group in optimizer.param_groups if group.get("fused"))
    fused = {id(parameter) for group in groups for parameter in group}
    for name, parameter in model.named_parameters():
        if id(parameter) not in fused or not parameter.ndim:
            continue
        rows = parameter.detach()[:2]
        if rows.stride() != torch.empty_like(rows, device="meta").stride():
            yield (
                f"rows of the weight {name!r} are not together in memory, and a fused step takes "
                f"them so; build {type(optimizer).__name__} with fused = False "
                f"(optimizer.options.fused)"
            )


def _undivided(model: nn.Module, stage: Stage) -> Iterator[str]:
    """Yield what is wrong with weights that are to be divided."""
    for name, parameter in model.named_parameters():
        if type(parameter) is not nn.Parameter:
            yield f"the weight {name!r} is a {type(parameter).__name__}, which cannot be divided"
        elif not parameter.ndim:
            yield f"the weight {name!r} has no dimension to divide"
        elif stage != 1 and not parameter.is_contiguous():
            yield f"the weight {name!r} is not contiguous, which torch's fully_shard needs"
    if stage == 1:
        return
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            yield f"{name!r} changes its weight in a forward (max_norm), which would be lost"
    for unit, weights in _owners(model):
        name = unit or "the model"
        if len({weight.dtype for weight in weights if weight.requires_grad}) > 1:
            yield f"{name!r} has weights of several dtypes, which are gathered together"
    yield from _shared(model)


def _owners(model: nn.Module) -> Iterator[tuple[str, set[nn.Parameter]]]:
    """Yield the name of each unit, "" for the model itself, and the weights that it gathers."""
    taken: set[nn.Parameter] = set()
    for name, block in units(model):
        own = set(block.parameters())
        taken |= own
        yield name, own
    yield "", set(model.parameters()) - taken


def _shared(model: nn.Module) -> Iterator[str]:
    """Yield what is wrong if a weight is used in two blocks, or in one and outside of it."""
    blocks = units(model)
    inside = {part: name for name, block in blocks for part in block.modules()}
    homes: dict[nn.Parameter, str] = {}
    for part in model.modules():
        for weight in part.parameters(recurse=False):
            home, here = homes.setdefault(weight, inside.get(part, "")), inside.get(part, "")
            if home != here:
                yield (
                    f"{here or 'the model'!r} shares a weight with {home or 'the model'!r}, and "
                    f"each gathers its own"
                )


def check_store(store: ParameterStore, size: int, stage: Stage) -> None:
    """Raise ConfigError if the store of the run does not do what `size` processes need."""
    known = {id(parameter) for parameter in store.parameters.values()}
    trained = [one for group in store.optimizer.param_groups for one in group["params"]]
    if strangers := [one for one in trained if id(one) not in known]:
        msg = (
            f"the optimizer has a parameter of shape {list(strangers[0].shape)} that is not in the "
            f"model, so {size} processes would train it apart; make it a part of the model"
        )
        raise ConfigError(msg)
    if not store.stores_gradients:
        msg = (
            f"a plugin updates weights inside the backward, before the gradients of {size} "
            f"processes are added up @ plugins.sharding"
        )
        raise ConfigError(msg)
    if stage != "replicate" and not isinstance(store, OptimizerShards | ShardStore):
        msg = (
            f"another plugin keeps the weights ({type(store).__name__}), so they cannot be "
            f'divided; set stage = "replicate" @ plugins.sharding.stage = {json.dumps(stage)}'
        )
        raise ConfigError(msg)


def check(run: Run, model: nn.Module, size: int) -> None:
    """Raise ConfigError if `size` processes cannot train as one process would."""
    problems = [
        f"{name} cannot run on {size} processes: it {why}; remove it @ plugins.{name}"
        for name, why in REFUSED.items()
        if name in run.config.plugins
    ]
    mixing = next((name for name, one in model.named_modules() if _mixes(one)), None)
    if mixing is not None:
        problems.append(
            f"{mixing!r} is a BatchNorm, or keeps running statistics, of the samples of one "
            f"process; use GroupNorm or LayerNorm @ model.name"
        )
    hooked = next((name for name, one in model.named_parameters() if _has_hooks(one)), None)
    if hooked is not None:
        problems.append(
            f"the weight {hooked!r} has a gradient hook, which would see the gradient of one "
            f"process's samples; change gradients at the update @ plugins.sharding"
        )
    if problems:
        raise ConfigError(*problems)


def _mixes(module: nn.Module) -> bool:
    kinds = nn.modules.batchnorm
    keeps = isinstance(module, kinds._NormBase) and module.track_running_stats  # noqa: SLF001 - as below
    return keeps or isinstance(module, kinds._BatchNorm)  # noqa: SLF001 - the base of all of them


def _has_hooks(parameter: torch.Tensor) -> bool:
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)  # noqa: SLF001 - nothing else tells of them
