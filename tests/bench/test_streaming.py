"""The streaming bench: every way is measured, and the timeline is a trace Perfetto opens."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
COPIES = {"to device", "to host"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", str(BENCH / "streaming.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Report and trace of one quick run, and what it printed."""
    folder = tmp_path_factory.mktemp("streaming")
    paths = [str(folder / name) for name in ("report.json", "trace.json")]
    done = run("--quick", "--rounds", "2", "--steps", "1", "--json", paths[0], "--trace", paths[1])
    assert 0 == done.returncode, done.stderr
    report, trace = (json.loads(Path(path).read_text()) for path in paths)
    return {"report": report, "trace": trace, "printed": done.stdout}


def test_every_way_is_beside_resident_training(files: dict[str, Any]) -> None:
    rows = {row["subject"]: row for row in files["report"]["rows"]}

    ways = [
        f"{update}; micro-batches {pieces}; resident {resident}"
        for update in ("after, on cpu", "after, on device", "in backward")
        for pieces in (1, 4)
        for resident in ("none", "half")
    ]
    assert ["resident", "resident, recompute", *ways] == list(rows)
    for name, row in rows.items():
        assert f"| {name} |" in files["printed"]
        assert row["steps_per_s"] > 0
        for key in ("x_resident_recompute", "x_resident"):
            low, high = row[key]["quartiles"]
            assert 0 < low <= row[key]["median"] <= high
    assert 1.0 == rows["resident"]["x_resident"]["median"]
    assert 1.0 == rows["resident, recompute"]["x_resident_recompute"]["median"]


def test_streaming_takes_fewer_bytes_and_fetches(files: dict[str, Any]) -> None:
    rows = {row["subject"]: row for row in files["report"]["rows"]}
    resident = rows.pop("resident, recompute")
    del rows["resident"]

    assert 0 == resident["fetches_a_step"]
    assert resident["overlap"] is None
    for name, row in rows.items():
        assert row["held_device_bytes"] < row["peak_device_bytes"] < resident["peak_device_bytes"]
        assert 0 <= row["waited_for_a_step"] <= row["fetches_a_step"]
        assert row["fetches_a_step"] > 0 or name.endswith("half")
        assert 0 <= row["overlap"] <= 1


def test_the_trace_has_the_lanes_and_the_blocks(files: dict[str, Any]) -> None:
    events = files["trace"]["traceEvents"]
    lanes = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}

    assert {"compute", *COPIES} == set(lanes.values())
    spans = [event for event in events if event["ph"] == "X"]
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in spans)
    assert {event["cat"] for event in spans} == set(lanes.values())
    computed = {event["name"] for event in spans if event["cat"] == "compute"}
    blocks = [
        f"{moment} blocks.{number}" for moment in ("forward", "backward") for number in (0, 3)
    ]
    assert set(blocks) <= computed


def test_one_round_has_no_quartiles() -> None:
    done = run("--rounds", "1")

    assert (2, "") == (done.returncode, done.stdout)
    assert done.stderr.endswith("--rounds must be at least 2: 1 has no quartiles\n")
