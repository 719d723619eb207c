"""What is read of a run directory: its status, its figures, and what strangers' plugins leave."""

from __future__ import annotations

import fcntl
from typing import TYPE_CHECKING, Any

import pytest

from neaptide_verbs.report.facts import as_json
from neaptide_verbs.report.reading import read_run
from neaptide_verbs.report.single import run_page
from neaptide_verbs.report.summary import run_summary

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Write = Callable[..., Path]


def line(step: int, phase: str = "full", loss: float | str = 1.0, predicted: str = "false") -> str:
    return f"{step},{phase},{loss},{predicted},0.5,,0.1,,1048576"


def skipped(step: int, in_a_row: int) -> dict[str, Any]:
    return {"level": "warning", "event": "update.skipped", "step": step, "in_a_row": in_a_row}


STOPPED = {"level": "info", "event": "run.stopped", "step": 2, "signal": 15}
CLOSED = {"level": "info", "event": "run.closed", "step": 2}
TWO = (line(1), line(2))


@pytest.mark.parametrize(
    ("files", "kind", "text"),
    [
        ({"summary": {"steps": 2}}, "finished", "finished"),
        ({}, "interrupted", "ended after update 2 without a summary: crashed or killed"),
        ({"summary": {"steps": 1}}, "interrupted", "ended after update 2"),
        ({"events": [STOPPED]}, "stopped", "stopped by SIGTERM after update 2"),
        ({"events": [CLOSED]}, "closed", "closed after update 2, by its own training loop"),
        ({"events": [{**CLOSED, "step": 1}]}, "interrupted", "ended after update 2"),
        ({"events": [CLOSED], "summary": {"steps": 2}}, "finished", "finished"),
        ({"events": [{**STOPPED, "step": 1}]}, "interrupted", "ended after update 2"),
        ({"events": [STOPPED], "summary": {"steps": 2}}, "finished", "finished"),
        ({"events": [skipped(1, 3)], "config": "train.max_skipped = 2"}, "interrupted", "ended"),
        (
            {"events": [skipped(1, 3), STOPPED], "config": "train.max_skipped = 2"},
            "stopped",
            "stopped by SIGTERM after update 2",
        ),
        (
            {"events": [skipped(2, 3)], "config": "train.max_skipped = 2"},
            "diverged",
            "diverged: 3 updates in a row were not finite",
        ),
        ({"events": [skipped(2, 2)], "config": "train.max_skipped = 2"}, "interrupted", "ended"),
        ({"files": {"summary.json": '{"steps": 2'}}, "interrupted", "ended after update 2"),
        (
            {"events": [{"event": "run.failed", "step": 2, "error": "ValueError: no\x1b[2J"}]},
            "failed",
            "failed after update 2: ValueError: no\\u001b[2J",
        ),
    ],
)
def test_how_a_run_ended(write: Write, files: dict[str, Any], kind: str, text: str) -> None:
    status = read_run(write(TWO, **files)).status
    assert kind == status.kind
    assert status.text.startswith(text)


