"""The store of a model that torch's `fully_shard` divides: each process has rows of each tensor.

A loan lends the whole tensor, gathered; what a loan for writing leaves, each process keeps its rows
of. Norms, scales and the optimizer's step work on the rows alone.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch

from neaptide.api.parameters import ParameterStore
from neaptide.api.spans import Mode, Span, TensorOf
from neaptide.errors import ModelError
from neaptide.norms import norm_of

from .config import REGATHERS
from .copies import ModelCopies
from .fully_sharded import Gathering, fully_sharded, reshard
from .leaving import leave_together
from .meetings import SAVES, LoanRequest, Meetings
from .offloading import RowsHome
from .reducing import WHOLE, Windows, checksum, checksum_of_tensors
from .rows import gathered, stand_in
from .saves.shared_saves import SharedSaves
from .state_parts import StateParts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager, _GeneratorContextManager

    from torch import nn

    from neaptide import Run
    from neaptide_toolkit.ranks.group import Ranks

    from .config import ShardingConfig


class ShardStore(ParameterStore):
    """Divides the model when it is made. The optimizer keeps its parameters: they become rows.

    Attributes:
        copies: the processes, by the copy of the model that they divide.
        home: where a process has its rows.
        gathering: when and how whole weights are gathered.
        meetings: the exchanges of the processes. Each must be able to send rows.
        order: a checksum of the units that have run in the present forward. What is gathered for
            one process is taken for the unit whose turn it is in another.
        saves: the part of this process in saves that all write.
        ended_by: the error that ends the run, if there is one; set before `close`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        copies: ModelCopies,
        home: RowsHome,
        gathering: Gathering,
    ) -> None:
        super().__init__(model, optimizer)
        self.copies, self.home, self.gathering = copies, home, gathering
        self._state = StateParts.of(optimizer, self.parameters, copies.shards)
        self._rows = self._state.rows
        mesh = copies.mesh(next(one.device.type for one in self.parameters.values()))
        self._shards, self._units = fully_sharded(model, self.parameters, mesh, home, gathering)
        if home.tier == "host":
            self._state.to_ram()
        self._spans: tuple[tuple[bool, ...], list[Span]] = ((), [])
        self._norm: float | None = None
        self._trained = {name: one.requires_grad for name, one in self.parameters.items()}
        self.order = 0
        for number, unit in enumerate(cast("list[nn.Module]", self._units)):
            unit.register_forward_pre_hook(partial(self._entered, number))
        self.meetings = Meetings(copies.every, self._hand_out)
        size = copies.shards.size
        self.saves = SharedSaves(copies.every, self.meetings, self._state, self._rows_of, size)
        self.ended_by: BaseException | None = None

    @classmethod
    def of(
        cls,
        config: ShardingConfig,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        run: Run,
        every: Ranks,
    ) -> ShardStore:
        """Divide the model among all processes as the settings say; see `ModelCopies.of`."""
        copies, home = ModelCopies.of(config, every), RowsHome.of(config, run, optimizer)
        dtype = None if config.param_dtype == "own" else getattr(torch, config.param_dtype)
        gathering = Gathering(again=config.stage in REGATHERS, dtype=dtype)
        return cls(model, optimizer, copies, home, gathering)

    def spans(self) -> list[Span]:
        """Return one span per parameter, with its whole shape, in the order of the module."""
        trained = tuple([shard.requires_grad for shard in self._shards.values()])
        if trained != self._spans[0]:
            home = self.home.tier
            spans = [
                Span(name, self._rows[name].shape, own.dtype, home, trains, tuple(tied))
                for (own, (name, *tied)), trains in zip(self.names.items(), trained, strict=True)
            ]
            self._spans = trained, spans
        return self._spans[1]

    def reshard(self) -> None:
        """Free the gathered weights, so that the next forward gathers the present ones.

        Raises:
            ModelError: the weights that the optimizer updates are no longer those of the model.
        """
        for name, parameter in self.parameters.items():
            shard = self._shards[name]
            if parameter.data_ptr() != _local(shard).data_ptr():
                msg = (
                    f"the weight {name!r} was given other memory (by `.data = ...`?), which is not "
                    f"the model's any more; change it in place"
                )
                raise ModelError(msg)
            if parameter.requires_grad != self._trained[name]:  # by a reference of before
                self._trained[name] = parameter.requires_grad
                shard.requires_grad_(parameter.requires_grad)
        reshard(self._units)
        self.order = 0

    def checksum(self) -> int:
        """Return a checksum of the rows that this process has."""
        return checksum_of_tensors(self.parameters.values())

    def windows(self) -> Windows:
        """Return parts of these rows, for a comparison at each step."""
        return Windows.of_rows(self.parameters.values())

    def _entered(self, number: int, *_: Any) -> None:
        self.order = (self.order * 31 + number + 1) & WHOLE

    @contextmanager
    def lend(
        self,
        span: Span,
        mode: Mode,
        *,
        of: TensorOf = "weight",
        on: torch.device | None = None,
    ) -> Iterator[torch.Tensor]:
        """Lend the whole tensor, gathered. After a loan for writing each process has its rows."""
        if of == "weight" and self.saves.is_filling:
            yield stand_in(span.dtype, span.shape)
            return
        if of == "gradient" and not self.has_gradient(span):
            if mode == "read":
                raise KeyError(span.name)
            shard = self._shards[span.name]
            shard.grad = torch.zeros_like(shard)
        request = LoanRequest(self._state.numbers[span.name], of, mode == "write")
        lent: torch.Tensor = self.meetings.borrow(request)
        lent = lent if on is None else lent.to(on)
        yield lent
        if mode == "write":
            found = self.meetings.exchange("written", [checksum(lent)])
            self.copies.every.require_equal(
                f"values for {span.name!r}", [int(one) for (one,) in found]
            )
            self._own(span.name, of).copy_(self._rows[span.name].own(lent))
            self._norm = None

    def lend_state(
        self, span: Span, mode: Mode, *, on: torch.device | None = None
    ) -> AbstractContextManager[dict[str, Any]]:
        """Lend the optimizer's state of the whole parameter, gathered."""
        return self._state.lend(span, mode, on, self.meetings)

    def optimizer_state(self) -> _GeneratorContextManager[dict[str, Any]]:
        """Lend the optimizer's `state_dict`, gathered unless all processes save it."""
        return self.saves.state_or(super().optimizer_state, self._numbered)

    def load_optimizer_state_dict(self, state: dict[str, Any], read: Any = None) -> None:
        """Load the state of whole parameters; keep the rows of this process."""
        self._state.load(state, read, self._numbered())

    def _hand_out(self, request: LoanRequest, takers: Sequence[int]) -> Any:
        if request.of in SAVES:
            return self.saves.serve(request)
        name, shards = [*self.parameters][request.number], self.copies.shards
        takers = self.copies.inside(takers)
        if not takers:  # another copy has all of it
            return None
        if request.of == "state":
            return self._state.hand_out(name, takers, shards)
        return gathered(self._own(name, request.of), self._rows[name], takers, shards)

    def _rows_of(self, name: str) -> torch.Tensor:
        return self._own(name, "weight")

    def _own(self, name: str, of: str) -> torch.Tensor:
        """Return the rows of this process, in place."""
        if of == "weight":
            return self.parameters[name].detach()
        gradient = self._shards[name].grad
        assert gradient is not None, "asked for in a process that has it"
        return _local(gradient)

    def has_gradient(self, span: Span) -> bool:
        """Return whether a gradient has been added up for the parameter."""
        return self._shards[span.name].grad is not None

    def zero_gradients(self) -> None:
        """Drop all gradients."""
        self._norm = None
        for shard in self._shards.values():
            shard.grad = None

    def step(self) -> None:
        """Run the optimizer's step on the rows of this process."""
        try:
            for name, parameter in self.parameters.items():
                gradient = self._shards[name].grad
                parameter.grad = None if gradient is None else _local(gradient)
            super().step()
        finally:
            for parameter in self.parameters.values():
                parameter.grad = None

    def close(self) -> None:
        """Wait until no process asks for rows any more."""
        leave_together(self.meetings, self.ended_by)

    def squares(self) -> float:
        """Return the sum of the squares of this process's gradients; inf or nan if one is."""
        self.home.wait()
        norms = [norm_of(gradient) for gradient in self._gradients()]
        return float(torch.stack(norms).double().square().sum()) if norms else 0.0

    def know_squares(self, squares: Sequence[float]) -> None:
        """Take the norm of the present gradients from what all processes have told each other."""
        self._norm = _root(self.copies.one_of("gradients", squares))

    def gradient_norm(self) -> torch.Tensor:
        """Return the global L2 norm of the whole gradients, 0-dim; zero without gradients."""
        if self._norm is None:
            found = self.meetings.exchange("norm", [self.squares()])
            self.know_squares([one for (one,) in found])
            assert self._norm is not None
        wide = any(one.dtype == torch.float64 for one in self._gradients())
        return torch.tensor(self._norm, dtype=torch.float64 if wide else torch.float32)

    def has_nonfinite_gradients(self) -> bool:
        """Return whether any gradient of any process holds inf or nan."""
        if self._norm is not None and math.isfinite(self._norm):
            return False
        whole = all(bool(torch.isfinite(one).all()) for one in self._gradients())
        return any(one for (one,) in self.meetings.exchange("norm", [not whole]))

    def scale_gradients(self, factor: float | torch.Tensor) -> None:
        """Multiply the gradients by `factor`, a number or a 0-dim tensor that all have alike."""
        self._norm = None
        if gradients := self._gradients():
            wide = torch.as_tensor(factor, dtype=torch.float64)
            torch._foreach_mul_(gradients, wide.cpu() if gradients[0].is_cpu else wide)

    def _gradients(self) -> list[torch.Tensor]:
        found = [shard.grad for shard in self._shards.values()]
        return [_local(gradient) for gradient in found if gradient is not None]


def _local(shard: Any) -> torch.Tensor:
    """Return the rows of a DTensor, in place."""
    found: torch.Tensor = shard.detach().to_local()
    return found


def _root(squares: Sequence[float]) -> float:
    total = math.fsum(squares) if all(map(math.isfinite, squares)) else math.nan
    return math.sqrt(total)
