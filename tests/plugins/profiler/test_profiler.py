"""The profiler in real runs."""

from __future__ import annotations

import csv
import json
import sys
from statistics import fmean
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch
from support import CYCLE, DEVICE, tiny_trainer, touched

from neaptide_plugins.profiler import SPEC
from neaptide_plugins.profiler.statistics import SPIKES_SHOWN
from neaptide_toolkit.testing import check_plugin
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

if TYPE_CHECKING:
    from pathlib import Path

CPU = torch.device("cpu")
COLUMNS = [
    "step",
    "phase",
    "moment",
    "allocated_bytes",
    "peak_bytes",
    "reserved_bytes",
    "rss_bytes",
    "rss_peak_bytes",
    "nvml_bytes",
    "gpu_utilization",
]


def trained(
    directory: Path | None = None,
    steps: int = 12,
    settings: dict[str, Any] | None = None,
    device: torch.device = DEVICE,
) -> Any:
    """Return the closed trainer of a profiled run through all phases."""
    config = {
        "phases": CYCLE,
        "run": {"dir": str(directory)} if directory else {},
        "plugins": {"profiler": settings or {}},
    }
    trainer, batches = tiny_trainer(config, [SPEC, STEADY_PREDICTOR], device=device)
    with trainer:
        for batch in batches[:steps]:
            trainer.step(batch)
    return trainer


