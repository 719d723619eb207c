"""The streaming bench: every way is measured, the trace opens, the README shows the figures."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from pages import ROOT, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

BENCH = ROOT / "bench"
LARGE = ROOT / "docs" / "benchmarks" / "streaming-large.json"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
COPIES = {"to device", "to host"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", str(BENCH / "streaming.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Report, trace and page of one quick run, and what it printed."""
    folder = tmp_path_factory.mktemp("streaming")
    paths = {name: folder / name for name in ("json", "trace", "page")}
    paths["page"].write_text(f"Before.\n{BEGIN}\nold\n{END}\nAfter.\n", encoding="utf-8")
    options = [word for name, path in paths.items() for word in (f"--{name}", str(path))]
    done = run("--quick", "--rounds", "2", "--steps", "1", *options)
    assert 0 == done.returncode, done.stderr
    report, trace = (json.loads(paths[name].read_text()) for name in ("json", "trace"))
    page = text_of(paths["page"])
    return {"report": report, "trace": trace, "page": page, "printed": done.stdout}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(BENCH))
    before = set(sys.modules)
    import streaming

    yield streaming
    for name in set(sys.modules) - before:
        if (BENCH / f"{name}.py").exists():
            del sys.modules[name]


@pytest.mark.slow
def test_every_way_is_beside_resident_training(files: dict[str, Any]) -> None:
    rows = {row["subject"]: row for row in files["report"]["rows"]}

    ways = [
        f"{update}; micro-batches {pieces}; resident {resident}"
        for update in ("after, on cpu", "after, on device", "in backward")
        for pieces in (1, 4)
        for resident in ("none", "half")
    ]
    accumulated = "resident, recompute, accumulation 4"
    assert ["resident", "resident, recompute", accumulated, *ways] == list(rows)
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
    resident = rows["resident, recompute"]
    rows = {name: row for name, row in rows.items() if not name.startswith("resident")}

    assert 0 == resident["fetches_a_step"]
    assert resident["overlap"] is None
    for name, row in rows.items():
        assert row["held_device_bytes"] < row["peak_device_bytes"] < resident["peak_device_bytes"]
        assert 0 <= row["waited_for_a_step"] <= row["fetches_a_step"]
        assert row["fetches_a_step"] > 0 or name.endswith("half")
        assert 0 <= row["overlap"] <= 1


def test_what_leaves_the_device_is_counted_in_ram(files: dict[str, Any]) -> None:
    for row in files["report"]["rows"]:
        if row["subject"].startswith("resident"):
            assert 0 == row["held_ram_bytes"]
            continue
        # Of a float32 parameter: weight, two moments, and the gradient where it is stored.
        each = 12 if row["subject"].startswith("in backward") else 16
        streamed = row["held_ram_bytes"] / each
        assert 0.9 * row["parameters"] < streamed < row["parameters"]


def test_the_table_of_a_page_is_replaced(files: dict[str, Any], bench: Any) -> None:
    table = bench.readme(files["report"]["rows"])

    assert f"Before.\n{BEGIN}\n\n{table}\n\n{END}\nAfter.\n" == files["page"]
    for enabled in bench.README:
        assert f"| {enabled} | 0.00 GiB | " in table


def test_the_readme_shows_the_committed_figures(bench: Any) -> None:
    report, text = json.loads(text_of(LARGE)), text_of(ROOT / "README.md")
    rows, machine = report["rows"], report["machine"]

    assert bench.readme(rows) == text.partition(BEGIN)[2].partition(END)[0].strip()
    text = " ".join(text.split())  # wherever its lines end
    assert set(bench.README.values()) == {row["subject"] for row in rows}
    assert f"{rows[0]['parameters'] / 1e6:.0f} million parameters" in text
    assert f"{rows[0]['tokens']:,} tokens" in text
    assert f"{machine['cpu']['count']} cores" in text
    assert (1, [], "No GPU was measured" in text) == (report["threads"], machine["gpus"], True)
    command = f"--rounds {report['rounds']} --steps {report['steps']}"
    assert command in text
    assert f"--json {LARGE.relative_to(ROOT)}" in text
    small = json.loads(text_of(LARGE.with_name("streaming.json")))["rows"]
    speeds = [
        row["x_resident"]["median"]
        for row in small
        if row["size"] == small[-1]["size"] and row["subject"] in [*bench.README.values()][2:]
    ]
    assert f"[{min(speeds):.2f} to {max(speeds):.2f}]" in text
    assert f"a model of {small[-1]['parameters'] / 1e6:.0f} million parameters" in text
    assert "the same loss, bit for bit" in text
    assert 1 == len({row["loss"] for row in rows})


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
