"""A HybridTrainer whose step is made in pieces: the loops of other libraries call the parts.

Such a loop runs a backward per micro-batch, then clips, calls its callbacks, and updates. Here each
micro-batch is a `HybridTrainer.step` that defers the update, and the update is a step without a
micro-batch. If the loop can hand over its loss function, `micro_batch` makes forward and backward.
If the user's own code calls the model, `forward` is a step of its own, and so is `backward`.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from neaptide import ConfigError, HybridTrainer
from neaptide.api import rng
from neaptide.api.steps import WeighedLoss
from neaptide.run.fit import FITTING

from .reached import reached
from .refusals import unsteppable
from .step_plugin import SPEC, StepInPieces
from .waiting import WAITING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from torch import nn

    from neaptide import ParameterStore, Phase, PluginSpec, RunConfig, StepResult


class SteppedRun:
    """A HybridTrainer for the loop of another library.

    Args:
        model: as for HybridTrainer.
        optimizer: as for HybridTrainer.
        config: as for HybridTrainer.
        plugins: as for HybridTrainer.
        called: whether the user's own code calls the model; see `forward`.

    Raises:
        ConfigError: as for HybridTrainer; also if a plugin cannot work in such a loop.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        config: RunConfig | Mapping[str, Any] | str | Path | None,
        plugins: Iterable[str | PluginSpec],
        *,
        called: bool = False,
    ) -> None:
        self._compute: Callable[[], torch.Tensor] | None = None
        self._begun = False  # whether a forward was made since the last update
        self._batch: Any = None
        self.hybrid = HybridTrainer(
            model, optimizer, loss_fn=self._loss, config=config, plugins=[*plugins, SPEC]
        )
        pieces = self.hybrid.hooks.plugins[SPEC.name]
        assert isinstance(pieces, StepInPieces), "created from its manifest"
        self._pieces = pieces
        self.store: ParameterStore = self.hybrid.store
        refused = unsteppable(self.hybrid, given=optimizer is not None, called=called)
        if refused is not None:
            error = ConfigError(refused)
            self.close(error)
            raise error

    def _loss(self, model: nn.Module, batch: Any) -> WeighedLoss:
        """Return the loss that the other library computes."""
        del model, batch  # known to `compute`
        if self._compute is None:
            raise _again()
        return self._weighed(self._compute(), adds=torch.is_grad_enabled())

    def _weighed(self, loss: torch.Tensor, *, adds: bool) -> WeighedLoss:
        """Return the loss with the weight that the other library gave it.

        Of the losses whose gradients are added, only the first one counts, as one: so they are not
        averaged.
        """
        more = adds and self.has_gradients
        return WeighedLoss(loss, 0.0 if more else 1.0, is_sum=True)

    @property
    def has_gradients(self) -> bool:
        """Whether gradients have been added since the last update."""
        return self.hybrid.state.accumulation.pieces > 0

    # -- a step -----------------------------------------------------------------------------------

    def micro_batch(self, batch: Any, compute: Callable[[], torch.Tensor]) -> StepResult:
        """Add the gradients of `compute()`, a 0-dim loss; before that, try a jump that is due."""
        with self._computing(compute):
            return self.hybrid.step(batch)

    def forward(self, batch: Any, call: Callable[[], Any]) -> Any:
        """Return `call()`, a forward of the user's own code, inside the middleware of a step.

        `batch` stands for the inputs. `backward` makes the rest of the step.
        """
        found: list[Any] = []

        def calling(phase: Phase) -> None:
            found.append(self._inside(batch, phase, "train", call, reached))

        self._batch, self._begun, self._pieces.calling = batch, True, calling
        # The weights are the run's until the backward, and not the user's.
        self.hybrid.run.stash.set(FITTING, object())
        try:
            self._step(batch)
        finally:
            self._pieces.calling = None
        self.hybrid.state.batches -= 1  # the backward counts it
        self.hybrid.run.stash.set(WAITING, True)
        return found[-1]

    def backward(self, loss: torch.Tensor) -> StepResult:
        """Add the gradients of a loss whose forward was `forward`."""
        if not self._begun:
            msg = (
                "no call of the model has led to this loss; call the prepared model itself, or in "
                "training_step a module in an attribute of the LightningModule (a part of it that "
                "is called alone does not count)"
            )
            raise ConfigError(msg)
        self._pieces.handed = self._weighed(loss, adds=True)
        try:
            return self._step(self._batch)
        finally:
            self._pieces.handed = None
            self.hybrid.run.stash.set(FITTING, None)
            self.hybrid.run.stash.set(WAITING, False)

    def update(self) -> StepResult:
        """Update the weights with the gradients of all micro-batches since the last update."""
        state = self.hybrid.state
        if not self.has_gradients or state.phase is None:
            msg = "an update needs gradients: train on a batch first"
            raise RuntimeError(msg)
        self._pieces.updating = True
        try:
            result = self._step({}, phase=state.phase.name)
        finally:
            self._pieces.updating, self._pieces.norm = False, None
            self._begun = False
        state.batches -= 1  # this step has taken no batch
        return result

    def _step(self, batch: Any, phase: str | None = None) -> StepResult:
        """Make a step that leaves the modules in the modes in which the user's code has them."""
        model = self.hybrid.model
        kept = {} if model.training else {one: one.training for one in model.modules()}
        self._pieces.modes = kept
        try:
            return self.hybrid.step(batch, phase=phase)
        finally:
            self._pieces.modes = {}
            for module, training in kept.items():
                module.training = training

    def clip(self, max_norm: float) -> torch.Tensor:
        """Return the L2 norm of all gradients; clip them to `max_norm`, which may be inf."""
        norm = self.store.gradient_norm()
        self._pieces.norm = norm.clone()
        if math.isfinite(max_norm):
            self.store.clip_gradients(max_norm, norm)
        return norm

    def clamp(self, limit: float) -> None:
        """Clamp each gradient to -limit … limit, as torch's `clip_grad_value_`."""
        for span in self.store.spans():
            if not span.trainable:
                continue
            try:
                with self.store.loan(span, "read", of="gradient"):
                    pass
            except KeyError:  # a parameter without a part in the loss
                continue
            with self.store.loan(span, "write", of="gradient") as gradient:
                gradient.clamp_(-limit, limit)

    def forget(self) -> None:
        """Drop the gradients since the last update."""
        if self.has_gradients:
            self.store.zero_gradients()
            state = self.hybrid.state
            state.accumulation = type(state.accumulation)()

    # -- evaluation -------------------------------------------------------------------------------

    def evaluation(self, run: Callable[[], Any]) -> Any:
        """Return `run()`, a whole evaluation, inside the plugins' middleware of evaluations.

        What `run` leaves stays: random state, modes and buffers.
        """
        found: list[Any] = []

        def evaluate(**_: Any) -> float:
            found.append(run())
            return math.nan  # the other library knows the loss

        hybrid = self.hybrid
        around = hybrid.hooks.around("around_evaluate", evaluate, hybrid.run)
        around(batches=(), phase=self._phase())
        return found[-1]

    def evaluated(
        self, batch: Any, compute: Callable[[], Any], loss_of: Callable[[Any], Any]
    ) -> Any:
        """Return `compute()`, the evaluation of one batch, inside the middleware of forwards."""
        self.hybrid.run.stash.set(FITTING, None)
        return self._inside(batch, self._phase(), "evaluate", compute, loss_of)

    def _phase(self) -> Phase:
        state = self.hybrid.state
        return state.phase or state.schedule.phase

    def _inside(
        self,
        batch: Any,
        phase: Phase,
        moment: str,
        call: Callable[[], Any],
        loss_of: Callable[[Any], Any],
    ) -> Any:
        """Return `call()` inside the middleware of forwards, which gets `loss_of` the result."""
        found: list[tuple[Any, torch.Tensor]] = []

        def forward(**arguments: Any) -> WeighedLoss:
            if found:
                raise _again()
            if arguments["batch"] is not batch:
                msg = "a plugin changes the batch in around_forward; here the other loop passes it"
                raise ConfigError(msg)
            with self.store.compute():
                result = call()
            value = loss_of(result)
            value = torch.zeros(()) if value is None else value.float()
            found.append((result, value))
            return WeighedLoss(value, 1.0, is_sum=True)

        hybrid = self.hybrid
        around = hybrid.hooks.around("around_forward", forward, hybrid.run)
        loss = around(model=hybrid.model, batch=batch, phase=phase, moment=moment)
        ((result, value),) = found
        if loss.value is not value:
            msg = "a plugin changes the loss in around_forward; here the loss is the other loop's"
            raise ConfigError(msg)
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
        self.hybrid.run.stash.set(FITTING, None)
        self.store.drain()
        with self.store.compute():
            yield

    def load(self, directory: Path) -> None:
        """Load a checkpoint, but keep the random state, which the other library restores later.

        Gradients of an update that was not made are dropped: its batches come again.
        """
        self.hybrid.run.stash.set(FITTING, None)
        with rng.preserved():
            self.hybrid.load(directory)
        self.forget()

    def close(self, error: BaseException | None = None) -> None:
        """End the run. Afterwards the model and the optimizer are as without plugins."""
        self.hybrid.__exit__(None, error, None)


def _again() -> ConfigError:
    return ConfigError(
        "a plugin needs the loss of a batch once more, which only the user's code can compute here;"
        " remove the plugin or its measurement"
    )
