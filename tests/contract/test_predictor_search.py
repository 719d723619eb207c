"""A predictor that searches how far to go: streamed, resumed, refused, and without a trace."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from support import CYCLE, plugin_with, same_tensors, stranger, tensors_of, tiny_trainer

from neaptide import PACE, Pace, hookimpl
from neaptide_toolkit.testing import check_plugin
from neaptide_toolkit.testing.hostile_store import HOSTILE_STORE

if TYPE_CHECKING:
    from pathlib import Path

DRIFT = {"min_window": 4, "max_window": 4, "sample_every": 1, "search_batches": 2}
STEPS = 24


def trainer_of(*plugins: Any, predict: Any = None, **settings: Any) -> tuple[Any, list[Any]]:
    phases = {**CYCLE, "predict": {**CYCLE.get("predict", {}), **(predict or {})}}
    table = {**DRIFT, **settings}
    config = {"phases": phases, "plugins": {"predictor-drift": table}}
    return tiny_trainer(config, plugins)


def trained(*plugins: Any, **settings: Any) -> tuple[list[Any], dict[str, Any]]:
    trainer, batches = trainer_of(*plugins, **settings)
    with trainer:
        results = [trainer.step(batch) for batch in batches[:STEPS]]
    return [r.jump for r in results if r.jump is not None], tensors_of(trainer.model)


@pytest.mark.parametrize("state", ["bfloat16", "float32", "int8"])
@pytest.mark.parametrize(
    "law", ["estimate-is-measured", "estimate-is-allocated", "resume-is-exact"]
)
def test_it_keeps_the_laws(state: str, law: str) -> None:
    check_plugin("predictor-drift", {**DRIFT, "state": state}, laws=[law])


@pytest.mark.parametrize("store", [HOSTILE_STORE, "layer-streaming"])
@pytest.mark.parametrize("state", ["bfloat16", "float32"])
def test_it_finds_the_same_bits_wherever_weights_are(store: Any, state: str) -> None:
    expected, weights = trained(state=state, predict={"max_horizon": 40})
    jumps, found = trained(store, state=state, predict={"max_horizon": 40})
    assert [jump.norm for jump in expected] == [jump.norm for jump in jumps]
    assert any(jump.accepted for jump in jumps)
    assert same_tensors(weights, found)


def test_a_search_that_nothing_comes_of_leaves_no_trace() -> None:
    @hookimpl
    def on_run_start(self: Any, run: Any) -> None:
        run.stash.set(PACE, Pace(scale=0.0))

    never = stranger(plugin_with(on_run_start=on_run_start), "never")
    probes: list[str] = []

    @hookimpl
    def around_forward(self: Any) -> Any:
        def seen(following: Any, *, moment: str, **arguments: Any) -> Any:
            probes.append(moment)
            return following(moment=moment, **arguments)

        return seen

    watching = stranger(plugin_with(around_forward=around_forward), "watching")
    jumps, weights = trained(never, watching)
    plain, batches = tiny_trainer({"phases": CYCLE})
    with plain:
        for batch in batches[:STEPS]:
            plain.step(batch)
    assert "probe" in probes
    assert [] == jumps
    assert same_tensors(tensors_of(plain.model), weights)


def test_a_search_goes_another_way_than_the_scale_it_is() -> None:
    searched, _ = trained(predict={"max_horizon": 40})
    plain, _ = trained(search_batches=0, predict={"max_horizon": 40})
    assert searched
    assert searched[0].norm != pytest.approx(plain[0].norm, rel=1e-3)


def test_no_jump_goes_further_than_the_horizon() -> None:
    jumps, _ = trained(predict={"max_horizon": 3})
    assert jumps
    assert all(1 <= jump.horizon <= 3 for jump in jumps)


def test_a_resume_within_the_search_is_the_run_that_went_on(tmp_path: Path) -> None:
    trainer, batches = trainer_of(predict={"max_horizon": 40})
    searching: list[int] = []
    with trainer:
        for number, batch in enumerate(batches[:STEPS], 1):
            trainer.step(batch)
            state = trainer.hooks.plugins["predictor-drift"].state_dict()
            if state["searching"]["search"]["batches"] == 1:
                searching.append(number)
                trainer.save(tmp_path / str(number))
        expected = tensors_of(trainer.model)
    assert searching
    for number in searching:
        again, _ = trainer_of(predict={"max_horizon": 40})
        with again:
            again.load(tmp_path / str(number))
            for batch in batches[number:STEPS]:
                again.step(batch)
            assert same_tensors(expected, tensors_of(again.model))


def test_losses_that_are_not_finite_are_not_gone_to() -> None:
    trainer, batches = trainer_of(predict={"max_horizon": 40})
    poison = {**batches[0], "x": batches[0]["x"] * math.nan}
    with trainer:
        for batch in batches[:STEPS]:
            searching = trainer.hooks.plugins["predictor-drift"].state_dict()["searching"]
            window = trainer.hooks.plugins["predictor-drift"].collect_metrics()
            full = bool(window) and window["seen"] == window["window"]
            if full and searching["search"]["batches"] < DRIFT["search_batches"]:
                result = trainer.step(poison)
                assert not result.updated
                assert result.jump is None
            else:
                result = trainer.step(batch)
                assert result.jump is None


def test_a_pace_shortens_what_was_found_and_never_lengthens_it() -> None:
    def first(scale: float) -> float:
        @hookimpl
        def on_run_start(self: Any, run: Any) -> None:
            run.stash.set(PACE, Pace(scale=scale))

        paced = stranger(plugin_with(on_run_start=on_run_start))
        jumps, _ = trained(paced, predict={"max_horizon": 40})
        return float(jumps[0].norm)

    assert first(0.5) < first(1.0) == first(2.0)


def test_the_weights_a_search_sets_aside_are_in_the_ledger() -> None:
    def aside(phase: str, **settings: Any) -> int:
        trainer, batches = trainer_of(**settings)
        with trainer:
            trainer.step(batches[0])
            ledger = trainer.estimate_memory(phase)
            return int(ledger.total(owner="predictor-drift", kind="snapshot", tier="host"))

    model = trainer_of()[0].model
    weights = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    assert [weights, weights, 0] == [aside(phase) for phase in ("full", "correct", "predict")]
    assert 0 == aside("full", search_batches=0)
