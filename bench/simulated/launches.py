"""Count what streaming adds to a block: launches on the simulated GPU, and Python's time.

    python bench/simulated/launches.py --json docs/benchmarks/launches.json

Launches: a small decoder trains on the simulated GPU in four ways. Those of a step are counted at
two depths; the difference is a block's. `by hand` recomputes each block, and makes a step of AdamW
for all parameters at once. `streamed` has `update = "in_backward"`, inputs in RAM and, with
`split`, float32 masters; with `kernels` also the plugin `triton-kernels`. Launches do not depend
on the machine.

Time: the same ways on the CPU, without the simulator, with tensors so small that Python takes the
time. The process's own clock; the ways alternate. `Beyond by hand` is the median of the differences
in each round, with quartiles.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if "--count" in sys.argv:
    import simulated_gpu
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from scaling.decoder import Decoder, Shape, batch_of, loss_fn
from scaling.subjects import wrap

from neaptide import HybridTrainer

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPE = Shape(4, 64, 2, 128, 256)
WAYS: dict[str, dict[str, Any] | None] = {
    "by hand": None,
    "streamed": {},
    "streamed, split": {"master": "split"},
    "streamed, split, kernels": {"master": "split"},
}
DEPTHS = (4, 8)
WARM, STEPS = 5, 41
"""Steps until every block has learnt its order; 5, 6 and 7 check nothing."""
DEEP = 64


def trained(way: str, blocks: int, device: torch.device) -> Callable[[int], None]:
    """Return a function that makes steps."""
    settings, shape = WAYS[way], replace(SHAPE, blocks=blocks)
    dtype = torch.bfloat16
    batch = batch_of(shape, 2, 16, device, 0)
    if settings is None:
        model = Decoder(shape, dtype, device)
        wrap(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)

        def by_hand(count: int) -> None:
            for _ in range(count):
                loss_fn(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()

        return by_hand
    model = Decoder(shape, dtype, "cpu")
    streaming = {"update": "in_backward", "optimizer_on": "device", "inputs": "host", "resident": 0}
    plugins: dict[str, Any] = {"layer-streaming": streaming | settings}
    if "kernels" in way:
        plugins["triton-kernels"] = {}
    # By itself torch takes a tensor at a time on a CPU, unlike by hand above. Masters have their
    # own step.
    foreach = True if device.type == "cpu" and not settings else None
    trainer = HybridTrainer(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=foreach),
        loss_fn=loss_fn,
        config={
            "run": {"progress": "quiet"},
            "phases": {"warmup": {"steps": 0}},
            "train": {"device": device.type, "check_finite": False},
            "plugins": plugins,
        },
    )

    def streamed(count: int) -> None:
        for _ in range(count):
            trainer.step(batch)

    return streamed


def counted() -> dict[str, dict[str, float]]:
    """Return the launches of a step of each way: of a block, and of the rest."""
    device, found = torch.device("cuda", 0), {}
    for way in WAYS:
        launches = []
        for blocks in DEPTHS:
            step = trained(way, blocks, device)
            step(WARM - 1)
            before = simulated_gpu.statistics()["launches"]
            step(1)
            launches.append(simulated_gpu.statistics()["launches"] - before)
        block = (launches[1] - launches[0]) / (DEPTHS[1] - DEPTHS[0])
        found[way] = {"block": block, "rest": launches[0] - block * DEPTHS[0]}
    return found


def timed() -> dict[str, list[float]]:
    """Return the seconds of steps of each way on the CPU."""
    torch.set_num_threads(1)
    ways = [way for way in WAYS if "kernels" not in way]
    steps = {way: trained(way, DEEP, torch.device("cpu")) for way in ways}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for step in steps.values():
        step(WARM)
    for _ in range(STEPS):
        for way, step in steps.items():
            start = time.process_time()
            step(1)
            seconds[way].append(time.process_time() - start)
    return seconds


def main() -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--count", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.count:
        print(json.dumps(counted()))
        return 0
    command = [sys.executable, "-W", "ignore", __file__, "--count"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - this script
    if done.returncode:
        raise SystemExit(done.stderr)
    launches, seconds = json.loads(done.stdout.splitlines()[-1]), timed()
    base = launches["by hand"]
    print("| way | launches a block | beyond by hand | of the rest of a step |\n|---|---|---|---|")
    for way, row in launches.items():
        more = row["block"] - base["block"]
        print(f"| {way} | {row['block']:.0f} | {more:.0f} | {row['rest']:.0f} |")
    print("\n| way | ms a step of 64 blocks | us a block beyond by hand |\n|---|---|---|")
    for way, each in seconds.items():
        pairs = zip(each, seconds["by hand"], strict=True)
        low, middle, high = statistics.quantiles((a - b) / DEEP * 1e6 for a, b in pairs)
        step = statistics.median(each) * 1e3
        print(f"| {way} | {step:.1f} | {middle:.0f} ({low:.0f} to {high:.0f}) |")
    if given.json:
        given.json.write_text(
            json.dumps({"launches": launches, "seconds": seconds}, indent=1) + "\n", "utf-8"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
