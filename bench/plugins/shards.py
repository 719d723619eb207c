"""Measure the memory of a process with `sharding`, and the time that it adds to plain FSDP2.

    python bench/plugins/shards.py [--json PATH] [--only memory|time] [--processes N]
                                   [--layers N] [--width N] [--rounds N] [--steps N] [--rows N]

Memory: a byte-gpt trains with AdamW in one process, and in `--processes` for each stage. Before the
optimizer's step of the third update, each process counts the bytes of all its tensors: weights,
gradients and state. With `hybrid`, half of the processes divide a copy of the model. The table has
the largest process, beside the whole of one process, and the growth of its resident memory since it
had no model, without what the allocator keeps.

Time: two processes of one thread train the same model in stage 3, and by a loop of plain torch with
`fully_shard`, in turns within the same processes. A figure is the median, over the rounds, of the
ratio of the times, with quartiles. Both make the same computation: their losses are compared.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from neaptide import HybridTrainer, Loss
from neaptide_plugins.builtin_models.byte_gpt import build, loss
from neaptide_plugins.builtin_models.config import ByteGptOptions
from neaptide_toolkit.machine.facts import facts

STAGES = ("replicate", 1, 2, 3, "hybrid")
CONTEXT = 128


def model_of(given: argparse.Namespace) -> torch.nn.Module:
    """Return the model, the same in all processes."""
    torch.manual_seed(0)
    heads = max(1, given.width // 64)
    options = ByteGptOptions(layers=given.layers, width=given.width, heads=heads, context=CONTEXT)
    return build(options)


def batches(given: argparse.Namespace) -> list[dict[str, torch.Tensor]]:
    """Return a few batches, the same in all processes."""
    generator = torch.Generator().manual_seed(1)
    shape = given.rows, CONTEXT + 1
    return [{"tokens": torch.randint(256, shape, generator=generator)} for _ in range(8)]


def trainer_of(given: argparse.Namespace, stage: Any, **more: Any) -> HybridTrainer:
    """Return a trainer of the model, without a predictor; `more` are settings of `sharding`."""
    model = model_of(given)
    own: dict[str, Any] = {"stage": stage, "check_weights": False, **more}
    if stage == "hybrid":
        own["shard_size"] = given.processes // 2
    config = {"train": {"device": "cpu"}, "plugins": {"sharding": own}}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return HybridTrainer(
        model, optimizer, loss_fn=lambda net, batch: Loss(*loss(net, batch)), config=config
    )


def tensor_bytes() -> int:
    """Return the bytes of the storages of all tensors that Python has."""
    found = {}
    for each in gc.get_objects():
        if type(each) in (torch.Tensor, torch.nn.Parameter):
            storage = each.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def memory(given: argparse.Namespace) -> dict[str, int]:
    """Return the bytes of this process before the optimizer's third step."""
    process, data = psutil.Process(), batches(given)
    gc.collect()
    before = process.memory_info().rss, tensor_bytes()
    counted: list[tuple[int, int]] = []
    with trainer_of(given, given.stage) as trainer:

        def count(*_: Any) -> None:
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
            counted.append((process.memory_info().rss, tensor_bytes()))

        trainer.store.optimizer.register_step_pre_hook(count)
        for batch in data[:3]:
            trainer.step(batch)
        planned = trainer.estimate_memory("full").total(moment="update")
    resident, held = counted[-1]
    return {"tensors": held - before[1], "planned": planned, "resident": resident - before[0]}


def plain_loop(given: argparse.Namespace) -> Any:
    """Return a function that makes a step of plain torch with FSDP2, and returns the loss sum."""
    model = model_of(given)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:  # type: ignore[union-attr]  # a ModuleList
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    rank, size = dist.get_rank(), dist.get_world_size()

    def step(batch: dict[str, torch.Tensor]) -> float:
        tokens = batch["tokens"]
        total, _ = loss(model, {"tokens": tokens.chunk(size)[rank]})
        (total / (tokens.shape[0] * CONTEXT)).backward()
        optimizer.step()
        optimizer.zero_grad()
        found = total.detach().clone()
        dist.all_reduce(found)  # the loss of the batch, as a loop logs it
        return float(found) / (tokens.shape[0] * CONTEXT)

    return step


