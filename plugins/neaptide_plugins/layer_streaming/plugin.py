"""Provides the store of a model whose blocks stream, and tells each backward's end."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide import ConfigError, DoesNotFitError, Plugin, hookimpl
from neaptide.machine import memory
from neaptide.recompute import find_blocks

from .accounting import account
from .blocks import parameters_outside
from .budget import free_bytes, least, plan, shortage
from .checks import check_blocks, check_modules, check_slots
from .config import LayerStreamingConfig
from .oom import explanation, is_out_of_memory
from .stepping import adoptable
from .store import StreamedStore
from .streaming import Settings, Streaming

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import nn

    from neaptide import Ledger, Outcome, Phase, Run

_NAME = "layer-streaming"
_WHERE = f"@ plugins.{_NAME}"


@attrs.define(eq=False)
class LayerStreaming(Plugin[LayerStreamingConfig]):
    """Streams the model's blocks."""

    _run: Run = attrs.field(init=False)
    _store: StreamedStore | None = attrs.field(init=False, default=None)
    _held: list[torch.Tensor] = attrs.field(init=False, factory=list)

    @hookimpl
    def provide_parameters(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, run: Run
    ) -> StreamedStore:
        """Move the blocks' parameters to the host and patch their forwards."""
        try:
            blocks = find_blocks(model, self.config.blocks, self.config.exclude)
            check_blocks(model, blocks)
            check_modules(blocks, self.config)
            check_slots(model, blocks, self.config.max_active_layers)
            settings = self._settings(optimizer, run)
            self._check_room(model, blocks, optimizer, settings, run.device)
            streaming = Streaming(
                model, blocks, optimizer, run.device, settings, pin=self.config.pin
            )
        except ValueError as error:
            msg = f"{error} {_WHERE}"
            raise ConfigError(msg) from error
        self._store = StreamedStore(model, streaming, run.device)
        self._held = streaming.buffers()
        return self._store

    def _check_room(
        self,
        model: nn.Module,
        blocks: list[tuple[str, nn.Module]],
        optimizer: torch.optim.Optimizer,
        settings: Settings,
        device: torch.device,
    ) -> None:
        outside = parameters_outside(model, [block for _, block in blocks])
        adopted = adoptable(optimizer) is None
        needed = plan(blocks, outside, optimizer, settings, adopted=adopted)
        host, on_device = dict(needed.host), needed.device
        if device.type == "cpu":
            host |= on_device
        checks = [(host, least(memory().room, self.config.host_gib), "RAM", "host_gib")]
        if device.type != "cpu" or self.config.device_gib is not None:
            free = free_bytes(device)
            room = least(free, self.config.device_gib)
            checks.append((on_device, room, str(device), "device_gib"))
        for parts, room, where, setting in checks:
            problem = shortage(parts, room, where)
            if problem is not None:
                msg = f"{problem} {_WHERE}.{setting}"
                raise DoesNotFitError(msg)

    def _settings(self, optimizer: torch.optim.Optimizer, run: Run) -> Settings:
        config, train = self.config, run.config.train
        reason = adoptable(optimizer)
        in_backward = config.update == "in_backward"
        wanted = config.optimizer_on == "device" or in_backward or config.master == "split"
        if reason is not None and wanted:
            what = (
                "update = 'in_backward'"
                if in_backward
                else "optimizer_on = 'device'"
                if config.optimizer_on == "device"
                else "master = 'split'"
            )
            msg = (
                f"{what} needs an optimizer that can be stepped block by block: {reason}; set "
                f"optimizer_on = 'cpu' with update = 'after_backward' and master = 'weights'"
            )
            raise ValueError(msg)
        if in_backward and config.clip == "global" and train.clip_norm is not None:
            msg = (
                f"clip = 'global' needs stored gradients (train.clip_norm is {train.clip_norm}), "
                f"which update = 'in_backward' does without; choose clip = 'per_tensor' or "
                f"'lagged', or update = 'after_backward'"
            )
            raise ValueError(msg)
        if config.clip == "none" and train.clip_norm is not None:
            msg = f"clip = 'none' contradicts train.clip_norm = {train.clip_norm}; drop one of them"
            raise ValueError(msg)
        on_device = wanted or (
            config.optimizer_on == "auto" and run.device.type != "cpu" and reason is None
        )
        return Settings(
            max_active_layers=config.max_active_layers,
            prefetch_distance=config.prefetch_distance,
            resident=config.resident,
            mode=config.mode,
            inputs_on_host=config.inputs == "host",
            micro_batches=config.micro_batches,
            on_device=on_device,
            in_backward=in_backward,
            clip="none" if config.clip == "global" else config.clip,
            max_norm=train.clip_norm,
            check_finite=train.check_finite,
            split_master=config.master == "split",
        )

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        """Say what was decided."""
        self._run = run
        streaming = self._streaming()
        settings, train = streaming.settings, run.config.train
        clip = "none" if train.clip_norm is None else self.config.clip
        run.log.info(
            "streaming.started",
            blocks=len(streaming.blocks),
            host_bytes=sum(block.host.nbytes for block in streaming.blocks),
            slot_bytes=sum(slot.nbytes for slot in streaming.residency.buffers()),
            optimizer_on="device" if settings.on_device else "cpu",
            update=self.config.update,
            clip=clip,
            micro_batches=settings.micro_batches,
        )
        if streaming.unpinned is not None:
            run.log.warning("streaming.not_pinned", reason=streaming.unpinned)

    @hookimpl
    def on_run_end(self) -> None:
        """Leave the weights on the host, and put the blocks' forwards back."""
        if self._store is not None:
            self._store.streaming.close()

    @hookimpl
    def around_backward(self) -> Callable[..., None]:
        """Gather the gradients that have left the device."""
        gradients = self._streaming().gradients

        def gathered(following: Callable[..., None], *, phase: Phase, **arguments: Any) -> None:
            with self._explained(phase, "backward"):
                following(phase=phase, **arguments)
                gradients.flush()

        return gathered

    @hookimpl
    def around_forward(self) -> Callable[..., Any]:
        """Say who holds what where a forward runs out of memory."""

        def explained(
            following: Callable[..., Any], *, phase: Phase, moment: str, **arguments: Any
        ) -> Any:
            with self._explained(phase, "forward" if moment == "train" else moment):
                return following(phase=phase, moment=moment, **arguments)

        return explained

    @contextmanager
    def _explained(self, phase: Phase, moment: str) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            streaming, where = self._streaming(), f"{phase.name}, {moment}"
            text = explanation(str(error), where, streaming.held(), streaming.savings())
            raise torch.OutOfMemoryError(text) from error

    @hookimpl
    def around_optimizer_step(self) -> Callable[..., Outcome] | None:
        """Say which blocks a non-finite gradient has left without their update."""
        applying = self._streaming().applying
        if applying is None:
            return None

        def told(following: Callable[..., Outcome], **arguments: Any) -> Outcome:
            if applying.left_out:
                self._run.log.warning("streaming.blocks_not_updated", blocks=applying.left_out)
            return following(**arguments)

        return told

    @hookimpl
    def estimate_memory(self, ledger: Ledger, phase: Phase) -> Ledger:
        """Move what streams to the host, and add the slots."""
        streaming = self._streaming()
        return account(ledger, _NAME, streaming, backward=phase.runs_backward)

    @hookimpl
    def collect_metrics(self) -> Mapping[str, float]:
        """Return the fetches so far, and how many of them nobody had foreseen."""
        residency = self._streaming().residency
        return {
            "fetches": float(residency.fetches),
            "fetches_waited_for": float(residency.waited_for),
        }

    def _streaming(self) -> Streaming:
        assert self._store is not None, "the store was provided"
        return self._store.streaming

    def state_dict(self) -> dict[str, Any]:
        """Return the norm that lagged clipping goes by."""
        applying = self._streaming().applying
        return {} if applying is None else dict(applying.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        applying = self._streaming().applying
        if applying is not None and state:
            applying.load_state_dict(state)
