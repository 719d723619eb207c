"""Predict steps in runs: refused bit for bit, accepted and counted, or never proposed."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import CYCLE, plugin_with, same_tensors, stranger, tensors_of, tiny_trainer
from torch import nn

from neaptide import Forecast, PluginError, Update, hookimpl
from neaptide.api.phases import PREDICT
from neaptide.loop.guard import undisturbed
from neaptide_toolkit.testing import HOSTILE_STORE
from neaptide_toolkit.testing.parting import same_bits

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import PluginSpec
    from neaptide.api.parameters import ParameterStore
    from neaptide.api.spans import Span


STRICT = {**CYCLE, "predict": {**CYCLE["predict"], "rise": 0.0}}


def predictor(delta: Callable[[ParameterStore, Span], Any], horizon: int = 3) -> PluginSpec:
    """Return a plugin that always proposes `delta`."""

    @hookimpl
    def propose_update(self: Any, store: ParameterStore) -> Update:
        return Update(horizon, lambda span: delta(store, span))

    return stranger(plugin_with(propose_update=propose_update), "oracle", claims={"predictor"})


def of_weight(factor: float) -> Callable[[ParameterStore, Span], torch.Tensor]:
    """Return deltas that are `factor` times the weight."""

    def delta(store: ParameterStore, span: Span) -> torch.Tensor:
        with store.loan(span, "read") as weight:
            return weight * factor

    return delta


def noise_of_four_times_the_weight(store: ParameterStore, span: Span) -> torch.Tensor:
    """Draw a new delta at every call, from the global generator a run draws from too."""
    with store.loan(span, "read") as weight:
        return torch.randn(span.shape, device=weight.device) * (4.0 * weight.abs().mean() + 1.0)


def nan_in_one_element(store: ParameterStore, span: Span) -> torch.Tensor:
    """Spoil one weight that hardly shows in the loss."""
    delta = torch.zeros(span.shape)
    if span.name == "blocks.0.norm.bias":
        delta[3] = math.nan
    return delta


def infinite(store: ParameterStore, span: Span) -> torch.Tensor:
    """Overflow."""
    return torch.full(span.shape, -math.inf)


def wrong_shape(store: ParameterStore, span: Span) -> torch.Tensor:
    """Fit by broadcasting, and so go unnoticed."""
    return torch.zeros(())


HOSTILE = {
    "growing": of_weight(40.0),
    "noise": noise_of_four_times_the_weight,
    "nan": nan_in_one_element,
    "infinite": infinite,
    "wrong-shape": wrong_shape,
}


def run(plugins: list[Any], phases: Any = STRICT, steps: int = 14) -> tuple[Any, list[Any]]:
    """Return weights, buffers, optimizer state and random state after a run, and its jumps."""
    trainer, batches = tiny_trainer({"phases": phases}, plugins)
    with trainer:
        jumps = [
            result.jump for result in map(trainer.step, batches[:steps]) if result.jump is not None
        ]
        state = trainer.store.snapshot(optimizer=True).optimizer
        random = torch.get_rng_state()
    return (tensors_of(trainer.model), state, random), jumps


def assert_same_run(expected: Any, found: Any) -> None:
    """Compare weights, buffers, optimizer and random state bit by bit."""
    assert same_tensors(expected[0], found[0])
    for index, entries in expected[1]["state"].items():
        assert all(
            same_bits(value, found[1]["state"][index][key]) for key, value in entries.items()
        )
    assert same_bits(expected[2], found[2])


@pytest.mark.parametrize("store", [(), (HOSTILE_STORE,)], ids=["resident", "hostile"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_run_whose_jumps_are_all_refused_is_bitwise_one_without(kind: str, store: Any) -> None:
    expected, _ = run([])
    found, jumps = run([predictor(HOSTILE[kind]), *store])
    assert 2 == len(jumps)
    assert not any(jump.accepted for jump in jumps)
    assert all(jump.reason for jump in jumps)
    assert_same_run(expected, found)


def test_reasons_name_the_parameter() -> None:
    _, jumps = run([predictor(nan_in_one_element)], steps=7)
    assert ["the delta of blocks.0.norm.bias is not finite"] == [jump.reason for jump in jumps]
    _, jumps = run([predictor(wrong_shape)], steps=7)
    assert ["the delta of first.bias has shape (), not (16,)"] == [jump.reason for jump in jumps]


@pytest.mark.parametrize("delta", [torch.zeros(16, dtype=torch.int64), [0.0], 1.5])
def test_a_delta_that_is_no_float_tensor_ends_the_run(delta: Any) -> None:
    with pytest.raises(
        PluginError, match=r"the delta predicted for \S+ must be a float tensor or None \(got "
    ):
        run([predictor(lambda store, span: delta)])


def test_none_is_no_change() -> None:
    expected, _ = run([])
    found, jumps = run([predictor(lambda store, span: None)], phases={**STRICT})
    assert all((jump.accepted, jump.norm) == (True, 0.0) for jump in jumps)
    assert same_bits(expected[2], found[2])


def test_frozen_weights_are_never_asked_for() -> None:
    asked = set()

    def delta(store: ParameterStore, span: Span) -> None:
        asked.add(span.name)

    run([predictor(delta)])
    assert "first.bias" in asked
    assert "first.weight" not in asked


def test_a_horizon_longer_than_asked_counts_as_what_was_asked() -> None:
    _, jumps = run([predictor(of_weight(0.0), horizon=1000)])
    assert {5} == {jump.horizon for jump in jumps if jump.accepted}


def test_a_halved_jump_stands_for_half_as_many_updates() -> None:
    # A loss that only rises once more than half of the proposal is applied.
    trainer, batches = tiny_trainer(
        {"phases": {**STRICT, "predict": {**STRICT["predict"], "max_horizon": 8}}},
        [predictor(lambda store, span: torch.ones(span.shape), horizon=8)],
    )
    with trainer:
        first = trainer.model.first.bias.detach().clone()
        trainer._session.loop._loss_fn = lambda model, batch: (
            (model.first.bias.detach() - first).mean().clamp(min=0.6) + 0.0 * model.head.bias.sum()
        )
        result = trainer.step(batches[0], phase="predict")
    assert (True, 0.5, 4) == (result.jump.accepted, result.jump.scale, result.jump.horizon)
    assert (1, 4) == (trainer.state.jumps, trainer.state.predicted)


def test_an_accepted_jump_moves_the_weights_and_the_count() -> None:
    trainer, batches = tiny_trainer({"phases": CYCLE}, [predictor(of_weight(-1e-3))])
    with trainer:
        results = [trainer.step(batch) for batch in batches[:7]]
        assert [False] * 6 + [True] == [result.was_predicted for result in results]
        assert "correct" == results[-1].phase.name
        assert (1, 3) == (trainer.state.jumps, trainer.state.predicted)
        assert pytest.approx(3 / 10) == trainer.state.backward_skipped


def test_a_refused_jump_is_an_event_with_its_reason(tmp_path: Any) -> None:
    trainer, batches = tiny_trainer(
        {"phases": STRICT, "run": {"dir": str(tmp_path / "run")}}, [predictor(infinite)]
    )
    with trainer:
        for batch in batches[:7]:
            trainer.step(batch)
    events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    (event,) = [event for event in events if event["event"] == "jump.refused"]
    assert "the delta of first.bias is not finite" == event["reason"]


def test_a_predictor_that_has_nothing_yet_makes_an_ordinary_step() -> None:
    @hookimpl
    def propose_update(self: Any) -> None:
        return None

    silent = stranger(plugin_with(propose_update=propose_update), claims={"predictor"})
    expected, _ = run([])
    found, jumps = run([silent])
    assert [] == jumps
    assert_same_run(expected, found)


def test_a_middleware_can_veto_and_shorten_a_jump() -> None:
    horizons: list[int] = []

    def middleware(factor: int) -> Any:
        @hookimpl
        def around_predict(self: Any) -> Any:
            def shorter(following: Any, *, horizon: int, **arguments: Any) -> Any:
                horizons.append(horizon)
                return following(horizon=horizon // factor, **arguments) if factor else None

            return shorter

        return stranger(plugin_with(around_predict=around_predict), f"factor-{factor}")

    steady = predictor(of_weight(-1e-3), horizon=100)
    _, jumps = run([steady, middleware(2)], phases=CYCLE)
    assert {2} == {jump.horizon for jump in jumps}
    expected, _ = run([])
    found, jumps = run([steady, middleware(0)], phases=CYCLE)
    assert [] == jumps
    assert_same_run(expected, found)


class Restless(nn.Module):
    """Draws random numbers and changes its buffers in every mode."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(2), persistent=False)

    def forward(self) -> torch.Tensor:
        self.count += 1
        self.replaced = self.replaced + torch.rand(2)
        return self.count


