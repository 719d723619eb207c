"""A run whose records are damaged resumes to the same end, and says how many lines are lost."""

from __future__ import annotations

import json
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from fault_records import EDITS
from support import tiny_trainer

from neaptide import CheckpointError
from neaptide.api.rng import seed_all
from neaptide.checkpoint import load, read_manifest, save
from neaptide.checkpoint.safetensors_stream import resident

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from neaptide import HybridTrainer

SAVED, STOPPED, STEPS = 8, 10, 12
"""The update of the newest checkpoint, the last update before the run died, and the last one."""
NAMES = ("steps.csv", "metrics.jsonl", "events.jsonl")
LOST = "lines up to update 8 are damaged or missing ({}); training is not affected, the report "
REMOVED = "damaged lines are removed ({}); training is not affected"


class Died(BaseException):
    """The run died."""


def made(directory: Path, saves: int = 4) -> tuple[HybridTrainer, list[Any]]:
    run = {"dir": str(directory), "checkpoint_every": saves, "keep": 0, "log_every": 1}
    config = {"run": run, "train": {"steps": STEPS}, "plugins": {"int8": {}}}
    return tiny_trainer({**config, "eval": {"every": 4}})


def fit(
    directory: Path, *, resume: Any = None, dies_after: int = 0, saves: int = 4, validates: int = 0
) -> Any:
    """Train a run that says something with and without a step."""
    seed_all(0)
    trainer, batches = made(directory, saves)

    def observe(result: Any, _: Any) -> None:
        trainer.run.log.info("seen", step=result.step)
        if result.step in (2, 9):
            trainer.run.log.info("was here", at=result.step)
        if result.step == dies_after:
            raise Died

    with trainer:
        validation = batches[validates : validates + 1]
        return trainer.fit(batches, validation=validation, observe=observe, resume=resume)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with checkpoints after 4 and 8 updates, that died after 10."""
    directory = tmp_path_factory.mktemp("template") / "run"
    with pytest.raises(Died):
        fit(directory, dies_after=STOPPED)
    return directory


@pytest.fixture(scope="module")
def expected(template: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the digest of the undamaged run, resumed."""
    directory = tmp_path_factory.mktemp("undamaged") / "run"
    shutil.copytree(template, directory)
    return str(fit(directory, resume="auto")["digest"])


@pytest.fixture
def run(tmp_path: Path, template: Path) -> Path:
    """Return a copy of the run that died."""
    shutil.copytree(template, tmp_path / "run")
    return tmp_path / "run"


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines(keepends=True)


def steps(path: Path) -> list[int]:
    """Return the step of each row of steps.csv."""
    return [int(line.split(",", 1)[0]) for line in lines(path)[1:]]


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines(path)]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "records.lost" in one.getMessage()]


def place(path: Path, step: int) -> int:
    """Return the number of the first line of update `step`."""
    start, field = f"{step},", f'"step": {step},'
    found = [line.replace("}", ",") for line in lines(path)]
    return next(i for i, line in enumerate(found) if line.startswith(start) or field in line)


def edit(path: Path, change: Callable[[list[str]], Iterable[str]]) -> None:
    path.write_text("".join(change(lines(path))), encoding="utf-8")


def without(path: Path, *some: int) -> None:
    gone = {place(path, step) for step in some}
    edit(path, lambda all_: [line for index, line in enumerate(all_) if index not in gone])


