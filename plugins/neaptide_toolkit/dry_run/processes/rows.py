"""What torch's `fully_shard` does with the rows of a block before it gathers them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from neaptide_toolkit.dry_run.allocations import DEVICE, AllocationLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide_toolkit.dry_run.clock import Clock, CopyTicket

_INTO_BUFFER = "fsdp::all_gather_copy_in"
"""Copies the rows of a block into the buffer, and does not say that it returns views of it."""


class RowsToGather:
    """Copies rows into the buffer of an all-gather; those in RAM first go to the device.

    Args:
        clock: of the dry run.
        log: knows which rows are in RAM.

    Attributes:
        brought: the last copy from RAM; None without one.
    """

    def __init__(self, clock: Clock, log: AllocationLog) -> None:
        self._clock, self._log = clock, log
        self.brought: CopyTicket | None = None

    def in_plain(self, operation: Any, args: tuple[Any, ...]) -> Callable[[], Any] | None:
        """Return a call of plain PyTorch that does what an operation of `fully_shard` does."""
        return partial(self._copy_in, *args) if operation.name() == _INTO_BUFFER else None

    def _copy_in(
        self,
        rows: list[torch.Tensor],
        buffer: torch.Tensor,
        sizes: list[int],
        length: int,
        rank: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        own = buffer.narrow(0, length * rank, length)
        torch._foreach_copy_(own.split_with_sizes(sizes), self._on_device(rows))
        return own, buffer

    def _on_device(self, rows: list[torch.Tensor]) -> list[torch.Tensor]:
        if not any(map(self._log.is_on_host, rows)):
            return rows
        here: list[torch.Tensor] = []

        def work() -> None:
            here.extend(row.to(DEVICE, copy=True) for row in rows)

        # They are submitted as early as the gather, which is beside the computation.
        self.brought = self._clock.lane("to device").submit("rows", work, at_once=True)
        return here
