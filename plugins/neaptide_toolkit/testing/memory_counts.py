"""Run a plugin and count the bytes held at marked moments of each phase, for each allocator."""

from __future__ import annotations

import functools
import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide import devices
from neaptide.api.phases import PREDICT, Phase
from neaptide.plugin import NoConfig, Plugin, PluginSpec, hookimpl
from neaptide_toolkit.machine.devices import end_backward
from neaptide_toolkit.offload import lies_in_slab, mapped_slabs, slab_bytes
from neaptide_toolkit.tensors import nested_tensors, tensor_bytes

from .allocations import Allocations, counted
from .tiny import accelerator_or_cpu, tiny_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from neaptide import AroundEvaluate, AroundForward, AroundOptimizerStep
    from neaptide.api.memory import Ledger, Moment
    from neaptide.api.parameters import ParameterStore

    from .subject import Subject

WIDTH = 128
"""Width of the network: 5 % of its 1.2 MB of weights is far more than counters and rounding."""
STEPS = 22
"""Number of steps: almost two cycles of the phases."""


@attrs.frozen
class HeldBytes:
    """Bytes held at one moment, minus the bytes held before the run, for each allocator."""

    cpu: int
    cuda: int
    slabs: int


@attrs.frozen(eq=False)
class Observed:
    """The bytes that a run used, and the bytes that its ledgers (memory estimates) state.

    If the run entered a phase several times, the figures are from the last time. If a moment was
    marked several times in that phase, the figure is the maximum.
    """

    device: torch.device
    held: dict[tuple[str, Moment], HeldBytes]
    ledgers: dict[str, Ledger]
    beside_weights: int
    """Bytes of optimizer state that the optimizer itself allocated for weights on the host."""

    def stated(self, key: tuple[str, Moment]) -> tuple[int, int]:
        """Return the stated bytes on device and host."""
        phase, moment = key
        ledger = self.ledgers[phase]
        return ledger.total(tier="device", moment=moment), ledger.total(tier="host", moment=moment)

    def outside_slabs(self, key: tuple[str, Moment]) -> int:
        """Return the host bytes of a CPU run that are not in a slab (a host buffer)."""
        phase, moment = key
        state = self.ledgers[phase].total(tier="host", moment=moment, kind="optimizer.state")
        return min(self.beside_weights, state)


def observed(subject: Subject) -> Observed:
    """Train through all phases with an evaluation after each step, and count at every mark."""
    if torch.accelerator.is_available():
        keep_workspaces(accelerator_or_cpu())
        gc.collect()  # garbage of earlier runs must not be freed during this one
    slabs_before, cuda_before = mapped_slabs(), _cuda_bytes()
    others: dict[str, list[tuple[int, int]]] = {}

    def mark(name: str) -> None:
        end_backward(accelerator_or_cpu())  # its thread drops gradients late
        Allocations.mark(name)
        others.setdefault(name, []).append((_cuda_bytes() - cuda_before, slab_bytes(slabs_before)))

    with _no_collector(), counted() as allocations:
        task = tiny_task(width=WIDTH)
        with subject.trainer(task, MARKS) as trainer:
            marks = trainer.hooks.plugins[MARKS.name]
            assert isinstance(marks, Marks), "it is what the manifest names"
            marks.mark = mark
            ledgers: dict[str, Ledger] = {}
            for batch in task.batches[:STEPS]:
                result = trainer.step(batch)
                trainer.evaluate(task.batches[STEPS : STEPS + 1])
                # Keep the current ledger, because the bytes that a plugin holds may grow later.
                phases = [result.phase.name, *([PREDICT.name] if result.jump else [])]
                ledgers.update((phase, trainer.estimate_memory(phase)) for phase in phases)
            beside = _state_beside_weights(trainer.store, task.model)
            device = trainer.run.device
    held: dict[Any, HeldBytes] = {}
    for name, each in allocations.at_marks().items():
        phase, moment, _ = name.split()
        every = [
            HeldBytes(cpu, cuda, slabs)
            for cpu, (cuda, slabs) in zip(each, others[name], strict=True)
        ]
        held[phase, moment] = max(reversed(every), key=lambda one: one.cpu + one.cuda + one.slabs)
    return Observed(device, held, ledgers, beside)