def cut(path: Path, step: int) -> None:
    """End the file in the middle of a line."""
    at = place(path, step)
    edit(path, lambda all_: [*all_[:at], all_[at][: len(all_[at]) // 2]])


def put(path: Path, step: int, old: str, new: str) -> None:
    """Change a line of update `step`."""
    at = place(path, step)
    assert old in lines(path)[at]
    edit(path, lambda all_: [*all_[:at], all_[at].replace(old, new, 1), *all_[at + 1 :]])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(500))


def deleted(path: Path) -> None:
    path.unlink()


def known(run: Path, name: str) -> int:
    """Return how many lines of a record the checkpoint knows."""
    facts = read_manifest(run / "checkpoints" / f"step-0000000{SAVED}").facts
    found: int = facts["records"][name]["lines"]
    return found


DAMAGE: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "cut": ("steps.csv", partial(cut, step=6), "2"),
    "a row flipped": ("steps.csv", partial(put, step=3, old=",full", new="=full"), "1"),
    "a digit flipped": ("steps.csv", partial(put, step=3, old="false,", new="false,1"), "at least"),
    "a step flipped": ("steps.csv", partial(put, step=3, old="3,", new="93,"), "1"),
    "a row deleted": ("steps.csv", lambda path: without(path, 4), "1"),
    "three rows deleted": ("steps.csv", lambda path: without(path, 1, 4, 5), "3"),
    "rows emptied": ("steps.csv", emptied, "all"),
    "rows zeroed": ("steps.csv", zeroed, "all"),
    "metrics emptied": ("metrics.jsonl", emptied, "all"),
    "metrics flipped": ("metrics.jsonl", partial(put, step=5, old=":", new=";"), "1"),
    "events deleted": ("events.jsonl", deleted, "all"),
    "an event deleted": ("events.jsonl", lambda path: without(path, 5), "1"),
    "the first event deleted": (
        "events.jsonl",
        lambda path: edit(path, lambda all_: all_[1:]),
        "1",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_lost_before_the_checkpoint_is_told_with_how_many(
    run: Path, expected: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    name, commit, count = DAMAGE[damage]
    total = known(run, name)
    commit(run / name)
    assert expected == fit(run, resume="auto")["digest"]
    number = {"all": str(total), "at least": "at least 1"}.get(count, count)
    (line,) = told(caplog)
    assert f"file={name} what={LOST.format(f'{number} of {total}')}" in line
    (event,) = [one for one in events(run / "events.jsonl") if one["event"] == "records.lost"]
    assert (name, SAVED, "warning") == (event["file"], event["step"], event["level"])
    caplog.clear()
    fit(run, resume="auto")  # the next checkpoint knows what is left
    assert [] == told(caplog)


def test_each_damaged_record_is_told_in_its_own_line(
    run: Path, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name in NAMES:
        emptied(run / name)
    assert expected == fit(run, resume="auto")["digest"]
    assert [f"file={name}" for name in NAMES] == [line.split()[2] for line in told(caplog)]


@pytest.mark.parametrize("changed", ["", "CRLF", "later rows cut", "without the header"])
def test_where_nothing_is_lost_nothing_is_told(
    run: Path, expected: str, changed: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = run / "steps.csv"
    if changed == "CRLF":
        path.write_bytes(EDITS["CRLF"](path.read_bytes()))
    elif changed == "later rows cut":
        edit(path, lambda all_: all_[: place(path, SAVED) + 1])
    elif changed:
        edit(path, lambda all_: all_[1:])
    header = lines(path)[0].startswith("step,")
    assert header == (changed != "without the header")
    assert expected == fit(run, resume="auto")["digest"]
    assert [*range(1, STEPS + 1)] == steps(path)
    fit(run, resume="auto")
    assert [] == told(caplog)


def test_a_checkpoint_that_is_saved_where_it_was_loaded_knows_the_records_there(
    run: Path, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    trainer, batches = made(run)
    checkpoint = run / "checkpoints" / f"step-0000000{SAVED}"
    with trainer:
        trainer.load(checkpoint)
        for _ in range(2):  # from the state of a new process, and two updates later
            trainer.save(checkpoint)
            assert SAVED == known(run, "steps.csv") == steps(run / "steps.csv")[-1]
            for batch in batches[:2]:
                trainer.step(batch)
            trainer.load(checkpoint)
    assert expected == fit(run, resume="auto")["digest"]
    assert [] == told(caplog)


def test_an_evaluation_on_other_data_is_no_damage(
    run: Path, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    losses = set()
    for validates in (0, 1, 2, 1):
        summary = fit(run, resume="auto", validates=validates)  # saves and evaluates once more
        assert expected == summary["digest"]
        losses.add(summary["val_loss"])
        found = [line for line in lines(run / "metrics.jsonl") if '"val_loss"' in line]
        assert [4, 8, 12] == [json.loads(line)["step"] for line in found]
    assert 3 == len(losses)
    assert [] == told(caplog)


def test_a_damaged_line_after_the_checkpoint_is_told(
    run: Path, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    cut(run / "steps.csv", STOPPED - 1)
    assert expected == fit(run, resume="auto")["digest"]
    (line,) = told(caplog)
    assert REMOVED.format(1) in line


def test_an_event_without_a_step_is_there_once_after_resumes(run: Path) -> None:
    for _ in range(2):  # the second time from the checkpoint after the last update
        fit(run, resume="auto")
        found = events(run / "events.jsonl")
        once = [one["event"] for one in found if "step" not in one]
        assert ["was here", "was here"] == [name for name in once if name == "was here"]
        assert len({json.dumps({**one, "time": ""}) for one in found if "step" not in one}) == len(
            once
        )
        assert "int8.started" in once
        assert [*range(1, STEPS + 1)] == [one["step"] for one in found if one["event"] == "seen"]


def forge(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Write the checkpoint again with changed facts."""
    found = load(directory)
    sections = {name: found.section(name) for name in found.sections()}
    weights = [resident(*one) for one in found.tensors("weights").whole().items()]
    facts = dict(found.manifest.facts)
    change(facts)
    save(directory, sections, found.manifest.step, facts, {"weights": weights})


@pytest.mark.parametrize("damaged", [False, True])
def test_a_checkpoint_of_an_earlier_version_resumes_and_tells_damaged_lines(
    run: Path, expected: str, caplog: pytest.LogCaptureFixture, *, damaged: bool
) -> None:
    forge(run / "checkpoints" / f"step-0000000{SAVED}", lambda facts: facts.pop("records"))
    if damaged:
        put(run / "steps.csv", 3, ",full", "=full")
        without(run / "metrics.jsonl", 3)  # nobody can know of it
    assert expected == fit(run, resume="auto")["digest"]
    assert [damaged] * damaged == [REMOVED.format(1) in line for line in told(caplog)]


@pytest.mark.parametrize(
    "forged",
    [[], {"steps.csv": {}}, {"steps.csv": {"lines": -1, "before": 0, "sha256": ""}}, 1, None],
)
def test_facts_about_records_that_have_no_form_are_refused(run: Path, forged: Any) -> None:
    directory = run / "checkpoints" / f"step-0000000{SAVED}"
    forge(directory, lambda facts: facts.update(records=forged))
    with pytest.raises(CheckpointError, match="section 'manifest'"):
        fit(run, resume=directory)


def test_a_checkpoint_of_another_run_says_nothing_about_the_records_here(
    run: Path, tmp_path: Path, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = run / "checkpoints" / f"step-0000000{SAVED}"
    other = tmp_path / "other"
    with pytest.raises(Died):
        fit(other, resume=checkpoint, dies_after=STOPPED, saves=100)
    assert expected == fit(other, resume=checkpoint)["digest"]
    assert [] == told(caplog)


def test_the_state_digest_does_not_depend_on_the_records(run: Path, expected: str) -> None:
    for name in NAMES:
        deleted(run / name)
    assert expected == fit(run, resume="auto")["digest"]
    assert expected == fit(run, resume="auto")["digest"]
