"""The plugin: divides each batch, and adds up losses and gradients over the processes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide import Plugin, hookimpl
from neaptide.api import rng
from neaptide.api.phases import PHASES
from neaptide.errors import DataError
from neaptide.run.signals import STOPPING
from neaptide_toolkit.ranks import group as ranks
from neaptide_toolkit.saved_form import counter

from .config import ShardingConfig
from .ledgers import estimated
from .optimizer_shards import OptimizerShards
from .parts import part_of, summed, whole
from .reducing import (
    WHOLE,
    ChangedBuffers,
    Windows,
    add_up,
    checksum_of_all,
    checksum_of_batch,
    checksum_of_present,
    checksum_of_tensors,
    present,
)
from .refusals import check, check_stage, check_store, tell_unused
from .shard_store import ShardStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from neaptide import (
        AroundBackward,
        AroundForward,
        AroundOptimizerStep,
        AroundPredict,
        AroundSave,
        Jump,
        Ledger,
        Outcome,
        ParameterStore,
        Phase,
        Run,
    )
    from neaptide.api.steps import WeighedLoss
    from neaptide.run.signals import StopRequest
    from neaptide_toolkit.ranks.group import Ranks

_NUMBERS = {name: number for number, name in enumerate(PHASES)}


@attrs.define(eq=False)
class Sharding(Plugin[ShardingConfig]):
    """Does nothing in a run of one process."""

    _ranks: Ranks | None = attrs.field(init=False, default=None)
    _run: Run = attrs.field(init=False)
    _store: ParameterStore = attrs.field(init=False)
    _windows: Windows | None = attrs.field(init=False, default=None)
    _buffers: ChangedBuffers = attrs.field(init=False)
    _passes: int = attrs.field(init=False, default=0)
    """Forwards and backwards so far. The random numbers of each have a seed of their own."""
    _stop: StopRequest | None = attrs.field(init=False, default=None)
    _begun: bool = attrs.field(init=False, default=False)
    _model: nn.Module = attrs.field(init=False)
    _shards: ShardStore | None = attrs.field(init=False, default=None)
    """In the stages 2, 3 and hybrid."""
    _divided: ShardStore | OptimizerShards | None = attrs.field(init=False, default=None)
    """In all stages but `replicate`."""

    @hookimpl
    def provide_parameters(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, run: Run
    ) -> ParameterStore | None:
        """Divide the optimizer's state, or the model, if `stage` says so."""
        stage, group = self.config.stage, ranks.current()
        ranks.require_group(group, run.device)
        if group is None or stage == "replicate":
            tell_unused(run, self.config)
            return None
        check(run, model, group.size)
        check_stage(run, model, optimizer, self.config)
        found = group.exchange("start", [checksum_of_tensors(model.parameters())])
        group.require_equal("weights at the start", [int(one) for (one,) in found])
        if stage == 1:
            self._divided = OptimizerShards(model, optimizer, group)
        else:
            self._shards = ShardStore.of(self.config, model, optimizer, run, group)
            self._divided = self._shards
        return self._divided

    @hookimpl
    def on_run_start(self, run: Run, model: nn.Module, store: ParameterStore) -> None:
        """Find the other processes; ConfigError if the run cannot be divided among them."""
        self._ranks = ranks.current()
        ranks.require_group(self._ranks, run.device)
        self._run, self._store, self._model = run, store, model
        if self._ranks is not None:
            if self._divided is None:  # else it was checked before it was divided
                check(run, model, self._ranks.size)
            check_store(store, self._ranks.size, self.config.stage)
            if self.config.check_weights:
                self._windows = self._shards.windows() if self._shards else Windows.of(store)
            self._buffers = ChangedBuffers(model)
            self._buffers.checksum()
            run.stash.on_set(STOPPING, self._stop_together)

    @hookimpl
    def around_forward(self) -> AroundForward | None:
        """Compute this process's part of the batch; return the loss of the whole batch."""
        group = self._ranks
        if group is None:
            return None

        def divided(
            following: Callable[..., WeighedLoss],
            *,
            batch: Any,
            phase: Phase,
            moment: str,
            **others: Any,
        ) -> WeighedLoss:
            self._begin(group)
            part = part_of(batch, group.rank, group.size)
            with self._own_numbers(group), self._gathering():
                loss = following(batch=part.batch, phase=phase, moment=moment, **others)
            own, total, count = summed(loss, part)
            seen = self._seen()
            stop = self._stop
            heard = (stop and stop.heard) or 0
            place = [_NUMBERS[phase.name], self._passes, checksum_of_batch(batch), seen]
            found = self._exchange(moment, [*place, heard, total, count])
            phases, passes, batches, bits, signals, sums, counts = zip(*found, strict=True)
            group.require_equal("phases", [[*PHASES][int(number)] for number in phases])
            group.require_equal("numbers of passes", [*map(int, passes)])
            group.require_equal("batches (they must all read the same)", [*map(int, batches)])
            group.require_equal("weights, changed buffers or orders of blocks", [*map(int, bits)])
            if stop is not None:
                stop.received = next((int(one) for one in signals if one), stop.received)
            return whole(loss, own, sums, counts)

        return divided

    @hookimpl
    def around_backward(self) -> AroundBackward | None:
        """Draw the random numbers of a backward from this process's own seed."""
        group = self._ranks
        if group is None:
            return None

        def seeded(following: Callable[..., None], **arguments: Any) -> None:
            with self._own_numbers(group):
                following(**arguments)

        return seeded

    @hookimpl
    def around_optimizer_step(self) -> AroundOptimizerStep | None:
        """Add up the gradients of all processes before anything reads them."""
        group = self._ranks
        if group is None:
            return None

        def added(following: Callable[..., Outcome], **arguments: Any) -> Outcome:
            shards = self._shards
            own = [checksum_of_present(shards), shards.squares()] if shards else [0, 0]
            found = self._exchange("update", [self._passes, *own])
            passes, there, squares = zip(*found, strict=True)
            group.require_equal("numbers of passes", [*map(int, passes)])
            if shards is None:
                add_up(self._store, group, present(self._store))
            else:
                group.require_equal("sets of weights with a gradient", [*map(int, there)])
                shards.know_squares(squares)
            return following(**arguments)

        return added

    @hookimpl
    def around_predict(self) -> AroundPredict | None:
        """Require that all processes jump alike."""
        group = self._ranks
        if group is None:
            return None

        def alike(following: Callable[..., Jump | None], **arguments: Any) -> Jump | None:
            jump = following(**arguments)
            facts = [0.0] * 4
            if jump is not None:
                facts = [1.0 + jump.accepted, jump.horizon, jump.scale, jump.norm]
            group.require_equal("jumps", [repr(one) for one in self._exchange("jump", facts)])
            return jump

        return alike

    @hookimpl
    def estimate_memory(self, ledger: Ledger, phase: Phase) -> Ledger:
        """Add the gradients that are added up at once."""
        if self._ranks is None:
            return ledger
        return estimated(ledger, phase, self._model, self._store, self._ranks.size)

    @hookimpl
    def around_save(self) -> AroundSave | None:
        """Let all processes write their rows of a checkpoint."""
        if self._divided is None or self.config.saves == "first":
            return None
        return self._divided.saves.around(self._run)

    @hookimpl
    def on_run_end(self, error: BaseException | None) -> None:
        """Tell the store how the run ends: it closes when the first process has saved all."""
        if self._divided is not None:
            self._divided.ended_by = error

    def _seen(self) -> int:
        """Return a checksum of what all processes must have seen alike in a forward."""
        if self._shards is not None:
            own = self._shards.order
        else:
            own = self._windows.checksum() if self._windows else 0
        return (own + 31 * self._buffers.checksum()) & WHOLE

    def _exchange(self, place: str, numbers: list[float]) -> list[list[float]]:
        group = self._divided.meetings if self._divided is not None else self._ranks
        assert group is not None, "only in a run of several processes"
        return group.exchange(place, numbers)

    @contextmanager
    def _gathering(self) -> Iterator[None]:
        """Gather the present weights in a forward inside the context."""
        if self._shards is None:
            yield
            return
        # Nobody waits for rows while the others are in a forward, which exchanges weights.
        rows = self._windows.checksum() if self._windows else 0
        found = self._exchange("forward", [self._passes, rows])
        self._shards.copies.one_of("weights", [int(one) for _, one in found])
        self._shards.reshard()
        yield
        if not torch.is_grad_enabled():  # no backward frees them
            self._shards.reshard()

    def _stop_together(self) -> None:
        """Let `fit` obey a signal only when all processes have told each other of it.

        They meet here, after each has loaded: the first may replace the checkpoint at once.
        """
        self._stop = self._run.stash.get(STOPPING)
        if self._stop is not None and self._ranks is not None:
            self._stop.alone = False
            self._begin(self._ranks)

    def _begin(self, group: Ranks) -> None:
        """Before the first pass: require that all processes have the same weights."""
        if self._begun:
            return
        self._begun = True
        shards = self._shards
        own = shards.checksum() if shards else checksum_of_all(self._store)
        buffers = checksum_of_tensors(self._model.buffers())
        every = zip(*self._exchange("start", [own, buffers, self._passes]), strict=True)
        weights, held, passes = ([*map(int, values)] for values in every)
        (shards.copies.one_of if shards else group.require_equal)("weights at the start", weights)
        group.require_equal("buffers at the start", held)
        group.require_equal("numbers of passes", passes)
        group.share_generator(self._run.device)

    @contextmanager
    def _own_numbers(self, group: Ranks) -> Iterator[None]:
        """Inside the context, draw random numbers that no other process draws."""
        self._passes += 1
        seed = (self._run.config.seed * 1_000_003 + self._passes) * 65_537 + group.rank + 1
        with rng.preserved(), ranks.peers_told():
            rng.seed_all(seed % 2**63)
            try:
                yield
            except BaseException as error:
                if self._divided is not None and not isinstance(error, DataError):
                    self._divided.meetings.broken = True
                raise

    def state_dict(self) -> dict[str, Any]:
        """Return how many passes were made, because their random numbers depend on it."""
        return {"passes": self._passes} if self._passes else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned; in a run of one process it is empty."""
        self._passes = counter(state, "passes") if state else 0
        self._begun = False
