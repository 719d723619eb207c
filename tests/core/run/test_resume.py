"""Resuming: from any step, over any kind of data, to the bits of the uninterrupted run."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import torch
from support import CYCLE, plugin_with, stranger, tiny_trainer
from torch.utils.data import DataLoader, Dataset

from neaptide import (
    CheckpointError,
    DataError,
    RunDirectoryError,
    WrongCheckpointError,
    hookimpl,
)
from neaptide.api.rng import seed_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from neaptide import HybridTrainer

STEPS = 25
ALL_PHASES = {
    "warmup": {"steps": 3},
    "full": {"steps": 5},
    "predict": {"max_horizon": 5, "correction_interval": 1, "rise": 10.0},
    "correct": {"steps": 3},
}
DRIFT = {"min_window": 4, "sample_every": 1}


def config(
    directory: Path | None = None, *, steps: int = STEPS, every: int = 0, **more: Any
) -> dict[str, Any]:
    """Return a run through all phases, twice over."""
    table: dict[str, Any] = {
        "phases": ALL_PHASES,
        "train": {"steps": steps, "clip_norm": 1.0},
        "plugins": {"ema": {"decay": 0.9}, "predictor-drift": DRIFT, "lr-schedule": {"warmup": 3}},
        **more,
    }
    if directory is not None:
        table["run"] = {"dir": str(directory), "checkpoint_every": every, "keep": 0, "log_every": 4}
    return table


def trainer_for(
    directory: Path | None = None, seed: int = 0, plugins: Any = (), **changes: Any
) -> tuple[HybridTrainer, list[Any]]:
    """Return a fresh trainer of the same task and its batches."""
    return tiny_trainer(config(directory, **changes), plugins, seed)


class KilledError(Exception):
    """Stands for a kill: nothing of the run gets to say goodbye."""


def killed_after(step: int) -> Any:
    """Return an observer that ends the run without saving."""

    def observe(result: Any, state: Any) -> None:
        if state.step == step:
            raise KilledError

    return observe


def test_resume_from_every_step_is_bitwise(tmp_path: Path) -> None:
    trainer, batches = trainer_for()
    phases = []
    with trainer:
        for index, batch in enumerate(batches[:STEPS]):
            trainer.save(tmp_path / f"{index}")
            result = trainer.step(batch)
            phases.append("predict" if result.was_predicted else result.phase.name)
        expected = trainer.digest()
    assert {"warmup", "full", "predict", "correct"} == set(phases)
    for index in range(STEPS):
        resumed, _ = trainer_for(seed=7 if index % 2 else 0)
        with resumed:
            resumed.load(tmp_path / f"{index}")
            for batch in batches[index:STEPS]:
                resumed.step(batch)
            assert expected == resumed.digest(), f"resumed after {index} steps"


def test_saving_and_digesting_change_nothing(tmp_path: Path) -> None:
    digests = []
    for disturbed in (False, True):
        trainer, batches = trainer_for()
        with trainer:
            for batch in batches[:STEPS]:
                trainer.step(batch)
                if disturbed:
                    trainer.save(tmp_path / "again")
                    trainer.digest()
            digests.append(trainer.digest())
    assert digests[0] == digests[1]


def deferring(every: int) -> Any:
    """Return a plugin that makes one update of `every` batches."""
    from neaptide import Outcome

    @hookimpl
    def around_optimizer_step(self: Any) -> Any:
        def later(following: Any, **arguments: Any) -> Any:
            self.seen += 1
            return following(**arguments) if self.seen % every == 0 else Outcome.DEFERRED

        return later

    members = {
        "seen": 0,
        "around_optimizer_step": around_optimizer_step,
        "state_dict": lambda self: {"seen": self.seen},
        "load_state_dict": lambda self, state: setattr(self, "seen", state["seen"]),
    }
    return stranger(plugin_with(**members), "deferring")


def test_resume_inside_an_accumulation_is_bitwise(tmp_path: Path) -> None:
    trainer, batches = trainer_for(plugins=[deferring(3)])
    with trainer:
        for index, batch in enumerate(batches[:12]):
            trainer.step(batch)
            trainer.save(tmp_path / f"{index}")
        assert 4 == trainer.state.step
        expected = trainer.digest()
    for index in range(11):
        resumed, batches = trainer_for(plugins=[deferring(3)])
        with resumed:
            resumed.load(tmp_path / f"{index}")
            for batch in batches[index + 1 : 12]:
                resumed.step(batch)
            assert expected == resumed.digest(), f"resumed after batch {index}"


def test_the_users_own_objects_come_along(tmp_path: Path) -> None:
    def with_scheduler() -> tuple[Any, Any, Any]:
        trainer, batches = tiny_trainer()
        scheduler = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 2, gamma=0.5)
        trainer.close()
        from neaptide import HybridTrainer
        from neaptide_toolkit.testing.tiny import tiny_loss

        own = HybridTrainer(
            trainer.model, trainer.optimizer, loss_fn=tiny_loss, stateful={"lr": scheduler}
        )
        return own, scheduler, batches

    own, scheduler, batches = with_scheduler()
    with own:
        for batch in batches[:3]:
            own.step(batch)
            scheduler.step()
        own.save(tmp_path / "saved")
        own.step(batches[3])
        expected = own.digest()
    own, scheduler, batches = with_scheduler()
    with own:
        own.load(tmp_path / "saved")
        assert 3 == scheduler.last_epoch
        own.step(batches[3])
        assert expected == own.digest()


def table(path: Path) -> list[dict[str, str]]:
    """Return steps.csv without what depends on clock and machine."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        for column in ("seconds", "device_bytes", "host_bytes"):
            del row[column]
    return rows