def rows_of(directory: Path) -> list[dict[str, str]]:
    with (directory / "plugins" / "profiler" / "memory.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_it_keeps_the_contract() -> None:
    check_plugin(SPEC)


def test_every_step_has_a_row_a_moment(tmp_path: Path) -> None:
    trained(tmp_path)
    rows = rows_of(tmp_path)
    assert COLUMNS == list(rows[0])
    for step in range(1, 13):
        moments = [row["moment"] for row in rows if int(row["step"]) == step]
        assert ["forward", "backward", "step"] == moments[-3:]
    assert {"warmup", "full", "predict", "correct"} == {row["phase"] for row in rows}


def test_a_predict_step_is_one_sample(tmp_path: Path) -> None:
    trainer = trained(tmp_path)
    jumps = [row for row in rows_of(tmp_path) if row["phase"] == "predict"]
    assert trainer.state.jumps == len(jumps) > 0
    assert {"step"} == {row["moment"] for row in jumps}


def test_a_cpu_has_no_allocator_to_ask(tmp_path: Path) -> None:
    trainer = trained(tmp_path, device=CPU)
    for row in rows_of(tmp_path):
        empty = [row[name] for name in COLUMNS[3:] if not name.startswith("rss")]
        assert [""] * 5 == empty
        assert 0 < int(row["rss_bytes"]) < psutil.virtual_memory().total
    assert "no accelerator: RSS only" == trainer.report("profiler").splitlines()[0]


def test_the_table_is_left_in_the_run_directory(tmp_path: Path) -> None:
    trainer = trained(tmp_path)
    table = (tmp_path / "plugins" / "profiler" / "table.txt").read_text(encoding="utf-8")
    assert f"{trainer.report('profiler')}\n" == table
    listed = [line.split()[1:3] for line in table.splitlines() if line.startswith("host  ")]
    assert ["predict", "step"] in listed
    assert all([phase, "forward"] in listed for phase in ("warmup", "full", "correct"))


def test_every_other_update_is_half_the_rows(tmp_path: Path) -> None:
    trained(tmp_path, settings={"every": 2})
    ordinary = [row for row in rows_of(tmp_path) if row["moment"] == "backward"]
    assert [1, 3, 5, 7, 9, 11] == [int(row["step"]) for row in ordinary]


def test_csv_can_be_left_out(tmp_path: Path) -> None:
    trained(tmp_path, settings={"csv": False})
    files = sorted(path.name for path in (tmp_path / "plugins" / "profiler").iterdir())
    assert ["phases.csv", "table.txt", "tiers.csv"] == files


def test_without_a_run_directory_there_is_still_a_report() -> None:
    assert "full" in trained().report("profiler")


def test_deferred_updates_belong_to_the_one_in_progress(tmp_path: Path) -> None:
    config = {
        "run": {"dir": str(tmp_path)},
        "plugins": {"profiler": {}, "gradient-accumulation": {"steps": 3, "across_steps": True}},
    }
    trainer, batches = tiny_trainer(config, [SPEC])
    with trainer:
        for batch in batches[:6]:
            trainer.step(batch)
    steps = [int(row["step"]) for row in rows_of(tmp_path) if row["moment"] == "step"]
    assert [1, 1, 1, 2, 2, 2] == steps


def test_a_leak_in_a_step_is_a_spike(tmp_path: Path) -> None:
    config = {
        "run": {"dir": str(tmp_path)},
        "phases": {"warmup": {"steps": 20}},
        "plugins": {"profiler": {"spike_mb": 30.0}},
    }
    trainer, batches = tiny_trainer(config, [SPEC])
    leaked = []
    with trainer:
        for number, batch in enumerate(batches[:10], start=1):
            if number == 6:
                leaked.append(touched(10_000_000))  # 40 MB, resident
            trainer.step(batch)
    events = (tmp_path / "events.jsonl").read_text(encoding="utf-8").splitlines()
    spikes = [event for event in map(json.loads, events) if event["event"] == "profiler.spike"]
    assert {("forward", 6), ("backward", 6), ("step", 6)} == {
        (spike["moment"], spike["step"]) for spike in spikes
    }
    assert {"warmup"} == {spike["phase"] for spike in spikes}
    assert all(38e6 <= spike["bytes"] < 80e6 for spike in spikes)
    assert 3 == trainer.report("profiler").count("spike: +")
    assert 3.0 == trainer.hooks.plugins["profiler"].collect_metrics()["spikes"]


def test_a_resumed_run_has_each_row_once(tmp_path: Path) -> None:
    config = {
        "run": {"dir": str(tmp_path), "checkpoint_every": 4},
        "train": {"steps": 7},
        "plugins": {"profiler": {}},
    }

    def fit(steps: int) -> list[int]:
        trainer, batches = tiny_trainer({**config, "train": {"steps": steps}}, [SPEC])
        with trainer:
            trainer.fit(batches[:4], resume="auto", allow_changes=True)
        return [int(row["step"]) for row in rows_of(tmp_path) if row["moment"] == "step"]

    assert list(range(1, 8)) == fit(7)
    assert list(range(1, 11)) == fit(10)


def test_resuming_a_finished_run_loses_nothing(tmp_path: Path) -> None:
    config = {
        "run": {"dir": str(tmp_path)},
        "train": {"steps": 7},
        "plugins": {"profiler": {}},
    }

    def fit() -> tuple[str, Any, dict[str, bytes]]:
        trainer, batches = tiny_trainer(config, [SPEC])
        with trainer:
            peaks = trainer.fit(batches[:4], resume="auto")["peak_bytes"]
        files = sorted((tmp_path / "plugins" / "profiler").iterdir())
        return trainer.report("profiler"), peaks, {path.name: path.read_bytes() for path in files}

    first, again = fit(), fit()
    assert first == again
    assert b"full" in first[2]["phases.csv"]
    assert {"full"} == first[1].keys()


def test_rows_after_the_checkpoint_are_written_again(tmp_path: Path) -> None:
    config = {"run": {"dir": str(tmp_path / "run")}, "plugins": {"profiler": {}}}
    trainer, batches = tiny_trainer(config, [SPEC])
    with trainer:
        for number, batch in enumerate(batches[:9], start=1):
            trainer.step(batch)
            if number == 5:
                trainer.save(tmp_path / "saved")
    trainer, batches = tiny_trainer(config, [SPEC])
    with trainer:
        trainer.load(tmp_path / "saved")
        for batch in batches[5:7]:
            trainer.step(batch)
    steps = [int(row["step"]) for row in rows_of(tmp_path / "run") if row["moment"] == "step"]
    assert list(range(1, 8)) == steps


def test_a_checkpoint_has_all_rows_before_it_on_disk(tmp_path: Path) -> None:
    config = {"run": {"dir": str(tmp_path / "run")}, "plugins": {"profiler": {}}}
    trainer, batches = tiny_trainer(config, [SPEC])
    with trainer:
        for batch in batches[:5]:
            trainer.step(batch)
        trainer.save(tmp_path / "saved")
        assert 15 == len(rows_of(tmp_path / "run"))  # while the run goes on


def test_it_keeps_no_state() -> None:
    assert {} == trained().hooks.plugins["profiler"].state_dict()


def test_the_tables_are_there_to_compute_with(tmp_path: Path) -> None:
    trained(tmp_path, device=CPU)
    folder = tmp_path / "plugins" / "profiler"
    with (folder / "phases.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    samples = rows_of(tmp_path)
    for row in rows:
        values = [
            int(sample["rss_bytes"])
            for sample in samples
            if row["phase"] == sample["phase"] and row["moment"] in {"all", sample["moment"]}
        ]
        assert (max(values), min(values)) == (int(row["max_bytes"]), int(row["min_bytes"]))
        assert pytest.approx(fmean(values), abs=1) == int(row["mean_bytes"])
    with (folder / "tiers.csv").open(encoding="utf-8") as file:
        (host,) = csv.DictReader(file)
    assert samples[-1]["rss_bytes"] == host["final_bytes"]
    assert max(int(sample["rss_bytes"]) for sample in samples) <= int(host["peak_bytes"])
    assert 0 < float(host["utilization"]) < 1


def test_a_disk_that_refuses_ends_the_profiler_and_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "profiler").touch()
    trainer = trained(tmp_path)
    assert 12 == trainer.state.step
    assert 1 == caplog.text.count("plugin.quarantined")


def test_what_it_holds_does_not_grow_with_the_run() -> None:
    config = {"phases": CYCLE, "plugins": {"profiler": {"spike_mb": 1e-6}}}
    trainer, batches = tiny_trainer(config, [SPEC, STEADY_PREDICTOR])
    account = trainer.hooks.plugins["profiler"]._session.account
    sizes = []
    with trainer:
        for _ in range(6):
            for batch in batches:
                trainer.step(batch)
            sizes.append(len(account.moments))
            assert len(account.spikes) <= SPIKES_SHOWN  # how often memory rises is not ours to say
    assert sizes[2] == sizes[-1]


def test_it_never_imports_the_driver_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    trained()
    assert "pynvml" not in sys.modules
