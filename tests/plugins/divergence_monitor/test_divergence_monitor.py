"""The monitor in runs that go well, and in runs that do not."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import torch
from support import CYCLE, digest_after, plugin_with, same_tensors, stranger, tiny_trainer
from torch import nn

from neaptide import CORRECT, FULL, PREDICT, HybridTrainer, hookimpl
from neaptide_plugins.divergence_monitor import SPEC
from neaptide_plugins.divergence_monitor.alarm import Alarm, AlarmLevel
from neaptide_toolkit.testing import check_plugin
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

if TYPE_CHECKING:
    from pathlib import Path

CALM_LR, WILD_LR = 0.05, 5.0


class Net(nn.Module):
    """A linear map with a buffer that every forward moves."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(4, 1)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.lerp_(x.mean(0), 0.1)
        return self.map(x)


def loss_fn(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    weight = torch.tensor([[1.0, -2.0, 0.5, 3.0]])
    x = [torch.randn(16, 4, generator=generator) for _ in range(count)]
    noise = [torch.randn(16, 1, generator=generator) for _ in range(count)]
    return [(one, one @ weight.T + other) for one, other in zip(x, noise, strict=True)]


def trainer_of(
    plugins: Any = (SPEC,), directory: Path | None = None, **settings: Any
) -> HybridTrainer:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=CALM_LR, momentum=0.5)
    config = {
        "phases": {"warmup": {"steps": 2}, "full": {"steps": 5}, "predict": {"max_horizon": 8}},
        "run": {"dir": str(directory)} if directory else {},
        "train": {"max_skipped": 1000},
        "plugins": {"divergence-monitor": settings},
    }
    return HybridTrainer(model, optimizer, loss_fn=loss_fn, config=config, plugins=plugins)


def monitor_of(trainer: HybridTrainer) -> Any:
    return trainer.hooks.plugins["divergence-monitor"]


def level_of(trainer: HybridTrainer) -> AlarmLevel:
    return AlarmLevel(int(monitor_of(trainer).collect_metrics()["level"]))


def alarmed(trainer: HybridTrainer, level: AlarmLevel) -> None:
    """Put the monitor at `level`, as if something had been found."""
    monitor_of(trainer)._watch.alarm = Alarm(level)


def events(directory: Path, prefix: str = "divergence.") -> list[dict[str, Any]]:
    path = directory / "events.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [event for event in map(json.loads, lines) if event["event"].startswith(prefix)]


def state_of(trainer: HybridTrainer) -> dict[str, torch.Tensor]:
    """Return copies of weights, buffers and momentum."""
    momentum = {
        f"momentum.{index}": entry["momentum_buffer"]
        for index, entry in trainer.optimizer.state_dict()["state"].items()
    }
    values = {**trainer.model.state_dict(), **momentum}
    return {name: value.detach().clone() for name, value in values.items()}


class Recorder:
    """A plugin inside the monitor that copies what each training step starts from."""

    def __init__(self) -> None:
        self.states: list[dict[str, torch.Tensor]] = []
        self.trainer: HybridTrainer | None = None

    @property
    def spec(self) -> Any:
        recorder = self

        def around_train_step(self: Any) -> Any:
            def recorded(following: Any, **arguments: Any) -> Any:
                assert recorder.trainer is not None
                recorder.states.append(state_of(recorder.trainer))
                return following(**arguments)

            return recorded

        hook = hookimpl(around_train_step)
        return stranger(plugin_with(around_train_step=hook), "recorder", after={SPEC.name})


@pytest.mark.parametrize("recovery", ["log", "fallback", "rollback"])
def test_it_keeps_the_contract(recovery: str) -> None:
    check_plugin(SPEC, {"recovery": recovery, "snapshot_every": 5})


@pytest.mark.parametrize("recovery", ["log", "fallback", "rollback"])
def test_a_calm_run_is_bitwise_the_run_without_it(recovery: str) -> None:
    def run(*plugins: Any) -> tuple[dict[str, torch.Tensor], list[int]]:
        settings = {"recovery": recovery, "snapshot_every": 3} if plugins else {}
        config = {
            "phases": CYCLE,
            "train": {"clip_norm": 1.0},
            "plugins": {SPEC.name: settings} if plugins else {},
        }
        trainer, data = tiny_trainer(config, [*plugins, STEADY_PREDICTOR])
        with trainer:
            horizons = [trainer.step(batch).jump for batch in data]
            if plugins:
                assert 0.0 == monitor_of(trainer).collect_metrics()["findings"]
        return trainer.model.state_dict(), [jump.horizon for jump in horizons if jump]

    (plain, jumps), (watched, same_jumps) = run(), run(SPEC)
    assert same_tensors(plain, watched)
    assert jumps == same_jumps != []


