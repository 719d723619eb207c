"""Keeps the rows of a divided model in RAM: torch's `CPUOffloadPolicy`.

A dry run has no device, so torch's policy would do nothing there: what it does is done by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import nn

from neaptide.errors import ConfigError
from neaptide_toolkit.machine.pretended import kind_of
from neaptide_toolkit.offload import Copies, Ticket, lane_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.distributed.fsdp import OffloadPolicy

    from neaptide import Run
    from neaptide.api.memory import Tier

    from .config import Offload, ShardingConfig


@attrs.define(eq=False)
class RowsHome:
    """Where the rows of this process are between passes, and their gradients and state always.

    Attributes:
        rounding: bytes of pinned RAM beyond those of rows and gradients. torch takes a power of two
            for each tensor.
    """

    offload: Offload
    device: torch.device
    rounding: int = 0
    _room: torch.Tensor | None = None
    _lane: Copies | None = None
    _copies: list[Ticket] = attrs.field(factory=list)
    _moved: dict[nn.Parameter, Any] = attrs.field(factory=dict)

    @classmethod
    def of(cls, config: ShardingConfig, run: Run, optimizer: torch.optim.Optimizer) -> RowsHome:
        """Return it as the settings say; say so if `offload` has no effect.

        Raises:
            ConfigError: the optimizer cannot step in RAM.
        """
        offload, where = config.offload, f'plugins.sharding.offload = "{config.offload}"'
        if offload != "none" and kind_of(run.device) == "cpu":
            reason = "the run computes on the CPU, whose memory is RAM"
            run.log.warning("sharding.not_offloaded", reason=reason)
            offload = "none"
        if offload != "none" and any(one.get("capturable") for one in optimizer.param_groups):
            msg = (
                f"{type(optimizer).__name__} has capturable = true, which steps on a device only; "
                f"remove it from its options @ {where}"
            )
            raise ConfigError(msg)
        return cls(offload, run.device)

    @property
    def tier(self) -> Tier:
        """The tier of rows, gradients and state."""
        return "device" if self.offload == "none" else "host"

    @property
    def _by_hand(self) -> bool:
        return self.offload != "none" and self.device.type == "cpu"

    def policy(self) -> OffloadPolicy:
        """Return what `fully_shard` is to do with the rows."""
        # Most runs of the plugin do not need it, and its import takes time.
        from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy  # noqa: PLC0415

        if self.offload == "none" or self._by_hand:
            return OffloadPolicy()
        return CPUOffloadPolicy(pin_memory=self.offload == "pinned")

    def before(self, module: nn.Module) -> None:
        """In a dry run: move a unit to RAM before it is divided, so that its rows are there."""
        for parameter in module.parameters() if self._by_hand else ():
            if type(parameter) is nn.Parameter:  # else it is divided already
                parameter.data = parameter.data.to("cpu", copy=True)

    def after(self, shards: Iterable[Any]) -> None:
        """Count pinned RAM. In a dry run: move gradients to RAM as they are added up."""
        parts = [*shards]
        if self.offload == "pinned":
            self.rounding = sum(map(_rounding, parts))
        if self._by_hand:
            self._lane = lane_for(self.device, "to host")
            self._room = torch.empty(self.rounding, dtype=torch.uint8, device="cpu")
            for shard in parts:
                shard.register_post_accumulate_grad_hook(self._moves)

    def _moves(self, shard: nn.Parameter) -> None:
        gradient = shard.grad
        if gradient is not None and gradient is not self._moved.get(shard):

            def work() -> None:
                shard.grad = self._moved[shard] = gradient.to("cpu", copy=True)

            assert self._lane is not None, "made with the hook"
            self._copies.append(self._lane.submit("gradient", work))

    def wait(self) -> None:
        """In a dry run: wait for the gradients, as torch does at the end of a backward."""
        for copy in self._copies:
            copy.finish()
        self._copies.clear()
        self._moved.clear()


def _rounding(shard: Any) -> int:
    """Return by how much the powers of two are more, of a weight's rows and of their gradient."""
    rows = shard.detach().to_local()
    sizes = [rows.untyped_storage().nbytes(), *([rows.nbytes] if shard.requires_grad else [])]
    return sum((1 << (size - 1).bit_length()) - size for size in sizes if size)