def lines(path: Path) -> list[dict[str, Any]]:
    """Return a .jsonl file without times."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        {key: value for key, value in row.items() if key not in {"time", "seconds"}} for row in rows
    ]


def records(directory: Path) -> dict[str, Any]:
    """Return all that a run wrote of itself."""
    return {
        "steps": table(directory / "steps.csv"),
        "metrics": lines(directory / "metrics.jsonl"),
        "events": lines(directory / "events.jsonl"),
    }


EVAL = {"eval": {"every": 5}}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Any]:
    """Return summary and records of a run nobody disturbed."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    seed_all(0)  # before the fixture that seeds each test
    trainer, batches = trainer_for(directory, every=1, **EVAL)
    with trainer:
        summary = trainer.fit(batches, validation=batches[-3:])
    return summary, records(directory)


@pytest.mark.parametrize(
    ("every", "kill"), [(4, 6), (4, 8), (4, 9), (1, 8), (1, 9), (3, 12), (5, 24), (1, 25)]
)
def test_a_killed_run_resumes_to_the_same_end_and_the_same_files(
    tmp_path: Path, every: int, kill: int, uninterrupted: Any
) -> None:
    directory = tmp_path / "run"
    trainer, batches = trainer_for(directory, every=every, **EVAL)
    with pytest.raises(KilledError), trainer:
        trainer.fit(batches, validation=batches[-3:], observe=killed_after(kill))
    trainer, batches = trainer_for(directory, every=every, **EVAL)
    with trainer:
        summary = trainer.fit(batches, validation=batches[-3:], resume="auto")
    expected, files = uninterrupted
    for key in ("digest", "val_loss", "final_loss", "steps", "jumps", "backward_skipped"):
        assert expected[key] == summary[key], key
    found = records(directory)
    assert files["steps"] == found["steps"]
    assert files["metrics"] == found["metrics"]
    assert files["events"] == found["events"]


def test_steps_csv_has_a_row_an_update_and_a_row_a_jump(uninterrupted: Any) -> None:
    summary, files = uninterrupted
    updates = [row for row in files["steps"] if row["was_predicted"] == "false"]
    jumps = [row for row in files["steps"] if row["was_predicted"] == "true"]
    assert [str(step) for step in range(1, STEPS + 1)] == [row["step"] for row in updates]
    assert {"predict"} == {row["phase"] for row in jumps}
    assert summary["jumps"] == len(jumps) > 0


