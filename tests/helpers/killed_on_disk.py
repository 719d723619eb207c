"""Forks runs of `neaptide` whose state is on a disk, and kills them.

    killed_on_disk.py FOLDER DISK

The first run, below DISK, is made before the first fork, because it imports everything. Each line
on stdin is `[arguments, seconds]`, JSON. The process runs in FOLDER, and is killed after
`seconds` unless they are null. The answer is its exit status, -9 where it was killed, and how many
seconds it took.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from neaptide.cli import main

if TYPE_CHECKING:
    from collections.abc import Sequence

TASK = """
import torch
from torch import nn
from torch.nn.functional import mse_loss


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.drop, self.norm = nn.Linear(256, 256), nn.Dropout(0.2), nn.LayerNorm(256)

    def forward(self, x):
        return x + self.norm(self.drop(self.layer(x))).tanh()


def model():
    module = nn.Sequential(*[Block() for _ in range(6)], nn.Linear(256, 1))
    return module, lambda model, batch: mse_loss(model(batch), batch.sum(1, keepdim=True))


def data():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(16, 256, generator=generator) for _ in range(10)]
"""
CONFIG = """
[model]
name = "task_on_disk:model"
[data]
name = "task_on_disk:data"
[train]
steps = 24
device = "cpu"
[run]
checkpoint_every = 3
[plugins.layer-streaming]
update = "in_backward"
inputs = "host"
tier = "disk"
ram_gib = 0.0
"""


def child(arguments: Sequence[str]) -> int:
    """Run `neaptide`, with what it prints in a file."""
    output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    return main(list(arguments))


def answered(arguments: Sequence[str], seconds: float | None) -> tuple[int, float]:
    """Return the exit status of a run, and the seconds that it took."""
    start = time.monotonic()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = child(arguments)
        finally:
            os._exit(status)
    while (found := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if seconds is not None and time.monotonic() - start >= seconds:
            os.kill(pid, signal.SIGKILL)
            found = os.waitpid(pid, 0)
            break
        time.sleep(0.001)
    return os.waitstatus_to_exitcode(found[1]), time.monotonic() - start


def serve(folder: Path, disk: str) -> None:
    """Answer each line."""
    torch.set_num_threads(1)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    (folder / "task_on_disk.py").write_text(TASK, encoding="utf-8")
    (folder / "on_disk.toml").write_text(CONFIG, encoding="utf-8")
    where = f"plugins.layer-streaming.path={disk}"
    with redirect_stdout(sys.stderr):
        main(["run", "on_disk.toml", "--set", where, "--set", "run.dir=first"])
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answered(*json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2])
