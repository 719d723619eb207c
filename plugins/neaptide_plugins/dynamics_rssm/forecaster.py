"""Corrects the forecasts of the curves by rollouts of an ensemble that learns from what came."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide_toolkit.forecasting.curve import OFFSET, learning
from neaptide_toolkit.forecasting.forecaster import INPUTS, Forecaster
from neaptide_toolkit.forecasting.networks import AdamW, drawn, moments, standard
from neaptide_toolkit.forecasting.trust import Trust

from .config import AT_ONCE, DynamicsRssmConfig
from .models import Models, RssmWeights, drawn_weights
from .states import Compressed, StepMemory
from .training import RolloutBatch, gradients

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neaptide_toolkit.forecasting.horizon import Expected, LossReading, Outlook


@attrs.define(eq=False)
class RssmForecaster(Forecaster[DynamicsRssmConfig]):
    """A forecaster whose corrections come from rollouts of recurrent models.

    Every `stride`-th sample is a step of the models: they see its inputs, and roll out as far as
    the longest horizon. Samples between have the corrections of the last step. Between uses a state
    is compressed. What the models answer is multiplied by the trust in them, as in dynamics-mlp.
    """

    ensemble: Models = attrs.field(init=False)
    optimizer: AdamW = attrs.field(init=False)
    memory: StepMemory = attrs.field(init=False)
    trusts: list[Trust] = attrs.field(init=False)
    """One per horizon."""
    centre: torch.Tensor = attrs.field(init=False)
    """float32 `[inputs]`, from the last fit: subtracted from inputs."""
    scale: torch.Tensor = attrs.field(init=False)
    """float32 `[inputs]`, from the last fit: factors of centred inputs."""
    samples: int = attrs.field(init=False, default=0)
    """Number of samples so far."""
    fitted: int = attrs.field(init=False, default=0)
    """Number of samples at the last fit."""
    answers: list[list[float]] = attrs.field(init=False)
    """What the members answered at the last step, by horizon."""
    last: tuple[int, float] = attrs.field(init=False, default=(-1, 0.0))
    """Update of the last step, and the learning done until then."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        config, horizons = self.config, len(self.config.horizons)
        self.ensemble = Models(drawn_weights(config.members, INPUTS, horizons, self.seed))
        self.optimizer = AdamW(self.ensemble.weights)
        self.memory = StepMemory(config.remembered, config.members, INPUTS, config.steps, horizons)
        self.trusts = [Trust() for _ in config.horizons]
        self.centre = torch.zeros(INPUTS, dtype=torch.float32, device="cpu")
        self.scale = torch.zeros_like(self.centre)
        self.answers = [[0.0] * config.members for _ in config.horizons]

    @property
    def learned_bytes(self) -> int:
        """Bytes of the models, of their optimizer, and of the steps that are remembered."""
        held = self.optimizer.bytes + self.memory.bytes
        return held + self.centre.nbytes + self.scale.nbytes

    @property
    def places(self) -> list[int]:
        """Steps of a rollout after which each horizon is read."""
        return [math.ceil(horizon / self.config.span) for horizon in self.config.horizons]

    def _learn(self, place: int, expected: Expected, residual: float) -> None:
        self.memory.settle(expected.update, place, residual)
        self.trusts[place].settle(expected.update, residual)

    def _fit(self) -> None:
        memory, config = self.memory, self.config
        rows = memory.learnable(config.span)
        # So many questions cost no more gradient steps than none.
        if not len(rows) or self.samples < self.fitted + AT_ONCE:
            return
        self.fitted = self.samples
        self.centre, self.scale = moments(memory.seen[: min(memory.count, memory.size)])
        seen = standard(memory.seen, self.centre, self.scale)
        member = torch.arange(config.members, device="cpu")[:, None]
        for _ in range(config.rounds):
            turn = self.optimizer.steps
            at = rows[drawn(self.seed, turn, config.members, len(rows), config.batch)]
            deter, _ = memory.states.at((at, member)).restored()
            batch = RolloutBatch(
                deter=deter,
                seen=seen[at],
                after=seen[(at + 1) % memory.size],
                actions=memory.actions[at],
                targets=memory.targets[at],
            )
            # The longest rollouts take most of the time, so only some gradient steps have them.
            reached = self.places[: 1 + turn % len(self.places)]
            found = gradients(self.ensemble.weights, batch, reached)
            self.optimizer.step(found, config.lr, config.shrink)

    def _corrections(
        self, readings: Sequence[LossReading], outlooks: Sequence[Sequence[Outlook]], *, kept: bool
    ) -> list[list[tuple[float, ...]]]:
        inputs = [row[0].inputs.float() for row in outlooks]
        if not kept:
            return [
                self._trusted(
                    self._answers([self._state(reading, seen)], [self._actions(reading)])[0]
                )
                for reading, seen in zip(readings, inputs, strict=True)
            ]
        steps = [
            number
            for number in range(len(readings))
            if (self.samples + number) % self.config.stride == 0
        ]
        self.samples += len(readings)
        states, actions = [], []
        for number in steps:
            reading = readings[number]
            state = self._state(reading, inputs[number])
            actions.append(self._actions(reading))
            self.memory.add(reading.update, inputs[number], actions[-1], state)
            self.last = reading.update, reading.learned
            states.append(state)
        answered = iter(self._answers(states, actions) if steps else ())
        corrections = []
        for number, reading in enumerate(readings):
            if number in steps:
                self.answers = next(answered)
            for trust, answers in zip(self.trusts, self.answers, strict=True):
                trust.waiting[reading.update] = math.fsum(answers) / len(answers)
            corrections.append(self._trusted(self.answers))
        return corrections

    def _trusted(self, answers: list[list[float]]) -> list[tuple[float, ...]]:
        return [
            tuple(trust.share * each for each in row)
            for trust, row in zip(self.trusts, answers, strict=True)
        ]

    @torch.no_grad()
    def _state(self, reading: LossReading, inputs: torch.Tensor) -> Compressed:
        """Return the members' states at a reading, which follow those of the last step."""
        update, learned = self.last
        before = self.memory.states.at(self.memory.newest)
        if update == reading.update:
            return before
        if update < 0:  # nothing came before
            before = Compressed.zeros(self.config.members)
            travel, turn = 0.0, 0.0
        else:
            travel = math.log((reading.learned + OFFSET) / (learned + OFFSET))
            turn = self.factor(reading.update) - self.factor(update)
        deter, stoch = (each[:, None] for each in before.restored())
        deter = self.ensemble.advanced(deter, stoch, deter.new_tensor([[travel, turn]]))
        seen = standard(inputs, self.centre, self.scale)[None]
        stoch = self.ensemble.observed(deter, seen)
        return Compressed.of(deter[:, 0], stoch[:, 0])

    def _actions(self, reading: LossReading) -> torch.Tensor:
        """Return what the schedule does in the steps after a reading, `[steps, actions]`."""
        span, update, learned = self.config.span, reading.update, reading.learned
        actions = []
        for _ in range(self.config.steps):
            coming = learning(self.factor, update, span)
            turn = self.factor(update + span) - self.factor(update)
            actions.append((math.log1p(coming / (learned + OFFSET)), turn))
            update, learned = update + span, learned + coming
        return torch.tensor(actions, dtype=torch.float32, device="cpu")

    @torch.no_grad()
    def _answers(
        self, states: Sequence[Compressed], actions: Sequence[torch.Tensor]
    ) -> list[list[list[float]]]:
        """Return, for each state and horizon, what the members answer."""
        restored = [state.restored() for state in states]
        deter, stoch = (torch.stack(each, 1) for each in zip(*restored, strict=True))
        found = self.ensemble.answers(deter, stoch, torch.stack(list(actions)), self.places)
        answers: list[list[list[float]]] = found.permute(1, 2, 0).tolist()
        return answers

    def state_dict(self) -> dict[str, Any]:
        """Return the state, without the configuration."""
        return super().state_dict() | {
            "samples": self.samples,
            "fitted": self.fitted,
            "answers": [list(row) for row in self.answers],
            "last": list(self.last),
            "trusts": [attrs.asdict(trust) for trust in self.trusts],
            "models": _named(self.optimizer.state_dict()),
            "memory": self.memory.state_dict(),
            "centre": self.centre.clone(),
            "scale": self.scale.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        super().load_state_dict(state)
        self.samples, self.fitted = state["samples"], state["fitted"]
        self.answers = [list(row) for row in state["answers"]]
        update, learned = state["last"]
        self.last = update, learned
        self.trusts = [Trust(**saved) for saved in state["trusts"]]
        self.optimizer.load_state_dict(_unnamed(state["models"]))
        self.memory.load_state_dict(state["memory"])
        self.centre.copy_(state["centre"])
        self.scale.copy_(state["scale"])


def _named(state: dict[str, Any]) -> dict[str, Any]:
    """Return an optimizer's state with tensors by name: in a checkpoint, a list has one form."""
    return {
        name: RssmWeights(*each)._asdict() if isinstance(each, list) else each
        for name, each in state.items()
    }


def _unnamed(state: dict[str, Any]) -> dict[str, Any]:
    return {
        name: list(RssmWeights(**each)) if isinstance(each, dict) else each
        for name, each in state.items()
    }