def test_resuming_a_finished_run_says_the_same_again(tmp_path: Path, uninterrupted: Any) -> None:
    directory = tmp_path / "run"
    for resume in (None, "auto"):
        trainer, batches = trainer_for(directory, every=10, **EVAL)
        with trainer:
            summary = trainer.fit(batches, validation=batches[-3:], resume=resume)
        for key in ("digest", "val_loss", "final_loss", "steps", "jumps"):
            assert uninterrupted[0][key] == summary[key], key
    found = records(directory)
    assert uninterrupted[1]["steps"] == found["steps"]
    assert uninterrupted[1]["events"] == found["events"]


def test_a_damaged_checkpoint_is_passed_over(
    tmp_path: Path, uninterrupted: Any, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "run"
    trainer, batches = trainer_for(directory, every=5, **EVAL)
    with pytest.raises(KilledError), trainer:
        trainer.fit(batches, validation=batches[-3:], observe=killed_after(17))
    newest = directory / "checkpoints" / "step-00000015"
    weights = next(path for path in newest.iterdir() if path.suffix == ".safetensors")
    damaged = bytearray(weights.read_bytes())
    damaged[-3] ^= 1
    weights.write_bytes(damaged)
    trainer, batches = trainer_for(directory, every=5, **EVAL)
    with trainer:
        summary = trainer.fit(batches, validation=batches[-3:], resume="auto")
    assert "step-00000015" in caplog.text
    assert uninterrupted[0]["digest"] == summary["digest"]


class Samples(Dataset[dict[str, torch.Tensor]]):
    """Samples that draw noise from the global generator, as augmentation does."""

    def __init__(self, batches: list[Any]) -> None:
        self.x = torch.cat([batch["x"] for batch in batches])
        self.y = torch.cat([batch["y"] for batch in batches])

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        noise = 0.1 * torch.randn(16)  # of the CPU, as a loader has it
        return {"x": self.x[index] + noise.to(self.x), "y": self.y[index]}


def shuffled(batches: list[Any]) -> DataLoader[Any]:
    """Return a loader of 8 batches a pass."""
    return DataLoader(Samples(batches[:8]), batch_size=12, shuffle=True)


class Stateful:
    """A source that knows its own place."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches
        self.place = 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            batch = self.batches[self.place % len(self.batches)]
            self.place += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


SOURCES = {
    "shuffling loader": shuffled,
    "list shorter than the run": lambda batches: batches[:7],
    "stateful source": Stateful,
}


@pytest.mark.parametrize("source", SOURCES)
def test_data_goes_on_where_it_was(tmp_path: Path, source: str) -> None:
    make = SOURCES[source]
    digests = {}
    for kill in (None, 3, 8, 13):
        directory = tmp_path / f"{kill}"
        if kill is not None:
            trainer, batches = trainer_for(directory, every=kill)
            with pytest.raises(KilledError), trainer:
                trainer.fit(make(batches), observe=killed_after(kill + 1))
        trainer, batches = trainer_for(directory)
        with trainer:
            if kill is not None:
                torch.manual_seed(5)  # what the new process happens to start with
            resume = None if kill is None else "auto"
            digests[kill] = trainer.fit(make(batches), resume=resume)["digest"]
    assert 1 == len(set(digests.values())), digests


def test_data_that_became_shorter_is_an_error(tmp_path: Path) -> None:
    trainer, batches = trainer_for(tmp_path / "run", every=1)
    with pytest.raises(KilledError), trainer:
        trainer.fit(batches, observe=killed_after(8))
    trainer, batches = trainer_for(tmp_path / "run", every=1)
    with trainer, pytest.raises(DataError) as caught:
        trainer.fit(batches[:4], resume="auto")
    assert (
        "the training data ended after 4 batches, but the checkpoint has used 7; resume on the "
        "same data"
    ) == str(caught.value)


def test_data_of_another_kind_is_an_error(tmp_path: Path) -> None:
    trainer, batches = trainer_for(tmp_path / "run", every=1)
    with pytest.raises(KilledError), trainer:
        trainer.fit(batches, observe=killed_after(8))
    trainer, batches = trainer_for(tmp_path / "run", every=1)
    with trainer, pytest.raises(WrongCheckpointError, match="of another kind of data"):
        trainer.fit(Stateful(batches), resume="auto")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Return a checkpoint after 9 steps."""
    trainer, batches = trainer_for()
    with trainer:
        for batch in batches[:9]:
            trainer.step(batch)
        return trainer.save(tmp_path / "saved")


def refused(trainer: HybridTrainer, directory: Path, **given: Any) -> str:
    """Return why loading is refused; nothing may have changed by it."""
    with trainer:
        before = trainer.digest()
        with pytest.raises(CheckpointError) as caught:
            trainer.load(directory, **given)
        assert before == trainer.digest()
    return str(caught.value)


@pytest.fixture
def threads() -> Iterator[None]:
    """Restore the number of torch's threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_a_run_goes_on_with_as_many_threads_as_it_began_with(
    saved: Path, caplog: pytest.LogCaptureFixture
) -> None:
    began = torch.get_num_threads()
    torch.set_num_threads(began + 2)
    with trainer_for()[0] as trainer:
        trainer.load(saved)
        assert began == torch.get_num_threads()
    (said,) = [one.getMessage() for one in caplog.records]
    assert said.startswith(f"going on with {began} CPU threads")
    with trainer_for()[0] as trainer:
        trainer.load(saved)
    assert 1 == len(caplog.records)


@pytest.mark.usefixtures("threads")
def test_the_config_may_name_the_number_of_threads(saved: Path) -> None:
    train = {"steps": STEPS, "clip_norm": 1.0, "threads": 3}
    assert "train.threads (saved None, now 3)" in refused(trainer_for(train=train)[0], saved)
    with trainer_for(train=train)[0] as trainer:
        trainer.load(saved, allow_changes=True)
        assert 3 == torch.get_num_threads()


def test_another_config_is_refused_with_the_keys(saved: Path) -> None:
    changed = config(steps=99)
    changed["plugins"]["lr-schedule"] = {"name": "linear"}
    trainer, _ = tiny_trainer(changed)
    assert (
        "the checkpoint was saved under another config: plugins.lr-schedule.name (saved 'cosine', "
        "now 'linear'); plugins.lr-schedule.warmup (saved 3.0, now 0.0); train.steps (saved 25, "
        "now 99), or allow it with --allow-changes (allow_changes=True)"
    ) == refused(trainer, saved)


def test_a_plugins_other_setting_is_refused_with_its_key(saved: Path) -> None:
    trainer, _ = trainer_for(plugins=(), eval={"every": 3})
    with trainer:
        trainer.load(saved)
    changed = config()
    changed["plugins"]["ema"] = {"decay": 0.5}
    assert "plugins.ema.decay (saved 0.9, now 0.5)" in refused(tiny_trainer(changed)[0], saved)


def test_another_config_is_taken_when_allowed(saved: Path) -> None:
    trainer, batches = trainer_for(steps=99)
    with trainer:
        trainer.load(saved, allow_changes=True)
        assert 9 == trainer.state.step
        assert 10 == trainer.step(batches[9]).step


def test_where_a_run_writes_may_change(saved: Path, tmp_path: Path) -> None:
    trainer, _ = trainer_for(tmp_path / "elsewhere", every=3)
    with trainer:
        trainer.load(saved)
        assert 9 == trainer.state.step


def test_other_plugins_are_refused_by_name_and_taken_when_allowed(saved: Path) -> None:
    changed = config()
    del changed["plugins"]["ema"]
    extra = stranger(plugin_with(), "newcomer")
    message = refused(tiny_trainer(changed, [extra])[0], saved)
    assert message.startswith(
        "the checkpoint was saved with other plugins: ema (only saved), newcomer (only now); "
        "enable the same ones"
    )
    trainer, _ = tiny_trainer(changed, [extra])
    with trainer:
        trainer.load(saved, allow_changes=True)
        assert 9 == trainer.state.step


def test_another_version_of_a_plugin_is_refused(tmp_path: Path) -> None:
    spec = stranger(plugin_with(), "versioned", version=1)
    trainer, _ = tiny_trainer(plugins=[spec])
    with trainer:
        trainer.save(tmp_path / "saved")
    newer = attrs.evolve(spec, version=2)
    message = refused(tiny_trainer(plugins=[newer])[0], tmp_path / "saved", allow_changes=True)
    assert "state of plugin 'versioned' in version 1, but here is version 2" in message


def linear(out: int, optimizer: Any = torch.optim.AdamW, buffer: int | None = None) -> Any:
    """Return a trainer of a linear model."""
    from neaptide import HybridTrainer

    model = torch.nn.Linear(4, out)
    if buffer is not None:
        model.register_buffer("seen", torch.zeros(buffer))
    return HybridTrainer(
        model,
        optimizer(model.parameters(), lr=0.1),
        loss_fn=lambda model, batch: model(batch).square().mean(),
    )


@pytest.fixture
def saved_linear(tmp_path: Path) -> Path:
    """Return a checkpoint of a small linear model."""
    with linear(3, buffer=2) as trainer:
        trainer.step(torch.ones(2, 4))
        return trainer.save(tmp_path / "linear")


def test_another_shape_is_refused(saved_linear: Path) -> None:
    assert (
        "parameter 'weight' is torch.float32 (3, 4) in the checkpoint but torch.float32 (5, 4) in "
        "the model"
    ) == refused(linear(5), saved_linear)


def test_another_model_is_refused(saved_linear: Path) -> None:
    message = refused(tiny_trainer()[0], saved_linear)
    assert message.startswith("parameter 'bias' is only in the checkpoint; ")


def test_another_optimizer_is_refused(saved_linear: Path) -> None:
    assert "optimizer" in refused(linear(3, torch.optim.SGD, buffer=2), saved_linear)


@pytest.mark.parametrize("size", [None, 5])
def test_other_buffers_are_refused(saved_linear: Path, size: int | None) -> None:
    assert "buffer 'seen'" in refused(linear(3, buffer=size), saved_linear)


def test_a_run_directory_with_checkpoints_is_not_started_over(tmp_path: Path) -> None:
    trainer, batches = trainer_for(tmp_path / "run", every=1)
    with pytest.raises(KilledError), trainer:
        trainer.fit(batches, observe=killed_after(3))
    trainer, batches = trainer_for(tmp_path / "run", every=1)
    with trainer, pytest.raises(RunDirectoryError, match="go on from them with --resume auto"):
        trainer.fit(batches)


def test_resume_auto_needs_a_place_to_look() -> None:
    trainer, batches = trainer_for()
    with trainer, pytest.raises(WrongCheckpointError, match=r"needs run\.dir"):
        trainer.fit(batches, resume="auto")


def test_resume_auto_without_checkpoints_starts(tmp_path: Path) -> None:
    trainer, batches = trainer_for(tmp_path / "run", steps=3)
    with trainer:
        assert 3 == trainer.fit(batches, resume="auto")["steps"]


def test_the_phases_cover_all_four() -> None:
    assert CYCLE.keys() == ALL_PHASES.keys()


def test_a_run_leaves_its_phase_before_it_is_given_other_weights(tmp_path: Path) -> None:
    left: list[tuple[Any, Any, float]] = []

    def on_phase_exit(self: Any, phase: Any, following: Any) -> None:
        left.append((phase, following, float(trainer.model.head.weight.detach().sum())))

    spec = stranger(plugin_with(on_phase_exit=hookimpl(on_phase_exit)))
    trainer, batches = tiny_trainer(plugins=[spec])
    with trainer:
        trainer.save(tmp_path / "saved")
        phase = trainer.step(batches[0]).phase
        now = float(trainer.model.head.weight.detach().sum())
        trainer.load(tmp_path / "saved")
        assert [(phase, None, now)] == left
        trainer.load(tmp_path / "saved")
        assert 1 == len(left)