def test_a_run_whose_lock_is_held_is_running(write: Write) -> None:
    path = write(TWO, summary={"steps": 2}, files={".lock": "1\n"})
    with (path / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "running" == read_run(path).status.kind
    assert "finished" == read_run(path).status.kind


def test_a_run_that_never_started(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    run = read_run(tmp_path)
    assert "not started" == run.status.kind
    assert "made no update" in run_summary(run, colour=False)
    assert "made no update" in run_page(run)


def test_figures_by_phase(write: Write) -> None:
    rows = (
        line(1, "warmup", 4.0),
        line(2, loss=2.0),
        line(3, loss=3.0),
        line(3, "predict", 1.5, "true"),
    )
    found = as_json(read_run(write(rows)))
    assert {"count": 2, "mean": 2.5, "min": 2.0, "max": 3.0} == found["loss"]["full"]
    assert (1, 3, 3) == (
        found["loss"]["predict"]["count"],
        found["steps"],
        found["updates_recorded"],
    )
    assert {"warmup", "full", "predict"} == found["seconds"].keys()
    assert 1048576 == found["peak_bytes"]["full"]["host"]


def test_a_strangers_memory_is_read_by_convention(write: Write) -> None:
    files = {
        "plugins/watch/vram.csv": (
            "moment,step,phase,note,disk_bytes\n"
            "swap,1,full,x,100\nswap,2,full,x,300\nswap,2,full,x,\n"
        ),
        "plugins/watch/other.csv": "a,b\n1,2\n3\n",
        "plugins/watch/sub/deep.csv": "step,phase,moment,deep_bytes\n1,full,a,1\n",
    }
    run = read_run(write(TWO, files=files))
    assert ["steps.csv", "plugins/watch/vram.csv"] == [table.source for table in run.memory]
    assert {} == run.damage
    (fact,) = (f for f in as_json(run)["memory"] if f["source"].startswith("plugins"))
    assert ("disk", "full", "swap", 2) == tuple(
        fact[k] for k in ("tier", "phase", "moment", "count")
    )
    assert (200.0, 100.0, 300.0) == (fact["mean"], fact["min"], fact["max"])
    assert "Memory: disk" in run_page(run)


@pytest.mark.parametrize(
    ("config", "sources"),
    [
        ("[plugins.watch]", ["plugins/watch/m.csv"]),
        ("seed = 0", []),
        ("plugins = 5", []),
        ("", ["plugins/other/m.csv", "plugins/watch/m.csv"]),
        ("no toml", ["plugins/other/m.csv", "plugins/watch/m.csv"]),
    ],
)
def test_memory_is_read_of_plugins_the_run_had(
    write: Write, config: str, sources: list[str]
) -> None:
    memory = "step,phase,moment,disk_bytes\n1,full,swap,100\n"
    files = {f"plugins/{name}/m.csv": memory for name in ("other", "watch")}
    run = read_run(write(TWO, config=config, files=files))
    assert ["steps.csv", *sources] == [table.source for table in run.memory]


def test_jumps_and_their_verdicts(write: Write) -> None:
    jump = {"level": "info", "step": 2, "horizon": 7, "scale": 0.5, "loss_before": 2.25}
    events = [
        {**jump, "event": "jump.accepted", "loss_after": 2.125, "norm": 3.5, "seconds": 0.25},
        {**jump, "event": "jump.refused", "loss_after": 9.5, "reason": "the loss rose"},
        {"level": "info", "event": "jump.declined", "step": 2},
    ]
    run = read_run(write(TWO, events=events))
    for text in (run_summary(run, colour=False), run_page(run)):
        for word in ("2.1250", "9.5000", "250 ms", "the loss rose", "declined"):
            assert word in text
    assert {"accepted": 1, "refused": 1, "declined": 1} == as_json(run)["jumps"]["counts"]


def test_validation_and_metrics(write: Write) -> None:
    metrics = [
        {"step": 1, "phase": "full", "val_loss": 2.5, "ema.distance": 0.5, "x.constant": 7.0},
        {"step": 2, "phase": "full", "val_loss": 2.25, "ema.distance": 0.75, "x.constant": 7.0},
        {"step": 2, "phase": "full", "words": "no number", "flag": True},
    ]
    run = read_run(write(TWO, metrics=metrics))
    found = as_json(run)
    assert ([[1, 2.5], [2, 2.25]], 2.25) == (found["validation"], found["last_validation"])
    assert {"ema.distance", "x.constant"} == found["metrics"].keys()
    page = run_page(run)
    assert "<b>ema.distance</b>" in page
    assert "<b>x.constant</b>" not in page
    assert "x.constant" in page


def test_settings_with_origins_and_the_machine(write: Write) -> None:
    files = {
        "origins.json": '{"train.steps": "--set train.steps=2", "seed": "default"}',
        "machine.json": '{"python": "3.11.2", "memory": {"total": 12345}}',
    }
    page = run_page(read_run(write(TWO, config="seed = 0\n[train]\nsteps = 2\n", files=files)))
    for word in ("--set train.steps=2", "default", "memory.total", "12,345", "3.11.2"):
        assert word in page


def test_damage_is_counted_and_left_out(write: Write) -> None:
    path = write((line(1), "2,full,no number,false,,,,,", line(3), "4,full"))
    with (path / "steps.csv").open("a") as file:
        file.write("5,full,1.0,fal")
    with (path / "events.jsonl").open("w") as file:
        file.write('{"event": "x"}\nnothing\n[1]\n{"event": "y"')
    run = read_run(path)
    assert {"steps.csv": 3, "events.jsonl": 3} == run.damage
    assert (2, 3) == (run.steps.updates, run.steps.last)
    assert "Damaged and left out: 3 lines of steps.csv, 3 lines of events.jsonl." in run_page(run)


@pytest.mark.parametrize("loss", ["nan", "inf", "-inf", "1e301"])
def test_losses_that_are_not_finite(write: Write, loss: str) -> None:
    run = read_run(write((line(1), line(2, loss=loss), line(3, loss=0.5))))
    assert 1 == as_json(run)["not_finite"]
    page = run_page(run)
    assert "1 training loss not finite." in page
    assert '<line class="bad" x1="50.00%"' in page


@pytest.mark.parametrize(
    "losses", [["nan"], ["1.5"], ["1.5", "1.5", "1.5"], ["0"], ["-1e300", "1e300"]]
)
def test_courses_without_extent(write: Write, losses: list[str]) -> None:
    run = read_run(write(line(step, loss=loss) for step, loss in enumerate(losses, 1)))
    page = run_page(run)
    assert "nan%" not in page
    assert "<h2>Time</h2>" in page


def test_a_long_run_is_read_in_bounded_size(write: Write) -> None:
    phases = ("full",) * 20 + ("predict",) + ("correct",) * 5
    rows = (line(n, phases[n % 26], 2 + (n == 7777), "false") for n in range(1, 30_001))
    run = read_run(write(rows))
    assert 3.0 == max(value for _, value in run.steps.loss.points())
    assert len(run_page(run)) < 500_000
