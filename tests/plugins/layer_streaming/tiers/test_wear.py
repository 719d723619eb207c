"""What a run writes to its disk is told, and a run that wears it out ends in a line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from neaptide_plugins.layer_streaming.config import LayerStreamingConfig
from neaptide_plugins.layer_streaming.tiers.wear import Wear
from neaptide_toolkit.machine.wear import days, told
from neaptide_toolkit.offload.disk import DiskError


class File:
    """Written by 620 GB in each step."""

    def __init__(self) -> None:
        self.written_bytes = 0
        self.moved_to_ram: list[str] = []


class Log(list[tuple[str, dict[str, Any]]]):
    def info(self, event: str, **given: Any) -> None:
        self.append((event, given))

    warning = info


def run_of(steps: int | None, seconds: float, **given: Any) -> tuple[Wear, File, Log]:
    file, log, now = File(), Log(), iter(float(number) * seconds for number in range(1000))
    config = LayerStreamingConfig(tier="disk", path="/tmp", **given)
    train = SimpleNamespace(steps=steps)
    run = SimpleNamespace(log=log, config=SimpleNamespace(train=train))

    def clock() -> float:  # asked twice, five steps apart
        return 5 * next(now)

    return Wear(SimpleNamespace(files=(file,)), config, run, clock), file, log  # type: ignore[arg-type]


def steps(wear: Wear, file: File, count: int = 10) -> None:
    for _ in range(count):
        file.written_bytes += 620_000_000_000
        wear.after_step()


def test_a_run_that_wears_the_drive_out_ends_in_a_line() -> None:
    wear, file, _ = run_of(100_000, 300.0, rated_tb=1200.0)
    with pytest.raises(
        DiskError, match=r"lasts 7 days; keep more in RAM.*endurance_days = 6"
    ) as told:
        steps(wear, file)
    assert "\n" not in str(told.value)
    assert "writes 577.4 GiB to the disk" in str(told.value)


@pytest.mark.parametrize(
    ("count", "seconds", "given"),
    [
        (5, 300.0, {}),  # too short to matter
        (None, 300.0, {}),  # nobody knows
        (100_000, 30_000.0, {}),
        (100_000, 300.0, {"endurance_days": 3.0}),
        (100_000, 300.0, {"rated_tb": 60_000.0}),
    ],
)
def test_other_runs_are_told(count: int | None, seconds: float, given: dict[str, Any]) -> None:
    wear, file, log = run_of(count, seconds, **given)
    steps(wear, file)
    wear.end()
    assert ["streaming.disk", "streaming.disk_written"] == [event for event, _ in log]
    assert log[1][1]["bytes"] == 10 * 620_000_000_000


def test_refused_writes_are_told_once() -> None:
    wear, file, log = run_of(None, 1.0)
    file.moved_to_ram.append("cannot write")
    steps(wear, file, 2)
    assert [("streaming.disk_refused", {"reason": "cannot write"})] == log


def test_a_write_that_is_refused_after_the_last_step_is_told() -> None:
    wear, file, log = run_of(None, 1.0)
    steps(wear, file, 1)
    file.moved_to_ram.append("cannot write")
    wear.end()
    assert ("streaming.disk_refused", {"reason": "cannot write"}) == log[0]


@pytest.mark.parametrize(
    ("rated", "text"),
    [
        (600e12, "a drive rated for 600 TB lasts 69 days"),
        (1.5e12, "a drive rated for 1.5 TB lasts less than a day"),
        (1e5, "a drive rated for 1e-07 TB lasts less than a day"),
    ],
)
def test_the_rated_life_is_told_as_it_was_set(rated: float, text: str) -> None:
    assert text in told(10**9, 10.0, rated=rated)


def test_a_drive_lasts_as_the_data_sheet_says() -> None:
    assert days(620_000_000_000, 620 / 3.5, 1200e12) == pytest.approx(3.97, abs=0.01)
    assert days(0, 1.0) == float("inf")
    assert told(1 << 30, None) == "an update writes 1.0 GiB to the disk"
