"""What every predictor over a window keeps to, in runs: resume, poison, pace, company, memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import CYCLE, plugin_with, same_tensors, stranger, tensors_of, tiny_trainer

from neaptide import PACE, PREDICT, ConfigError, Pace, hookimpl
from neaptide.hooks.registry import installed_plugins
from neaptide_toolkit.tensors import nested_tensors
from neaptide_toolkit.testing import check_plugin
from neaptide_toolkit.testing.hostile_store import HOSTILE_STORE

if TYPE_CHECKING:
    from pathlib import Path

PREDICTORS: dict[str, dict[str, Any]] = {
    "predictor-dmd": {"snapshots": 4, "rank": 2},
    "predictor-drift": {"min_window": 4, "max_window": 4},
    "predictor-extrapolate": {"samples": 4, "order": 2},
    "predictor-momentum": {"samples": 4},
}
"""Settings with windows of four samples."""
NAMES = sorted(PREDICTORS)
WINDOW = 4
STEPS = 18
COMPACT = [
    ("predictor-dmd", "bfloat16"),
    ("predictor-drift", "int8"),
    ("predictor-extrapolate", "bfloat16"),
    ("predictor-momentum", "int8"),
]


def trainer_of(name: str, *plugins: Any, **settings: Any) -> tuple[Any, list[Any]]:
    """Return a trainer of the tiny task with `name`, and `more` of the configuration."""
    more = settings.pop("more", {})
    table = {"sample_every": 1, **PREDICTORS[name], **settings}
    config = {"phases": CYCLE, **more, "plugins": {name: table, **more.get("plugins", {})}}
    return tiny_trainer(config, plugins)


def trained(name: str, *plugins: Any, **settings: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the steps of a run and its weights."""
    trainer, batches = trainer_of(name, *plugins, **settings)
    with trainer:
        results = [trainer.step(batch) for batch in batches[:STEPS]]
    return results, tensors_of(trainer.model)


def metrics_of(trainer: Any, name: str) -> dict[str, float]:
    return dict(trainer.hooks.plugins[name].collect_metrics())


def test_every_shipped_predictor_is_here() -> None:
    shipped = [name for name in installed_plugins().installed if name.startswith("predictor-")]
    assert NAMES == sorted(shipped)


@pytest.mark.parametrize(
    ("name", "state", "law"),
    [(*compact, "estimate-is-measured") for compact in COMPACT]
    + [(*compact, "estimate-is-allocated") for compact in COMPACT[:2]]
    + [(*compact, "resume-is-exact") for compact in COMPACT[::3]],
)
def test_it_keeps_the_law_in_a_compact_format(name: str, state: str, law: str) -> None:
    settings = {"sample_every": 1, "state": state, "tier": "pinned", "apply_every": 2}
    check_plugin(name, {**PREDICTORS[name], **settings}, laws=[law])


@pytest.mark.parametrize("name", NAMES)
def test_windows_are_proposed_and_accepted(name: str) -> None:
    results, _ = trained(name)
    jumps = [result.jump for result in results if result.jump is not None]
    assert len(jumps) >= 2
    assert all(jump.accepted and 1 <= jump.horizon <= 5 and jump.norm > 0 for jump in jumps)


@pytest.mark.parametrize(("name", "state"), COMPACT)
def test_a_compact_format_proposes_nearly_the_same(name: str, state: str) -> None:
    def first(**settings: Any) -> float:
        return next(r.jump.norm for r in trained(name, **settings)[0] if r.jump is not None)

    assert pytest.approx(first(state="float32"), rel=0.05) == first(state=state)