def test_forwards_leave_no_trace_even_in_a_restless_module() -> None:
    model = Restless()
    count, replaced, random = model.count, model.replaced, torch.get_rng_state()
    with undisturbed(model):
        assert not model.training
        assert 1.0 == float(model())
    assert model.training
    assert count is model.count
    assert replaced is model.replaced
    assert (0.0, 0.0) == (float(count), float(replaced.sum()))
    assert same_bits(random, torch.get_rng_state())


def test_predict_is_the_phase_of_a_jump() -> None:
    seen = []

    @hookimpl
    def around_forward(self: Any) -> Any:
        def look(following: Any, **arguments: Any) -> Any:
            seen.append((arguments["moment"], arguments["phase"]))
            return following(**arguments)

        return look

    run(
        [predictor(of_weight(-1e-3)), stranger(plugin_with(around_forward=around_forward))],
        phases=CYCLE,
        steps=7,
    )
    assert [("probe", PREDICT)] * 2 == [entry for entry in seen if entry[0] == "probe"]


@pytest.mark.parametrize(
    ("forecast", "confidences"),
    [(None, {None}), (Forecast(1.0, 0.9), {0.9}), (Forecast(1.0, 0.8), set())],
)
def test_only_a_forecast_that_lacks_confidence_keeps_a_jump_from_being_proposed(
    forecast: Forecast | None, confidences: set[float | None]
) -> None:
    @hookimpl
    def forecasting(self: Any, horizon: int) -> Forecast | None:
        return forecast if horizon else None

    dynamics = stranger(plugin_with(forecast=forecasting), "dynamics", claims={"dynamics"})
    _, jumps = run([predictor(of_weight(-1e-3)), dynamics], phases=CYCLE)
    assert confidences == {jump.confidence for jump in jumps}


@pytest.mark.parametrize("forced", [0, 1, 7])
def test_a_forced_jump_that_is_refused_cuts_no_phase_short(forced: int) -> None:
    usable = [True]

    def delta(store: ParameterStore, span: Span) -> torch.Tensor:
        return (of_weight(-1e-3) if usable[0] else infinite)(store, span)

    trainer, batches = tiny_trainer({"phases": CYCLE}, [predictor(delta)])
    phases = []
    with trainer:
        for number, batch in enumerate(batches[:9]):
            usable[0] = number != forced
            result = trainer.step(batch, phase="predict" if number == forced else None)
            assert (number == 6) == result.was_predicted
            phases.append(result.phase.name)
    assert ["warmup"] * 2 + ["full"] * 4 + ["correct"] * 2 + ["full"] == phases
