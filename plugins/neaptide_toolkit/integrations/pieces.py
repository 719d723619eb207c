"""A HybridTrainer whose step is made in pieces: the loops of other libraries call the parts.

Such a loop runs a backward per micro-batch, then clips, calls its callbacks, and updates. Here each
micro-batch is a `HybridTrainer.step` that defers the update, and the update is a step without a
micro-batch.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide import ConfigError, HybridTrainer, Outcome, Plugin, PluginSpec, hookimpl
from neaptide.api import rng
from neaptide.api.steps import WeighedLoss
from neaptide.plugin import NoConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from torch import nn

    from neaptide import (
        AroundOptimizerStep,
        AroundTrainStep,
        ParameterStore,
        RunConfig,
        StepResult,
        Trained,
    )


class _NoMicroBatches(list[Any]):
    """No micro-batch; true, so that the loop does not take the batch itself instead."""

    def __bool__(self) -> bool:
        return True


@attrs.define(eq=False)
class StepInPieces(Plugin[NoConfig]):
    """Defers the update of each step until a step is called to update only."""

    updating: bool = attrs.field(init=False, default=False)
    """Whether the present step only updates."""
    norm: torch.Tensor | None = attrs.field(init=False, default=None)
    """L2 norm of the gradients before the other library clipped them; None if not measured."""

    @hookimpl(tryfirst=True)
    def plan_micro_batches(self) -> list[Any] | None:
        """Return no micro-batch for a step that only updates."""
        return _NoMicroBatches() if self.updating else None

    @hookimpl(tryfirst=True)
    def around_train_step(self) -> AroundTrainStep:
        """Report the gradients' norm as it was before the other library clipped them."""

        def step(following: Callable[..., Trained], **arguments: Any) -> Trained:
            trained = following(**arguments)
            known = self.updating and self.norm is not None
            return attrs.evolve(trained, gradient_norm=self.norm) if known else trained

        return step

    @hookimpl(tryfirst=True)
    def around_optimizer_step(self) -> AroundOptimizerStep:
        """Defer the update of a step with a micro-batch."""

        def update(following: Callable[..., Outcome], **arguments: Any) -> Outcome:
            return following(**arguments) if self.updating else Outcome.DEFERRED

        return update


SPEC = PluginSpec(
    name="step-in-pieces",
    load=f"{__name__}:{StepInPieces.__name__}",
    summary="Lets the loop of another library call the parts of a step.",
    claims={"gradient.accumulation"},
)
"""Not installed: only the integrations enable it."""