def test_a_wild_learning_rate_goes_through_the_levels(tmp_path: Path) -> None:
    with trainer_of(directory=tmp_path) as trainer:
        for number, batch in enumerate(batches(80)):
            if number == 40:
                trainer.optimizer.param_groups[0]["lr"] = WILD_LR
            trainer.step(batch)
        assert AlarmLevel.CRITICAL is level_of(trainer)
    moves = events(tmp_path, "divergence.level")
    assert "critical" == moves[-1]["level"]
    assert [move["before"] for move in moves[1:]] == [move["level"] for move in moves[:-1]]
    first = next(move for move in moves if move["level"] == "critical")
    assert "loss spike" in first["found"]
    assert 41 < first["step"] <= 50


def test_rollback_puts_everything_back_bitwise_and_training_goes_on(tmp_path: Path) -> None:
    recorder = Recorder()
    trainer = trainer_of(
        [SPEC, recorder.spec], tmp_path, recovery="rollback", snapshot_every=10, calm=5
    )
    recorder.trainer = trainer
    losses = []
    with trainer:
        for number, batch in enumerate(batches(120), start=1):
            wild = number in {41, 42}
            trainer.optimizer.param_groups[0]["lr"] = WILD_LR if wild else CALM_LR
            losses.append(trainer.step(batch).loss)
        assert AlarmLevel.NORMAL is level_of(trainer)
    (rollback,) = events(tmp_path, "divergence.rollback")
    # The history shows update n at the start of step n + 2: the copy made then is of update n + 1.
    kept = recorder.states[rollback["to_update"] + 1]
    assert same_tensors(kept, recorder.states[rollback["step"] - 1])
    assert rollback["step"] - 1 == monitor_of(trainer)._watch.since  # all updates before it
    # The first update after it is seen two steps on; that one and all that follow are calm.
    calmed = events(tmp_path, "divergence.level")[-1]
    assert ("normal", rollback["step"] + 2 + 3 * 5 - 1) == (calmed["level"], calmed["step"])
    assert max(losses[40 : rollback["step"]]) > 100.0
    assert max(losses[rollback["step"] :]) < 10.0


def test_a_rollback_leaves_the_learning_rate_to_its_schedule() -> None:
    with trainer_of(recovery="rollback") as trainer:
        trainer.step(batches(1)[0])
        trainer.optimizer.param_groups[0].update(lr=0.01, momentum=0.9)
        alarmed(trainer, AlarmLevel.CRITICAL)
        trainer.step(batches(1)[0])
        group = trainer.optimizer.param_groups[0]
        assert (0.01, 0.5) == (group["lr"], group["momentum"])


def test_one_episode_has_one_rollback(tmp_path: Path) -> None:
    data = batches(200)
    with trainer_of(directory=tmp_path, recovery="rollback", calm=3) as trainer:
        for batch in data[:20]:
            trainer.step(batch)
        for _ in range(5):
            alarmed(trainer, AlarmLevel.CRITICAL)
            trainer.step(data[0])
        assert 1 == len(events(tmp_path, "divergence.rollback"))
        for batch in data[20:60]:
            trainer.step(batch)
        assert AlarmLevel.NORMAL is level_of(trainer)
        alarmed(trainer, AlarmLevel.CRITICAL)
        trainer.step(data[0])
        assert 2 == len(events(tmp_path, "divergence.rollback"))


@pytest.mark.parametrize("recovery", ["log", "fallback"])
def test_nothing_is_rolled_back_unless_asked(tmp_path: Path, recovery: str) -> None:
    with trainer_of(directory=tmp_path, recovery=recovery) as trainer:
        for batch in batches(5):
            trainer.step(batch)
            alarmed(trainer, AlarmLevel.CRITICAL)
        assert 0 == trainer.estimate_memory().total(owner=SPEC.name)
    assert [] == events(tmp_path, "divergence.rollback")


def test_a_nan_batch_is_critical_at_once_and_recovered_from(tmp_path: Path) -> None:
    data = batches(40)
    poison = (torch.full((16, 4), math.nan), data[0][1])
    with trainer_of(directory=tmp_path, recovery="rollback", calm=4) as trainer:
        for batch in data[:20]:
            trainer.step(batch)
        result = trainer.step(poison)
        assert not result.updated
        assert AlarmLevel.CRITICAL is level_of(trainer)
        assert bool(trainer.model.mean.isnan().all())
        for batch in data[20:]:
            assert trainer.step(batch).updated
        assert AlarmLevel.NORMAL is level_of(trainer)
        assert bool(trainer.model.mean.isfinite().all())
    (first, *_) = events(tmp_path, "divergence.level")
    assert (21, "critical", "non-finite") == (first["step"], first["level"], first["found"])


def test_unchecked_nans_are_found_in_the_history() -> None:
    torch.manual_seed(0)
    model = Net()
    trainer = HybridTrainer(
        model,
        torch.optim.SGD(model.parameters(), lr=CALM_LR),
        loss_fn=loss_fn,
        config={"train": {"check_finite": False}, "plugins": {SPEC.name: {}}},
        plugins=[SPEC],
    )
    with trainer:
        for x, y in batches(3):
            trainer.step((x * math.nan, y))
        assert AlarmLevel.CRITICAL is level_of(trainer)


