"""Connects streaming to a run's parameter store, backwards, errors and memory ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide import ROLLBACK, Plugin, hookimpl
from neaptide_toolkit.machine.heap import give_back_large, keep_large
from neaptide_toolkit.offload.disk import cloning

from .accounting import account, explained
from .assembly import NAME, build, decided
from .budget import spare_bytes
from .config import LayerStreamingConfig
from .outside import check_graph, told_outside
from .store import StreamedStore
from .tiers.wear import Wear
from .turns import Turns
from .weights.uneven import large_block

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    import torch
    from torch import nn

    from neaptide import (
        AroundBackward,
        AroundEvaluate,
        AroundForward,
        AroundOptimizerStep,
        AroundPredict,
        AroundSave,
        AroundTrainStep,
        Ledger,
        Outcome,
        Phase,
        Run,
    )

    from .streaming import Streaming

_SETTLED = 3
"""Number of updates after which the memory peak of a step is known.

The optimizer has created its state by then.
"""


@attrs.define(eq=False)
class LayerStreaming(Plugin[LayerStreamingConfig]):
    """Streams the model's blocks."""

    _run: Run = attrs.field(init=False)
    _store: StreamedStore | None = attrs.field(init=False, default=None)
    _held: list[torch.Tensor] = attrs.field(init=False, factory=list)
    _measured: bool = attrs.field(init=False, default=False)
    _steps: int = attrs.field(init=False, default=0)
    _wear: Wear | None = attrs.field(init=False, default=None)
    _taken: Callable[[], AbstractContextManager[None]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Keep the heap whole until the first updates have made what stays."""
        give_back_large()

    @hookimpl
    def provide_parameters(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, run: Run
    ) -> StreamedStore:
        """Move the blocks' parameters to the host and patch their forwards."""
        streaming = build(model, optimizer, run, self.config)
        self._store = StreamedStore(model, streaming, run.device)
        self._held = streaming.buffers()
        return self._store

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        """Log the decisions."""
        self._run = run
        streaming = self._streaming()
        turns = Turns(streaming, run)
        turns.check_hooks()
        self._taken = turns.taken
        if streaming.applying is not None:
            run.stash.on_set(ROLLBACK, streaming.applying.forget)
        run.log.info("streaming.started", **decided(streaming, run, self.config))
        hint = large_block([(block.name, block.module) for block in streaming.blocks])
        if hint is not None:
            run.log.warning("streaming.large_block", hint=hint)
        if streaming.homes.files:
            self._wear = Wear(streaming.homes, self.config, run)
        if streaming.homes.unpinned is not None:
            run.log.warning("streaming.not_pinned", reason=streaming.homes.unpinned)

    @hookimpl
    def on_phase_enter(self, phase: Phase) -> None:
        """Stream in the configured phases; in other phases keep every block on the device."""
        self._streaming().stay(whole=self._stays_whole(phase))

    def _stays_whole(self, phase: Phase) -> bool:
        return phase.name not in self.config.phases

    @hookimpl
    def after_step(self, step: int) -> None:
        """With `resident = "auto"`, keep as many blocks on the device as fit in the free memory."""
        self._steps += 1
        if self._steps == _SETTLED:
            keep_large()
        if self._wear is not None:
            self._wear.after_step()
        if self.config.resident != "auto" or step < _SETTLED or self._measured:
            return
        self._measured = True
        streaming = self._streaming()
        spare = spare_bytes(streaming.residency.device, self.config.device_gib)
        with self._taken():
            count = streaming.keep_last(spare)
        if count:
            self._held = streaming.buffers()
            self._run.log.info("streaming.resident", blocks=count, spare_bytes=spare)

    @hookimpl
    def on_run_end(self) -> None:
        """Restore the blocks' forwards; the weights stay on the host."""
        keep_large()
        if self._wear is not None:
            self._wear.end()
        if self._store is not None:
            self._store.streaming.close()

    @hookimpl(tryfirst=True)
    def around_train_step(self) -> AroundTrainStep:
        """Hold the module's tensors during a step."""
        return self._in_turn

    @hookimpl(tryfirst=True)
    def around_predict(self) -> AroundPredict:
        """Hold the module's tensors during a predicted update."""
        return self._in_turn

    @hookimpl(tryfirst=True)
    def around_evaluate(self) -> AroundEvaluate:
        """Hold the module's tensors during an evaluation."""
        return self._in_turn

    def _in_turn(self, following: Callable[..., Any], **arguments: Any) -> Any:
        with self._taken():
            return following(**arguments)

    @hookimpl
    def around_backward(self) -> AroundBackward:
        """After each backward, store the remaining gradients and set `.grad` of each parameter."""
        streaming = self._streaming()

        def gathered(
            following: Callable[..., None], *, phase: Phase, loss: torch.Tensor, **arguments: Any
        ) -> None:
            if streaming.settings.mode != "graph":
                check_graph(streaming.blocks, loss)
            try:
                with (
                    explained(streaming, f"{phase.name}, backward"),
                    told_outside(streaming.blocks),
                    streaming.gradients.permission.final(),
                ):
                    following(phase=phase, loss=loss, **arguments)
                    streaming.gradients.flush()
            except BaseException:
                self._tell_half_updated()
                raise

        return gathered

    def _tell_half_updated(self) -> None:
        """After an error in a backward, warn if it has updated some weights."""
        applying = self._streaming().applying
        if applying is not None and applying.stepped:
            self._run.log.warning(
                "streaming.half_updated",
                updated=len(applying.stepped),
                hint="the backward ended after it had updated these weights; load a checkpoint "
                "before training goes on, or use update = 'after_backward'",
            )

    @hookimpl
    def around_forward(self) -> AroundForward:
        """If a forward runs out of memory, raise an error that lists the uses of memory."""
        streaming = self._streaming()

        def forward(
            following: Callable[..., Any], *, phase: Phase, moment: str, **arguments: Any
        ) -> Any:
            what = "forward" if moment == "train" else moment
            with explained(streaming, f"{phase.name}, {what}"), told_outside(streaming.blocks):
                return following(phase=phase, moment=moment, **arguments)

        return forward

    @hookimpl
    def around_optimizer_step(self) -> AroundOptimizerStep | None:
        """Log the blocks that were not updated because of a non-finite gradient."""
        applying = self._streaming().applying
        if applying is None:
            return None

        def told(following: Callable[..., Outcome], **arguments: Any) -> Outcome:
            if applying.left_out:
                self._run.log.warning("streaming.blocks_not_updated", blocks=applying.left_out)
            return following(**arguments)

        return told

    @hookimpl
    def around_save(self) -> AroundSave | None:
        """Clone what is on the disk into a checkpoint, if the file system can."""
        if not self._streaming().homes.files:
            return None

        def save(following: Callable[..., Path], /, *, directory: Path) -> Path:
            with cloning() as cloned:
                saved = following(directory=directory)
            if cloned.bytes:
                self._run.log.info("streaming.cloned", bytes=cloned.bytes)
            return saved

        return save

    @hookimpl
    def estimate_memory(self, ledger: Ledger, phase: Phase) -> Ledger:
        """In the memory ledger, move the blocks' memory to the host and add the slots.

        A slot is a buffer on the device for one block's weights.
        """
        streaming = self._streaming()
        self._held = streaming.buffers()
        all_stay = self._stays_whole(phase)
        return account(ledger, NAME, streaming, backward=phase.runs_backward, all_stay=all_stay)

    @hookimpl
    def collect_metrics(self) -> Mapping[str, float]:
        """Return the number of fetches, and the number of fetches that were not prefetched.

        A fetch copies a block's weights to the device. With a disk, also return the bytes written
        to it.
        """
        residency = self._streaming().residency
        of_disk = {} if self._wear is None else {"disk_written": float(self._wear.written)}
        return {
            "fetches": float(residency.fetches),
            "fetches_waited_for": float(residency.waited_for),
            **of_disk,
        }

    def _streaming(self) -> Streaming:
        assert self._store is not None, "the store was provided"
        return self._store.streaming

    def state_dict(self) -> dict[str, Any]:
        """Return the gradient norm of the last update. Lagged clipping uses this norm."""
        applying = self._streaming().applying
        return {} if applying is None else dict(applying.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        applying = self._streaming().applying
        if applying is not None and state:
            applying.load_state_dict(state)
