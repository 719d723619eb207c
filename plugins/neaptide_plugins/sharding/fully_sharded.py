"""Divides a model among processes by torch's `fully_shard`, one unit for each block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide_toolkit.recompute import find_blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

    from neaptide.api.spans import Span

    from .offloading import RowsHome

HALVES = (torch.float16, torch.bfloat16)


@attrs.frozen(kw_only=True)
class Gathering:
    """When and how the weights of a unit are gathered.

    Attributes:
        again: free the weights of a block after its forward, and gather them in the backward.
        dtype: cast floating weights before, and compute in this dtype; None: in their own.
    """

    again: bool
    dtype: torch.dtype | None = None

    def bytes_of(self, span: Span) -> int:
        """Return the bytes of a whole weight where it is gathered, or of its gradient there."""
        if self.dtype is None or not span.dtype.is_floating_point:
            return span.bytes
        return elements(span) * self.dtype.itemsize


def elements(span: Span) -> int:
    """Return the elements of a weight."""
    return span.bytes // span.dtype.itemsize


def units(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the blocks whose weights are gathered together; the model itself has the rest."""
    return [
        (name, one) for name, one in find_blocks(model) if next(one.parameters(), None) is not None
    ]


def fully_sharded(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    mesh: DeviceMesh,
    home: RowsHome,
    gathering: Gathering,
) -> tuple[dict[str, Any], list[FSDPModule]]:
    """Divide `model` among processes; return its new parameters by name, and its units.

    The given parameters become the rows of this process: they share memory with the new ones, so
    an optimizer of them updates the model. A gradient is the sum over all processes.

    Args:
        model: whole, and the same in all processes.
        parameters: its parameters, by their first names.
        mesh: the processes that divide it; with two dimensions, each row of it divides a copy.
        home: where the rows are between passes.
        gathering: when and how whole weights are gathered.
    """
    # Most runs of the plugin do not need it, and its import takes time.
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: PLC0415

    divided = []
    shards: dict[str, Any] = {}
    for module in (*(block for _, block in units(model)), model):
        halves = any(one.dtype in HALVES for one in module.parameters() if one.requires_grad)
        cast = gathering.dtype is not None
        policy = MixedPrecisionPolicy(
            param_dtype=gathering.dtype,
            reduce_dtype=torch.float32 if halves or cast else None,
            # Losses are computed of what the model itself returns.
            output_dtype=torch.float32 if cast and module is model else None,
        )
        # The model itself keeps its own weights until the backward, which needs them first.
        after = False if module is model else gathering.again
        home.before(module)
        unit = fully_shard(
            module,
            mesh=mesh,
            reshard_after_forward=after,
            mp_policy=policy,
            offload_policy=home.policy(),
        )
        # Each process has its part of the loss of the whole batch, so gradients are summed.
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)
        divided.append(unit)
        now = dict(model.named_parameters())
        # At once: until then, the whole weights of the unit stay in memory.
        for name in parameters.keys() - shards.keys():
            if now[name] is not parameters[name]:
                shards[name] = now[name]
                parameters[name].data = shards[name].detach().to_local()
    home.after(shards.values())
    return {name: shards[name] for name in parameters}, divided


def reshard(divided: Iterable[FSDPModule]) -> None:
    """Free the gathered weights of all units."""
    for unit in divided:
        unit.reshard()