def jumps_at(level: AlarmLevel, **settings: Any) -> list[int | None]:
    """Return the horizons asked for, one a due Predict step; None where there was no jump."""
    asked: list[int] = []

    def propose_update(self: Any, horizon: int) -> None:
        asked.append(horizon)

    predictor = stranger(
        plugin_with(propose_update=hookimpl(propose_update)), "asked", claims={"predictor"}
    )
    with trainer_of([SPEC, predictor], **settings) as trainer:
        for batch in batches(7):
            trainer.step(batch)
        alarmed(trainer, level)
        trainer.step(batches(1)[0])
    return list(asked)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (AlarmLevel.NORMAL, [8]),
        (AlarmLevel.CAUTION, [4]),
        (AlarmLevel.WARNING, []),
        (AlarmLevel.CRITICAL, []),
    ],
)
def test_the_level_says_how_far_a_jump_may_go(level: AlarmLevel, expected: list[int]) -> None:
    assert expected == jumps_at(level)


def test_a_jump_is_never_shorter_than_one_update() -> None:
    assert [1] == jumps_at(AlarmLevel.CAUTION, shorten=0.01)


@pytest.mark.parametrize("level", AlarmLevel)
def test_logging_alone_changes_no_jump(level: AlarmLevel) -> None:
    assert [8] == jumps_at(level, recovery="log")


def test_predict_waits_until_the_level_has_fallen() -> None:
    with trainer_of([SPEC, STEADY_PREDICTOR], calm=3) as trainer:
        data = batches(30)
        for batch in data[:7]:
            trainer.step(batch)
        alarmed(trainer, AlarmLevel.WARNING)
        results = [trainer.step(batch) for batch in data[7:15]]
    jumped = [result.jump is not None for result in results]
    assert [False, False, True] == jumped[:3]
    assert {FULL, CORRECT} >= {result.phase for result in results}


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_scheduler_of_somebody_else_is_held_back_too(order: str) -> None:
    def select_phase(self: Any) -> Any:
        return PREDICT

    hook = hookimpl(select_phase)
    eager = stranger(plugin_with(select_phase=hook), "eager", **{order: {SPEC.name}})
    with trainer_of([SPEC, eager, STEADY_PREDICTOR]) as trainer:
        assert [True] * 3 == [trainer.step(batch).was_predicted for batch in batches(3)]
        assert 1 == monitor_of(trainer)._watch.seen
        alarmed(trainer, AlarmLevel.WARNING)
        assert trainer.step(batches(1)[0]).jump is None


def test_the_estimate_is_what_the_copy_takes() -> None:
    with trainer_of(recovery="rollback", snapshot_every=2) as trainer:
        for batch in batches(9):
            trainer.step(batch)
        ledger = trainer.estimate_memory("full")
        floats = (4 + 1) + (4 + 1) + 4  # weights, momentum, buffer
        assert 4 * floats == ledger.total(owner=SPEC.name, tier="host")
        assert 0 == ledger.total(owner=SPEC.name, tier="device")


@pytest.mark.parametrize("recovery", ["fallback", "rollback"])
@pytest.mark.parametrize("saved_after", [30, 44, 46, 52])
def test_a_diverging_run_resumes_exactly(tmp_path: Path, recovery: str, saved_after: int) -> None:
    data = batches(60)

    def run(first: int, last: int, load: Path | None = None, save: Path | None = None) -> Any:
        trainer = trainer_of([SPEC, STEADY_PREDICTOR], recovery=recovery, snapshot_every=7, calm=4)
        with trainer:
            if load is not None:
                trainer.load(load)
            for number in range(first, last):
                wild = 40 <= number < 46
                trainer.optimizer.param_groups[0]["lr"] = WILD_LR if wild else CALM_LR
                trainer.step(data[number])
            if save is not None:
                trainer.save(save)
            return trainer.digest(), attrs.asdict(monitor_of(trainer)._watch)

    whole = run(0, 60)
    saved = tmp_path / "saved"
    run(0, saved_after, save=saved)
    assert whole == run(saved_after, 60, load=saved)
    assert whole[1]["findings"] > 0


def test_the_state_round_trips() -> None:
    with trainer_of(recovery="rollback") as one, trainer_of(recovery="rollback") as other:
        for batch in batches(12):
            one.step(batch)
        alarmed(one, AlarmLevel.WARNING)
        state = monitor_of(one).state_dict()
        monitor_of(other).load_state_dict(state)
        again = monitor_of(other).state_dict()
    kept, kept_again = state["rollback"].pop("kept"), again["rollback"].pop("kept")
    assert state == again
    assert same_tensors(kept["weights"], kept_again["weights"])
    assert kept["weights"].keys() == {"map.weight", "map.bias"}


def test_a_calm_run_and_its_digest_do_not_depend_on_the_watching() -> None:
    logged = digest_after(12, {"plugins": {SPEC.name: {"recovery": "log"}}}, [SPEC])
    fallen_back = digest_after(12, {"plugins": {SPEC.name: {}}}, [SPEC])
    assert logged == fallen_back
