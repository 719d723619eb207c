"""Measure a step on idle and on busy cores, with OpenMP's threads spinning and sleeping.

    python bench/runs/wait_policy.py [--rounds N] [--seconds S]

`neaptide run` sets OMP_WAIT_POLICY=PASSIVE. Each figure is the median over the rounds, with the
quartiles, of the time of a step of a small MLP. OpenMP reads the policy when torch is imported, so
each measurement has its own process. In each round both policies run one after the other. On busy
cores, as many other processes as cores compute without end.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

STEPS = """
import sys, time, torch
from torch import nn
seconds = float(sys.argv[1])
blocks = [nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(6)]
model, x = nn.Sequential(*blocks), torch.randn(128, 256)
optimizer = torch.optim.AdamW(model.parameters())
def step():
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
step()
started, steps = time.perf_counter(), 0
while time.perf_counter() - started < seconds:
    step()
    steps += 1
print(1e3 * (time.perf_counter() - started) / steps)
"""


def spin() -> None:
    """Keep a core busy."""
    while True:
        pass


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep cores busy in the context."""
    spinning = [multiprocessing.Process(target=spin, daemon=True) for _ in range(processes)]
    for process in spinning:
        process.start()
    try:
        yield
    finally:
        for process in spinning:
            process.kill()


def step_ms(policy: str | None, seconds: float) -> float:
    """Return the milliseconds of a step with a wait policy; None is OpenMP's default."""
    unset = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS"}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    if policy is not None:
        environment["OMP_WAIT_POLICY"] = policy
    command = [sys.executable, "-c", STEPS, str(seconds)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)  # noqa: S603 - our own script
    return float(done.stdout)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    print("| other processes | policy | ms a step, median (quartiles) |\n|---|---|---|")
    for others in (0, cores):
        times: dict[str | None, list[float]] = {None: [], "PASSIVE": []}
        with busy(others):
            for _ in range(given.rounds):
                for policy, found in times.items():
                    found.append(step_ms(policy, given.seconds))
        for policy, found in times.items():
            low, middle, high = statistics.quantiles(found, n=4)
            name = "default (spin)" if policy is None else "PASSIVE (sleep)"
            print(f"| {others} | {name} | {middle:.2f} ({low:.2f} to {high:.2f}) |")


if __name__ == "__main__":
    main()