@functools.cache
def keep_workspaces(device: torch.device) -> None:
    """Let the device's libraries allocate the memory that they keep from their first products on.

    cuBLAS keeps a workspace for each thread with products: one of the forward, one of the backward.
    """
    for dtype in (torch.float32, torch.bfloat16):
        one = torch.ones(64, 64, dtype=dtype, device=device, requires_grad=True)
        torch.autograd.backward(torch.nn.functional.linear(one @ one, one, one[0]).sum())


def _cuda_bytes() -> int:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return (accelerator and devices.allocator_count(accelerator, "memory_allocated")) or 0


@contextmanager
def _no_collector() -> Iterator[None]:
    """Disable the garbage collector: the moments at which it runs would change the counts."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _state_beside_weights(store: ParameterStore, model: nn.Module) -> int:
    on_host = {span.name for span in store.spans() if span.tier == "host"}
    return tensor_bytes(
        tensor
        for name, parameter in model.named_parameters()
        if name in on_host
        for tensor in nested_tensors(dict(store.optimizer.state.get(parameter, {})))
        if not lies_in_slab(tensor)
    )


@attrs.define(eq=False)
class Marks(Plugin[NoConfig]):
    """Calls `mark` just before the core runs a forward, an update or an evaluation.

    At this moment the hooks of all other plugins have already begun. A mark's name states the
    phase, the moment, and how many phases the run has entered so far.
    """

    mark: Callable[[str], None] = attrs.field(init=False, default=lambda _: None)
    _stays: int = attrs.field(init=False, default=0)
    _phase: Phase | None = attrs.field(init=False, default=None)
    _end: Callable[[], None] | None = attrs.field(init=False, default=None)

    @hookimpl
    def on_run_start(self, store: ParameterStore) -> None:
        """In each update, set another mark when the optimizer starts, after the store's fetches."""

        def begins(*_: Any) -> None:
            assert self._phase is not None, "updates are made in a phase"
            self._mark(self._phase, "update")

        begins.reads_gradients = False  # type: ignore[attr-defined]  # layer-streaming asks for it
        self._end = store.optimizer.register_step_pre_hook(begins).remove

    @hookimpl
    def on_run_end(self) -> None:
        """Remove the hook."""
        if self._end is not None:
            self._end()

    @hookimpl
    def on_phase_enter(self, phase: Phase) -> None:
        """Count the phases that the run has entered so far."""
        self._stays += 1
        self._phase = phase

    @hookimpl
    def around_forward(self) -> AroundForward:
        """Mark training forwards, and the probes (forwards that measure a loss)."""

        def forward(
            following: Callable[..., Any], *, phase: Phase, moment: str, **arguments: Any
        ) -> Any:
            if moment != "evaluate":
                self._mark(phase, "predict" if moment == "probe" else "forward")
            return following(phase=phase, moment=moment, **arguments)

        return forward

    @hookimpl
    def around_optimizer_step(self) -> AroundOptimizerStep:
        """Mark updates. Gradients exist at this moment."""
        return self._marking("update")

    @hookimpl
    def around_evaluate(self) -> AroundEvaluate:
        """Mark evaluations."""
        return self._marking("evaluate")

    def _marking(self, moment: Moment) -> Callable[..., Any]:
        def marked(following: Callable[..., Any], *, phase: Phase, **arguments: Any) -> Any:
            self._mark(phase, moment)
            return following(phase=phase, **arguments)

        return marked

    def _mark(self, phase: Phase, moment: Moment) -> None:
        self.mark(f"{phase.name} {moment} {self._stays}")


MARKS = PluginSpec(
    name="memory-marks",
    load="neaptide_toolkit.testing.memory_counts:Marks",
    summary="Marks the moments at which memory is counted, for tests.",
)
