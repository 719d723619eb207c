"""Processes that keep their rows in RAM: as exact as one, with less on the GPU, without a race."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from company_of_processes import EXACT, IN_RAM, PROGRAM, compared, names, table
from several import run_together
from several_runs import CONFIG, TASK, digest, require_close, rows, stopped_at_16, trained

from neaptide.hooks.enabling import configured
from neaptide_toolkit.dry_run.processes.places import Processes
from neaptide_toolkit.dry_run.running import dry_run
from neaptide_toolkit.machine import profiles

if TYPE_CHECKING:
    from pathlib import Path

MEASURED = """
import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path

import simulated_gpu

simulated_gpu.configure(devices=int(os.environ["WORLD_SIZE"]), capacity=1 << 30)

import torch

from neaptide import HybridTrainer
from neaptide.hooks.enabling import configured
from neaptide.run import assembly
from neaptide_toolkit.ranks import group

NAMES = {"forward": "forward", "backward": "backward", "optimizer_step": "update"}
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
torch.distributed.init_process_group("cpu:gloo,cuda:nccl")
given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
given["train"]["device"] = f"cuda:{rank}"
config = configured(given, ())[0]
peaks, losses = {}, []


@contextmanager
def opened(name, _):
    moment = NAMES.get(name.removeprefix("around_"))
    if moment:
        torch.cuda.reset_peak_memory_stats()
    yield
    if moment:
        peaks[moment] = torch.cuda.max_memory_allocated()


with HybridTrainer.from_config(config) as trainer:
    batch = next(iter(assembly.build_data(config, trainer.hooks).train))
    trainer.run.timeline.listen(opened)
    for _ in range(3):
        losses.append(float(trainer.step(batch, phase="full").loss))
    ledger = trainer.estimate_memory("full")
del trainer, batch  # what has rows has the group, whose threads are to end before Python
torch.distributed.destroy_process_group()
group._end_threads()
held = {
    tier: {moment: ledger.total(tier=tier, moment=moment) for moment in peaks}
    for tier in ("device", "host")
}
print(json.dumps([losses, peaks, held, simulated_gpu.races()]))
"""
BEFORE = """
import os

import simulated_gpu

simulated_gpu.configure(devices=2, capacity=1 << 30)

import torch
from torch import nn

from neaptide import ConfigError, HybridTrainer
from neaptide_toolkit.ranks import group

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
torch.distributed.init_process_group("cpu:gloo,cuda:nccl")
config = {"plugins": {"sharding": {"stage": 3, "offload": "cpu"}}}
for more in ({"foreach": True}, {"capturable": True}):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)).to(torch.device("cuda", rank))
    optimizer = torch.optim.AdamW(model.parameters(), **more)
    batch = torch.randn(4, 6)
    model(batch.to(torch.device("cuda", rank))).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    loss = lambda net, batch: net(batch).square().mean()
    try:
        with HybridTrainer(model, optimizer, loss_fn=loss, config=config) as trainer:
            trainer.step(batch, phase="full")
            held = [one for each in optimizer.state.values() for one in each.values()]
            print(sorted({one.device.type for one in held}))
    except ConfigError as error:
        print(error)