class SteppedRun:
    """A HybridTrainer for the loop of another library.

    Args:
        model: as for HybridTrainer.
        optimizer: as for HybridTrainer.
        config: as for HybridTrainer.
        plugins: as for HybridTrainer.

    Raises:
        ConfigError: as for HybridTrainer; also if blocks would be updated inside the backward.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        config: RunConfig | Mapping[str, Any] | str | Path | None,
        plugins: Iterable[str | PluginSpec],
    ) -> None:
        self._compute: Callable[[], torch.Tensor] | None = None
        self.hybrid = HybridTrainer(
            model, optimizer, loss_fn=self._loss, config=config, plugins=[*plugins, SPEC]
        )
        pieces = self.hybrid.hooks.plugins[SPEC.name]
        assert isinstance(pieces, StepInPieces), "created from its manifest"
        self._pieces = pieces
        self.store: ParameterStore = self.hybrid.store
        if not self.store.stores_gradients:
            msg = (
                "gradients must be held until the update, which this loop makes after its "
                'callbacks; set update = "after_backward" @ plugins.layer-streaming.update'
            )
            error = ConfigError(msg)
            self.close(error)
            raise error

    def _loss(self, model: nn.Module, batch: Any) -> WeighedLoss:
        """Return the loss that the other library computes, with the weight that it gave itself.

        Only the first micro-batch counts, as one: so the gradients are added and not averaged.
        """
        del model, batch  # known to `compute`
        assert self._compute is not None, "set by the calls below"
        value = self._compute()
        more = torch.is_grad_enabled() and self.hybrid.state.accumulation.pieces > 0
        return WeighedLoss(value, 0.0 if more else 1.0, is_sum=True)

    # -- a step -----------------------------------------------------------------------------------

    def micro_batch(self, batch: Any, compute: Callable[[], torch.Tensor]) -> StepResult:
        """Add the gradients of `compute()`, a 0-dim loss; before that, try a jump that is due."""
        with self._computing(compute):
            return self.hybrid.step(batch)

    def update(self) -> StepResult:
        """Update the weights with the gradients of all micro-batches since the last update."""
        state = self.hybrid.state
        if not state.accumulation.pieces or state.phase is None:
            msg = "an update needs gradients: train on a batch first"
            raise RuntimeError(msg)
        self._pieces.updating = True
        try:
            result = self.hybrid.step({}, phase=state.phase.name)
        finally:
            self._pieces.updating, self._pieces.norm = False, None
        state.batches -= 1  # this step has taken no batch
        return result

    def clip(self, max_norm: float) -> torch.Tensor:
        """Return the L2 norm of all gradients; clip them to `max_norm`, which may be inf."""
        norm = self.store.gradient_norm()
        self._pieces.norm = norm.clone()
        if math.isfinite(max_norm):
            self.store.clip_gradients(max_norm, norm)
        return norm

    def forget(self) -> None:
        """Drop the gradients since the last update."""
        state = self.hybrid.state
        if state.accumulation.pieces:
            self.store.zero_gradients()
            state.accumulation = type(state.accumulation)()

    # -- evaluation -------------------------------------------------------------------------------

    def evaluation(self, run: Callable[[], Any]) -> Any:
        """Return `run()`, a whole evaluation, inside the plugins' middleware of evaluations.

        The modules' modes are for `run` what they are now. They and the random state stay as `run`
        leaves them: the other library's next log line and next step depend on them.
        """
        found: list[tuple[Any, dict[str, Any], dict[nn.Module, bool]]] = []
        modules = list(self.hybrid.model.modules())
        now = [one.training for one in modules]

        def batches() -> Iterator[Any]:
            for module, training in zip(modules, now, strict=True):
                module.training = training
            result = run()
            found.append((result, rng.capture(), {one: one.training for one in modules}))
            yield from ()

        self.hybrid.evaluate(batches())
        ((result, state, modes),) = found
        rng.restore(state)
        for module, training in modes.items():
            module.training = training
        return result

    def evaluated(
        self, batch: Any, compute: Callable[[], Any], loss_of: Callable[[Any], Any]
    ) -> Any:
        """Return `compute()`, the evaluation of one batch, inside the middleware of forwards."""
        found: list[tuple[Any, dict[str, Any]]] = []

        def loss() -> torch.Tensor:
            result = compute()
            found.append((result, rng.capture()))
            value = loss_of(result)
            return torch.zeros(()) if value is None else value

        with self._computing(loss):
            self.hybrid.evaluate([batch], plain=True)
        result, state = found[-1]
        rng.restore(state)
        return result

    @contextmanager
    def _computing(self, compute: Callable[[], torch.Tensor]) -> Iterator[None]:
        before, self._compute = self._compute, compute
        try:
            yield
        finally:
            self._compute = before

    # -- state ------------------------------------------------------------------------------------

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Return a context in which the module and the optimizer hold the newest values."""
        self.store.drain()
        with self.store.compute():
            yield

    def load(self, directory: Path) -> None:
        """Load a checkpoint, but keep the random state, which the other library restores later.

        Gradients of an update that was not made are dropped: its batches come again.
        """
        with rng.preserved():
            self.hybrid.load(directory)
        self.forget()

    def close(self, error: BaseException | None = None) -> None:
        """End the run. Afterwards the model and the optimizer are as without plugins."""
        self.hybrid.__exit__(None, error, None)