def speed(given: argparse.Namespace) -> dict[str, Any]:
    """Return the times of both ways, in turns."""
    data, plain = batches(given), plain_loop(given)
    ours, theirs, losses = [], [], [[], []]
    with trainer_of(given, given.stage) as trainer:
        for number in range(given.rounds + 1):  # the first warms up
            taken = {}
            for way in ("ours", "plain") if number % 2 else ("plain", "ours"):
                dist.barrier()
                began = time.perf_counter()
                for batch in (data[one % len(data)] for one in range(given.steps)):
                    if way == "plain":
                        losses[0].append(plain(batch))
                    else:
                        losses[1].append(trainer.step(batch).loss)
                dist.barrier()
                taken[way] = (time.perf_counter() - began) / given.steps
            ours.append(taken["ours"])
            theirs.append(taken["plain"])
    apart = max(abs(a - b) / a for a, b in zip(*losses, strict=True))
    assert apart < 1e-5, f"both make the same computation (got losses that differ by {apart})"  # noqa: PLR2004 - float32
    ratios = [a / b for a, b in zip(ours[1:], theirs[1:], strict=True)]
    return {
        "plain_ms": statistics.median(theirs[1:]) * 1e3,
        "ours_ms": statistics.median(ours[1:]) * 1e3,
        "ratio": statistics.median(ratios),
        "ratio_quartiles": statistics.quantiles(ratios, n=4)[::2],
    }


def worker(given: argparse.Namespace) -> None:
    """Measure in this process; let the first print what all have found."""
    if given.processes > 1:
        dist.init_process_group("gloo")
    found = (memory if given.measure == "memory" else speed)(given)
    every: list[Any] = [found]
    if given.processes > 1:
        every = [None] * given.processes
        dist.all_gather_object(every, found)
        dist.barrier()
        dist.destroy_process_group()
    if int(os.environ.get("RANK", "0")) == 0:
        Path(given.json).write_text(json.dumps(every), encoding="utf-8")


def measured(
    given: argparse.Namespace, measure: str, processes: int, stage: Any
) -> list[dict[str, Any]]:
    """Measure in new processes; return what each found."""
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    part = Path(f"{given.json}.part")
    names = ("layers", "width", "rows", "rounds", "steps")
    own = [f"--{name}={getattr(given, name)}" for name in names]
    own += [f"--measure={measure}", f"--stage={json.dumps(stage)}", f"--processes={processes}"]
    command = [*(start if processes > 1 else []), __file__, f"--json={part}", *own]
    subprocess.run(  # noqa: S603 - this script
        [sys.executable, *command], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    found: list[dict[str, Any]] = json.loads(part.read_text(encoding="utf-8"))
    part.unlink()
    return found


def main() -> None:
    """Measure memory and time, print the rows, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", default="shards.json")
    for name, default in (("layers", 8), ("width", 512), ("rows", 8), ("rounds", 10), ("steps", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--only", choices=("memory", "time"))
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--stage", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        worker(given)
        return
    report: dict[str, Any] = {"facts": facts()}
    if given.only != "time":
        (report["alone"],) = measured(given, "memory", 1, "replicate")
        report["memory"] = []
        for stage in STAGES:
            every = measured(given, "memory", given.processes, stage)
            row: dict[str, Any] = {"stage": stage, "processes": given.processes}
            for kind, whole in report["alone"].items():
                row[kind] = max(each[kind] for each in every)
                row[f"{kind}_share"] = row[kind] / whole
            report["memory"].append(row)
            print(", ".join(f"{key} {value}" for key, value in row.items()))
    if given.only != "memory":
        report["time"] = measured(given, "time", 2, 3)[0]
        print(", ".join(f"{key} {value}" for key, value in report["time"].items()))
    Path(given.json).write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