model = optimizer = trainer = None
torch.distributed.destroy_process_group()
group._end_threads()
"""
WIDTH, LAYERS = 200, 4
DEEP: dict[str, Any] = {
    "seed": 1,
    "model": {
        "name": "neaptide_toolkit.testing.kinds:deep",
        "options": {"layers": LAYERS, "width": WIDTH},
    },
    "data": {
        "name": "neaptide_toolkit.testing.kinds:sequences",
        "options": {"width": WIDTH, "length": 1},
    },
    "train": {"batch_size": 8},
}


def program(devices: int) -> dict[str, Any]:
    """Return how a run is started on a machine with so many GPUs."""
    return {"run": ("on_gpus.py", str(devices), "several.toml")}


def rows_in(offload: str, stage: str = "3") -> list[str]:
    pairs = ["--set=plugins.sharding.shard_size=2"] * (stage == "hybrid")
    own = [f"--set=plugins.sharding.stage={stage}", f"--set=plugins.sharding.offload={offload}"]
    return ["--set=plugins.ema.enabled=true", *own, *pairs]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the task, its configuration, and the programs."""
    made = tmp_path_factory.mktemp("offloaded")
    (made / "several_task.py").write_text(TASK, encoding="utf-8")
    config = CONFIG.replace('device = "cpu"', 'device = "auto"')
    (made / "several.toml").write_text(config, encoding="utf-8")
    (made / "on_gpus.py").write_text(PROGRAM, encoding="utf-8")
    (made / "measured.py").write_text(MEASURED, encoding="utf-8")
    (made / "before.py").write_text(BEFORE, encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def one(folder: Path) -> Path:
    """Return the run of one process."""
    return trained(folder, 1, "one", "--set=plugins.ema.enabled=true", **program(1))


@pytest.mark.parametrize(
    ("offload", "stage", "size"),
    [
        ("pinned", "3", 2),
        pytest.param("cpu", "3", 2, marks=pytest.mark.slow),
        pytest.param("pinned", "2", 2, marks=pytest.mark.slow),
        pytest.param("pinned", "hybrid", 4, marks=pytest.mark.slow),
    ],
)
def test_rows_in_ram_train_as_one_process(
    folder: Path, one: Path, offload: str, stage: str, size: int
) -> None:
    found = trained(folder, size, f"{offload}-{stage}", *rows_in(offload, stage), **program(size))
    assert {"warmup", "full", "predict", "correct"} == {phase for phase, _ in rows(found)}
    require_close(one, found)


@pytest.mark.slow
def test_what_is_saved_goes_on_to_the_bit_and_in_one_process(folder: Path, one: Path) -> None:
    options = rows_in("pinned")
    first = trained(folder, 2, "saved", *options, **program(2))
    options += ["--resume=auto"]
    again = trained(folder, 2, stopped_at_16(first, "resumed"), *options, **program(2))
    assert rows(first) == rows(again)
    assert digest(first) == digest(again)
    require_close(one, trained(folder, 1, stopped_at_16(first, "alone"), *options, **program(1)))


def measured(folder: Path, offload: str, **more: Any) -> list[Any]:
    """Return what two processes measured; the losses and the least of each peak."""
    plugins = {"sharding": {"stage": 3, "offload": offload, "check_weights": False, **more}}
    (folder / "mine.json").write_text(json.dumps({**DEEP, "plugins": plugins}))
    done = run_together(2, ["measured.py", "mine.json"], cwd=folder)
    assert [0, 0] == [each.returncode for each in done], done[0].stderr
    found = [json.loads(each.stdout) for each in done]
    assert [[], []] == [races for *_, races in found]
    assert found[0][0] == found[1][0]
    return found[0]


def test_the_gpu_holds_what_is_estimated_and_planned(folder: Path) -> None:
    (losses, before, _, _), (same, after, held, _) = (
        measured(folder, offload) for offload in ("none", "pinned")
    )
    assert losses == pytest.approx(same, rel=1e-6)
    whole = 4 * LAYERS * (2 * WIDTH + 2 * WIDTH * 4 * WIDTH + 5 * WIDTH)
    for moment, parts in (("forward", 3), ("backward", 3), ("update", 4)):
        # Weights and two of state, and in an update gradients: the half of each of two processes.
        assert before[moment] - after[moment] >= 0.9 * parts * whole / 2
        assert held["device"][moment] == pytest.approx(after[moment], rel=0.07, abs=1 << 16)
    plugins = {"sharding": {"stage": 3, "offload": "pinned", "check_weights": False}}
    config = configured({**DEEP, "plugins": plugins}, ())[0]
    rates = [profiles.load("h100").rates]
    log = dry_run(config, rates, "cuda", processes=Processes(count=2)).allocations
    peaks = {tier: log.peaks(tier) for tier in ("device", "host")}
    for moment, nbytes in after.items():
        there = peaks["device"][f"full {moment}"].bytes
        assert there == pytest.approx(nbytes, rel=0.07, abs=1 << 16)
    host = held["host"]["update"]
    assert host == pytest.approx(peaks["host"]["full update"].bytes, rel=0.02)
    assert host > 1.1 * 4 * whole / 2  # pinned memory is rounded up


@pytest.mark.parametrize("offload", ["none", "pinned"])
def test_with_weights_cast_the_gpu_holds_what_is_estimated_and_planned(
    folder: Path, offload: str
) -> None:
    cast = {"param_dtype": "bfloat16"}
    losses, peaks, held, _ = measured(folder, offload, **cast)
    wide, *_ = measured(folder, offload)
    assert losses == pytest.approx(wide, rel=0.02)
    assert losses != wide
    sharding = {"stage": 3, "offload": offload, "check_weights": False, **cast}
    config = configured({**DEEP, "plugins": {"sharding": sharding}}, ())[0]
    rates = [profiles.load("h100").rates]
    log = dry_run(config, rates, "cuda", processes=Processes(count=2)).allocations
    planned = log.peaks("device")
    for moment, nbytes in peaks.items():
        there = planned[f"full {moment}"].bytes
        assert held["device"][moment] == pytest.approx(nbytes, rel=0.07, abs=1 << 16)
        assert there == pytest.approx(nbytes, rel=0.07, abs=1 << 16)


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_the_page_says_how_each_plugin_trains(name: str, tmp_path: Path) -> None:
    told = table()[name][-1]
    if told == "not tried":
        pytest.skip("it takes too long on the simulated GPU")
    (found,) = compared(name, tmp_path, (IN_RAM,))
    if "refused" in told or "refused" in found:
        assert told == found
    else:
        assert float(found) <= max(EXACT, 10 * float(told))


def test_state_that_was_there_before_moves_to_ram_and_what_cannot_is_refused(folder: Path) -> None:
    done = run_together(2, ["before.py"], cwd=folder)
    assert [0, 0] == [each.returncode for each in done], done[0].stderr
    for each in done:
        state, refused = each.stdout.splitlines()
        assert "['cpu']" == state
        assert (
            "AdamW has capturable = true, which steps on a device only; remove it from its "
            'options @ plugins.sharding.offload = "cpu"'
        ) == refused