@pytest.mark.parametrize(("name", "state"), COMPACT)
@pytest.mark.parametrize(
    ("store", "more"),
    [
        (HOSTILE_STORE, {}),
        ("layer-streaming", {}),
        ("layer-streaming", {"train": {"clip_norm": 1.0}}),
    ],
)
def test_it_proposes_the_same_bits_wherever_weights_are(
    name: str, state: str, store: Any, more: dict[str, Any]
) -> None:
    expected, weights = trained(name, state=state, more=more)
    results, found = trained(name, store, state=state, more=more)
    assert any(result.was_predicted for result in results)
    assert [r.was_predicted for r in expected] == [r.was_predicted for r in results]
    assert same_tensors(weights, found)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "plugins",
    [
        {"layer-streaming": {"update": "in_backward", "clip": "per_tensor"}},
        {"gradient-accumulation": {"steps": 3}, "ema": {}, "mixed-precision": {"full": "bf16"}},
    ],
)
def test_it_jumps_in_company(name: str, plugins: dict[str, Any]) -> None:
    results, weights = trained(name, more={"plugins": plugins, "train": {"clip_norm": 1.0}})
    assert sum(result.was_predicted for result in results) >= 2
    assert all(torch.isfinite(weight).all() for weight in weights.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_skipped_update_is_no_update_of_the_window(name: str) -> None:
    trainer, batches = trainer_of(name)
    poison = {**batches[0], "x": torch.full_like(batches[0]["x"], math.nan)}
    with trainer:
        for batch in batches[:4]:
            trainer.step(batch)
        before = metrics_of(trainer, name)
        assert not trainer.step(poison).updated
        assert before == metrics_of(trainer, name) == {"window": 4.0, "seen": 2.0}


@pytest.mark.parametrize("name", NAMES)
def test_a_poisoned_sample_ends_its_window_and_is_told_once(name: str, tmp_path: Path) -> None:
    poisoned = [False]

    @hookimpl
    def after_backward(self: Any, model: torch.nn.Module) -> None:
        del self
        if poisoned[0]:
            next(p.grad for p in model.parameters() if p.grad is not None).fill_(math.nan)

    more = {"run": {"dir": str(tmp_path / "run")}, "train": {"check_finite": False}}
    trainer, batches = trainer_of(
        name, stranger(plugin_with(after_backward=after_backward)), more=more
    )
    with trainer:
        for batch in batches[:4]:
            trainer.step(batch)
        assert 2.0 == metrics_of(trainer, name)["seen"]
        healthy = trainer.store.snapshot(optimizer=True)
        poisoned[0] = True
        trainer.step(batches[4])
        poisoned[0] = False
        for batch in batches[5:7]:  # the weights stay what they are: still no sample
            trainer.step(batch)
            assert {"window": 4.0, "seen": 0.0} == metrics_of(trainer, name)
        trainer.store.restore(healthy)
        jumps = [trainer.step(batch).jump for batch in batches[7:]]
    found = [jump for jump in jumps if jump is not None]
    assert found
    assert all(math.isfinite(jump.norm) for jump in found)
    events = (tmp_path / "run" / "events.jsonl").read_text(encoding="utf-8")
    assert 1 == events.count(f"{name}.poisoned")


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_of_some_weights_only_is_dropped(name: str) -> None:
    spans_left = [math.inf]

    def callback(*_: Any) -> None:
        spans_left[0] -= 1
        if spans_left[0] <= 0:
            raise KeyError

    @hookimpl
    def on_run_start(self: Any, store: Any) -> None:
        del self
        store.on_update(callback)

    trainer, batches = trainer_of(name, stranger(plugin_with(on_run_start=on_run_start)))
    with trainer:
        for batch in batches[:4]:
            trainer.step(batch)
        assert 2.0 == metrics_of(trainer, name)["seen"]
        spans_left[0] = 3
        with pytest.raises(KeyError):
            trainer.step(batches[4])
        spans_left[0] = math.inf
        assert {"window": 4.0, "seen": 0.0} == metrics_of(trainer, name)
        assert any(trainer.step(batch).was_predicted for batch in batches[5:])


def paced(pace: Pace) -> Any:
    """Return a plugin that sets one pace for the whole run."""

    @hookimpl
    def on_run_start(self: Any, run: Any) -> None:
        del self
        run.stash.set(PACE, pace)

    return stranger(plugin_with(on_run_start=on_run_start))


@pytest.mark.parametrize("name", NAMES)
def test_a_pace_of_no_scale_is_no_jump_and_a_fresh_window(name: str) -> None:
    trainer, batches = trainer_of(name, paced(Pace(scale=0.0)))
    seen = []
    with trainer:
        for batch in batches[:STEPS]:
            assert trainer.step(batch).jump is None
            seen.append(metrics_of(trainer, name).get("seen"))
    full = seen.index(float(WINDOW))
    assert 1.0 in seen[full:]


@pytest.mark.parametrize("name", NAMES)
def test_the_pace_stretches_windows_and_scales_jumps(name: str) -> None:
    def first(pace: Pace) -> tuple[float, Any]:
        trainer, batches = trainer_of(name, paced(pace), scale=0.4)
        with trainer:
            for batch in batches:
                result = trainer.step(batch)
                length = metrics_of(trainer, name).get("window", 0.0)
                if result.jump is not None:
                    return length, result.jump
        pytest.fail("the run had no jump")

    length, plain = first(Pace())
    assert float(WINDOW) == length
    assert 2.0 * WINDOW == first(Pace(window=2.0))[0]
    assert first(Pace(scale=2.0))[1].norm > plain.norm


@pytest.mark.parametrize("name", NAMES)
def test_what_is_frozen_within_a_window_is_left_alone_until_the_next(name: str) -> None:
    trainer, batches = trainer_of(name)
    frozen = dict(trainer.model.named_parameters())["head.weight"]
    with trainer:
        for number, batch in enumerate(batches[:STEPS]):
            if number == 4:
                frozen.requires_grad_(False)
                kept = frozen.detach().clone()
            jumped = trainer.step(batch).was_predicted
            if number >= 4:
                assert torch.equal(kept, frozen)
            if jumped:
                break
        frozen.requires_grad_(True)
        results = [trainer.step(batch) for batch in batches[number + 1 :]]
    assert any(result.was_predicted for result in results)


@pytest.mark.parametrize("name", NAMES)
def test_several_windows_are_one_jump(name: str) -> None:
    trainer, batches = trainer_of(name, apply_every=3, scale=0.2, more={"phases": CYCLE})
    waiting, jumps = [], []
    with trainer:
        for batch in batches:
            result = trainer.step(batch)
            waiting.append(metrics_of(trainer, name).get("waiting"))
            if result.jump is not None:
                jumps.append(result.jump)
    assert jumps
    assert {None, 0.0, 1.0, 2.0} == set(waiting)
    assert jumps[0].horizon == 3


@pytest.mark.parametrize("apply_every", [1, 2])
@pytest.mark.parametrize(("name", "state"), COMPACT)
def test_a_run_resumed_within_predict_is_the_run_that_went_on(
    name: str, state: str, apply_every: int, tmp_path: Path
) -> None:
    class ProbeError(Exception):
        """The probe of the first jump fails."""

    def run(*, load: bool) -> dict[str, torch.Tensor]:
        trainer, batches = trainer_of(name, state=state, apply_every=apply_every)
        with trainer:
            number = 0
            while not load:
                window = trainer.hooks.plugins[name]._window
                full = window is not None and window.full
                last = metrics_of(trainer, name).get("waiting", 0.0) == apply_every - 1
                if full and last and trainer.state.schedule.due() is PREDICT:
                    break
                trainer.step(batches[number])
                number += 1
            if not load:
                with pytest.raises(ProbeError):
                    trainer.step(Failing(batches[number], ProbeError))
                assert PREDICT is trainer.state.phase
                trainer.save(tmp_path / "saved")
                (tmp_path / "number").write_text(str(number), encoding="utf-8")
            else:
                trainer.load(tmp_path / "saved")
                number = int((tmp_path / "number").read_text(encoding="utf-8"))
            for batch in batches[number:]:
                trainer.step(batch)
        return tensors_of(trainer.model)

    assert same_tensors(run(load=False), run(load=True))


class Failing(dict[str, Any]):
    """A batch whose use raises."""

    def __init__(self, batch: dict[str, Any], error: type[Exception]) -> None:
        super().__init__(batch)
        self.error = error

    def __getitem__(self, key: str) -> Any:
        raise self.error(key)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "state"), COMPACT)
