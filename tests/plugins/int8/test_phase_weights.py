"""Which weights a phase and a moment compute with, without a run around them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from neaptide.api.phases import CORRECT, FULL, PREDICT
from neaptide.api.steps import WeighedLoss
from neaptide_plugins.int8.config import Int8Config
from neaptide_plugins.int8.phase_weights import PhaseWeights
from neaptide_plugins.int8.scheme import Scheme
from neaptide_plugins.int8.targets import find
from neaptide_plugins.int8.training import TrainedWeight
from neaptide_plugins.int8.weight import Int8Weight

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from neaptide_plugins.int8.scheme import WeightCodes
    from neaptide_plugins.int8.targets import Target

pytestmark = pytest.mark.usefixtures("on_device")


class InPlace:
    """The weights are where the module has them, and stay there."""

    def lent(self, target: Target) -> AbstractContextManager[torch.Tensor]:
        return nullcontext(target.parameter.detach())

    def evict(self, target: Target) -> Callable[[], None]:
        return lambda: None

    def stored(self, target: Target, codes: WeightCodes) -> WeightCodes:
        return codes

    def keep(self, target: Target, keeper: Any) -> Callable[[], None]:
        return lambda: None


class Bench:
    """A model, its weights of each phase, and what a forward has found in the weight's place."""

    def __init__(self, **settings: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
        self.warned: list[dict[str, Any]] = []
        config = Int8Config(**settings)
        targets = find(self.model, ("*",), (), Scheme.of(config))
        full_weights: Any = InPlace()
        self.phase_weights = PhaseWeights.of(
            config, targets, full_weights, torch.device("cpu"), self._warn
        )

    def _warn(self, event: str, **facts: Any) -> None:
        self.warned.append(facts)

    @property
    def kind(self) -> type:
        return type(self.model[0]._parameters["weight"])

    def forward(self, moment: str) -> list[type]:
        """Return what was there each time the model ran."""
        kinds: list[type] = []

        def following(**_: Any) -> WeighedLoss:
            kinds.append(self.kind)
            loss = torch.tensor(1.25 if self.kind is Int8Weight else 1.0)
            return WeighedLoss(loss, 1.0, is_sum=False)

        self.phase_weights.forward(following, moment=moment, model=self.model)
        return kinds


def test_a_moment_has_the_weights_of_its_setting() -> None:
    bench = Bench(evaluate="int8", measure_every=0)
    bench.phase_weights.enter(FULL)
    assert [nn.Parameter] == bench.forward("train")
    bench.phase_weights.enter(PREDICT)
    assert nn.Parameter is bench.kind  # nobody has asked yet
    assert [Int8Weight] == bench.forward("probe")
    assert Int8Weight is bench.kind
    assert [Int8Weight] == bench.forward("evaluate")
    assert [nn.Parameter] == bench.forward("train")


def test_the_first_probe_is_run_with_the_full_weights_too_where_it_is_measured() -> None:
    bench = Bench(measure_every=1)
    bench.phase_weights.enter(PREDICT)
    with bench.phase_weights.released():
        assert [nn.Parameter, Int8Weight] == bench.forward("probe")
        assert [Int8Weight] == bench.forward("probe")
    assert nn.Parameter is bench.kind
    assert 0.25 == bench.phase_weights.measuring.measured["loss_gap"]


def test_a_gap_over_the_limit_is_told_and_exempts() -> None:
    bench = Bench(measure_every=1, gap_limit=0.1)
    bench.phase_weights.enter(PREDICT)
    with bench.phase_weights.released():
        bench.forward("probe")
    (facts,) = bench.warned
    assert 1 == len(facts["weights"])
    assert {
        "loss_gap": 0.25,
        "limit": 0.1,
        "weights": bench.phase_weights.measuring.exempt,
    } == facts


@pytest.mark.parametrize("way_out", ["leave", "enter"])
def test_a_phase_in_int8_has_codes_until_it_is_left(way_out: str) -> None:
    bench = Bench(full="int8")
    bench.phase_weights.enter(FULL)
    assert [TrainedWeight] == bench.forward("train") == bench.forward("probe")
    if way_out == "leave":
        bench.phase_weights.leave()
    else:
        bench.phase_weights.enter(CORRECT)
    assert nn.Parameter is bench.kind


def test_an_evaluation_holds_the_weights_and_gives_them_back_after_an_error() -> None:
    bench = Bench(evaluate="int8")

    def evaluate() -> None:
        with bench.phase_weights.evaluated():
            assert Int8Weight is bench.kind
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate()
    assert nn.Parameter is bench.kind


def test_what_was_trained_in_int8_is_so_again_when_loaded() -> None:
    first, second = Bench(full="int8"), Bench(full="int8")
    first.phase_weights.enter(FULL)
    with first.phase_weights.training.updating():
        pass
    state = first.phase_weights.state_dict()
    second.phase_weights.load_state_dict(state)
    assert TrainedWeight is second.kind
    assert state == second.phase_weights.state_dict()
