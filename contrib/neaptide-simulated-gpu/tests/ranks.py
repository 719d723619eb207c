"""What two processes with a device each do together: `python ranks.py SCENARIO STORE RANK`.

Prints what it found as JSON. `run` starts both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import simulated_gpu
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PEER, LATENCY = 1e9, 1e-5
BYTES = 4_000_000


def run(scenario: str, folder: Path) -> list[Any]:
    """Return what each of two processes found."""
    command = [sys.executable, __file__, scenario, str(folder / scenario)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with ThreadPoolExecutor(2) as pool:
        done = list(
            pool.map(
                lambda rank: subprocess.run(
                    [*command, str(rank)], check=False, env=environment, timeout=120, **pipes
                ),
                range(2),
            )
        )
    for each in done:
        assert each.returncode == 0, "\n".join(one.stderr[-3000:] for one in done)
    return [json.loads(each.stdout.splitlines()[-1]) for each in done]


def collectives(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def note(name: str, tensor: torch.Tensor) -> None:
        found[name] = tensor.tolist()

    x = torch.arange(4.0, device="cuda") + 10 * rank
    for name in ("sum", "max", "avg"):
        y = x.clone()
        dist.all_reduce(y, getattr(dist.ReduceOp, name.upper()))
        note(f"all_reduce {name}", y)
    half = x.bfloat16()
    dist.all_reduce(half)
    note("all_reduce bfloat16", half)
    y = x.clone()
    dist.reduce(y, 1)
    note("reduce", y)
    y = x.clone()
    dist.broadcast(y, 1)
    note("broadcast", y)
    y = torch.empty(2, 4, device="cuda")
    dist.all_gather_into_tensor(y, x)
    note("all_gather_into_tensor", y)
    parts = [torch.empty(4, device="cuda") for _ in range(2)]
    dist.all_gather(parts, x)
    note("all_gather", torch.cat(parts))
    y = torch.empty(2, device="cuda")
    dist.reduce_scatter_tensor(y, x)
    note("reduce_scatter_tensor", y)
    y = torch.empty(1 + 2 * rank, device="cuda")
    dist.reduce_scatter(y, list(x.split([1, 3])))
    note("reduce_scatter", y)
    y = torch.empty(4, device="cuda")
    dist.all_to_all_single(y, x)
    note("all_to_all_single", y)
    parts = [torch.empty(1 + 2 * rank, device="cuda") for _ in range(2)]
    dist.all_to_all(parts, list(x.split([1, 3])))
    note("all_to_all", torch.cat(parts))
    parts = [torch.empty(4, device="cuda") for _ in range(2)]
    dist.gather(x, parts if rank == 0 else None, 0)
    note("gather", torch.cat(parts) if rank == 0 else x)
    y = torch.empty(2, device="cuda")
    dist.scatter(y, list(x.split(2)) if rank == 1 else None, 1)
    note("scatter", y)
    y = x.clone()
    for work in (dist.isend(x, 1 - rank), dist.irecv(y, 1 - rank)):
        work.wait()
    note("send and recv", y)
    every: list[Any] = [None, None]
    dist.all_gather_object(every, {"rank": rank})
    found["objects"] = every
    work = dist.all_reduce(y := x.clone(), async_op=True)
    note("future", work.get_future().wait()[0])
    dist.barrier()
    found["races"] = simulated_gpu.races()
    return found


def order(rank: int) -> dict[str, Any]:
    """Use tensors before and after the wait for a collective."""
    found = {}

    def raced(name: str, act: Callable[[torch.Tensor], object]) -> None:
        simulated_gpu.reset()
        x = torch.ones(1024, device="cuda")
        act(x)
        torch.cuda.synchronize()
        del x
        found[name] = simulated_gpu.races()

    def waited(x: torch.Tensor) -> None:
        dist.all_reduce(x, async_op=True).wait()
        x.sum()

    def read_early(x: torch.Tensor) -> None:
        work = dist.all_reduce(x, async_op=True)
        x.sum()
        work.wait()

    def written_early(x: torch.Tensor) -> None:
        out = torch.empty(2048, device="cuda")
        work = dist.all_gather_into_tensor(out, x, async_op=True)
        x.zero_()
        work.wait()

    def freed_early(_: torch.Tensor) -> None:
        out = torch.empty(2048, device="cuda")
        work = dist.all_gather_into_tensor(out, torch.ones(1024, device="cuda"), async_op=True)
        torch.zeros(1024, device="cuda")
        work.wait()
        torch.zeros(1024, device="cuda")

    def at_once(x: torch.Tensor) -> None:
        dist.all_reduce(x)
        x.sum()

    def other_stream(x: torch.Tensor) -> None:
        work = dist.all_reduce(x, async_op=True)
        with torch.cuda.stream(torch.cuda.Stream()):
            work.wait()
        x.sum()

    for act in (waited, read_early, written_early, freed_early, at_once, other_stream):
        raced(act.__name__, act)
    return found


def clock(rank: int) -> dict[str, Any]:
    """Measure collectives of fake data, some with the second process a second late."""
    rates = {"peer": PEER, "copy_latency": LATENCY, "launch_host": 0, "launch_device": 0}
    simulated_gpu.configure(bandwidth=1e9, **rates)
    with simulated_gpu.fake_data():
        return {**durations(), **late(rank)}


def durations() -> dict[str, Any]:
    found = {}
    whole = torch.empty(BYTES // 4, device="cuda")
    part = torch.empty(BYTES // 8, device="cuda")
    for name, act in {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
    }.items():
        torch.cuda.synchronize()
        simulated_gpu.reset()
        act()
        found[name] = simulated_gpu.statistics()["operations"][name][1]
    return found


def late(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    x = torch.empty(BYTES // 4, device="cuda")
    second, moment = (torch.empty(n, dtype=torch.uint8, device="cuda") for n in (10**9, 2 * 10**6))
    torch.cuda.synchronize()
    simulated_gpu.reset()
    if rank == 1:
        second.fill_(0)
    with simulated_gpu.timeline() as seen:
        work = dist.all_reduce(x, async_op=True)
        moment.fill_(0)
        work.wait()
    found["late"] = next(one[3:5] for one in seen if one[0] == "all_reduce")
    torch.cuda.synchronize()
    found["seconds"] = simulated_gpu.statistics()["seconds"]
    simulated_gpu.reset()
    if rank == 1:
        second.fill_(0)
    dist.barrier()
    found["barrier"] = simulated_gpu.statistics()["seconds"]
    return found


def trained(wrap: Callable[[nn.Module, str], nn.Module], device: str, rank: int) -> Any:
    torch.manual_seed(0)
    layers = nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Linear(32, 4)
    net = wrap(nn.Sequential(*layers).to(device), device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(4):
        loss = net(torch.randn(8, 16, generator=generator).to(device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss).hex())
    weights = [
        value.to_local() if hasattr(value, "to_local") else value for value in net.parameters()
    ]
    return losses, [float(weight.detach().double().sum()).hex() for weight in weights]


def ddp(net: nn.Module, _: str) -> nn.Module:
    return nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.001)


def sharded(net: nn.Module, device: str) -> nn.Module:
    mesh = init_device_mesh(device, (2,))
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def training(rank: int) -> dict[str, Any]:
    """Train a small net by DDP and by FSDP2, on the device and on the CPU."""
    found: dict[str, Any] = {}
    for wrap in (ddp, sharded):
        for device in ("cpu", "cuda"):
            found[f"{wrap.__name__} {device}"] = trained(wrap, device, rank)
    found["races"] = simulated_gpu.races()
    found["operations"] = sorted(simulated_gpu.statistics()["operations"])
    return found


SCENARIOS = {each.__name__: each for each in (collectives, order, clock, training)}
BACKENDS = {"training": "cpu:gloo,cuda:nccl", "order": "simulated"}


def main(scenario: str, store: str, rank: int) -> None:
    """Run a scenario as one of the processes."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    simulated_gpu.configure(capacity=8 << 30)
    backend = BACKENDS.get(scenario, "nccl")
    dist.init_process_group(
        backend,
        init_method=f"file://{store}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    found = SCENARIOS[scenario](rank)
    found["backend"] = dist.get_backend()
    dist.destroy_process_group()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