def test_a_run_resumed_at_any_step_is_the_same(name: str, state: str, tmp_path: Path) -> None:
    def run(first: int, load: Path | None, saves: bool) -> str:  # noqa: FBT001 - one call each
        trainer, batches = trainer_of(name, state=state, apply_every=2)
        with trainer:
            if load is not None:
                trainer.load(load)
            for number, batch in enumerate(batches[first:], start=first + 1):
                trainer.step(batch)
                if saves:
                    trainer.save(tmp_path / str(number))
            return str(trainer.digest())

    expected = run(0, None, saves=True)
    for step in range(1, 32, 2):
        assert expected == run(step, tmp_path / str(step), saves=False)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "state"), COMPACT)
def test_thousands_of_steps_hold_no_more(name: str, state: str) -> None:
    trainer, batches = trainer_of(name, state=state, apply_every=3)
    held = set()
    with trainer:
        for number in range(1000):
            trainer.step(batches[number % len(batches)])
            if number >= 100 and number % 100 == 0:
                tree = trainer.hooks.plugins[name].state_dict()
                held.add(sum(tensor.nbytes for tensor in nested_tensors(tree)))
    assert 1 == len(held)


@pytest.mark.parametrize(
    ("name", "settings", "path"),
    [
        ("predictor-dmd", {"snapshots": 4, "rank": 3}, "rank"),
        ("predictor-drift", {"state": "int4"}, "state"),
        ("predictor-extrapolate", {"order": 2, "samples": 2}, "samples"),
        ("predictor-momentum", {"decay": 1.0}, "decay"),
        ("predictor-momentum", {"tier": "disk"}, "tier"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    name: str, settings: dict[str, Any], path: str
) -> None:
    with pytest.raises(ConfigError, match=rf"@ plugins\.{name}\.{path}"):
        trainer_of(name, **settings)
