"""The store of a model that each process has whole, with an optimizer that updates its rows only.

torch's `ZeroRedundancyOptimizer` makes an optimizer of its own from a class, and divides whole
parameters. Here the optimizer is the one of the run, and its state is divided by rows: as saved by
any number of processes, any number can load it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from neaptide.api.parameters import ParameterStore
from neaptide_toolkit.offload.resident_store import ResidentStore

from .leaving import leave_together
from .meetings import SAVES, LoanRequest, Meetings
from .reducing import buckets
from .saves.shared_saves import SharedSaves
from .state_parts import StateParts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import _GeneratorContextManager

    from torch import nn

    from neaptide.api.spans import Keeper, Mode, Span
    from neaptide_toolkit.ranks.group import Ranks


class OptimizerShards(ResidentStore):
    """Lends the state of whole parameters, gathered. Weights and gradients are here.

    Attributes:
        meetings: the exchanges of the processes. Each must be able to send rows.
        saves: the part of this process in saves that all write.
        ended_by: the error that ends the run, if there is one; set before `close`.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks) -> None:
        super().__init__(model, optimizer)
        self._ranks = ranks
        self._state = StateParts.of(optimizer, self.parameters, ranks)
        self._rows = self._state.rows
        self.meetings = Meetings(ranks, self._hand_out)
        # A plugin may write other weights here before this process hears of a save.
        self.saves = SharedSaves(ranks, self.meetings, self._state, None, ranks.size)
        self.ended_by: BaseException | None = None

    def _hand_out(self, request: LoanRequest, takers: Sequence[int]) -> Any:
        if request.of in SAVES:
            return self.saves.serve(request)
        name = [*self.parameters][request.number]
        return self._state.hand_out(name, takers, self._ranks)

    def optimizer_state(self) -> _GeneratorContextManager[dict[str, Any]]:
        """Lend the optimizer's `state_dict`, gathered unless all processes save it."""
        return self.saves.state_or(super().optimizer_state, self._numbered)

    def lend_state(
        self, span: Span, mode: Mode, *, on: torch.device | None = None
    ) -> _GeneratorContextManager[dict[str, Any]]:
        """Lend the optimizer's state of the whole parameter, gathered."""
        return self._state.lend(span, mode, on, self.meetings)

    def load_optimizer_state_dict(self, state: dict[str, Any], read: Any = None) -> None:
        """Load the state of whole parameters; keep the rows of this process."""
        self._state.load(state, read, self._numbered())

    def keep(self, span: Span, keeper: Keeper) -> Callable[[], None]:
        """Raise ValueError: an update writes rows of the weight in place."""
        return ParameterStore.keep(self, span, keeper)

    def close(self) -> None:
        """Wait until no process asks for rows any more."""
        super().close()
        leave_together(self.meetings, self.ended_by)

    def step(self) -> None:
        """Run the optimizer's step on the rows of this process; get those of the others."""
        with self._rows_only(), torch.no_grad():
            super().step()
        updated = [span for span in self.spans() if self.has_gradient(span)]
        with torch.no_grad():
            for bucket in buckets(updated):
                self._share(bucket)

    @contextmanager
    def _rows_only(self) -> Iterator[None]:
        """Inside the context, each parameter and its gradient are the rows of this process."""
        whole = {name: (one.data, one.grad) for name, one in self.parameters.items()}
        try:
            for name, (weight, gradient) in whole.items():
                rows = self._rows[name]
                own = None if gradient is None else rows.own(gradient)
                _set(self.parameters[name], rows.own(weight), own)
            yield
        finally:
            for name, (weight, gradient) in whole.items():
                _set(self.parameters[name], weight, gradient)

    def _share(self, bucket: list[Span]) -> None:
        """Copy the rows of all processes into the weights of a bucket."""
        weights = [(self.parameters[span.name].data, self._rows[span.name]) for span in bucket]
        own = torch.cat([rows.padded(rows.own(one)).reshape(-1) for one, rows in weights])
        found = own.new_empty(self._ranks.size, len(own))
        self._ranks.gather(own, list(found.unbind()))
        sizes = [rows.chunk * torch.Size(rows.shape[1:]).numel() for _, rows in weights]
        for (one, rows), parts in zip(weights, found.split_with_sizes(sizes, dim=1), strict=True):
            for rank, part in enumerate(parts):
                first, count = rows.range_of(rank)
                if rank != self._ranks.rank:
                    one.narrow(0, first, count).copy_(
                        part.view(rows.chunk, *rows.shape[1:])[:count]
                    )


def _set(parameter: nn.Parameter, weight: torch.Tensor, gradient: torch.Tensor | None) -> None:
    parameter.grad = None  # a gradient must have the shape of its parameter
    parameter.data = weight
    parameter.grad = gradient
