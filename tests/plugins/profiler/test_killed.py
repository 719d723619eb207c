"""A run killed between two writes of memory.csv, and resumed."""

from __future__ import annotations

import csv
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from support import HELPERS

if TYPE_CHECKING:
    from pathlib import Path

RUN = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from support import CYCLE, plugin_with, stranger, tiny_trainer
from neaptide import hookimpl

def after_step(self, step):
    if step == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

deadly = stranger(plugin_with(after_step=hookimpl(after_step)), "deadly")
config = {
    "run": {"dir": sys.argv[2], "checkpoint_every": 4},
    "train": {"steps": 14},
    "plugins": {"profiler": {"trace": [2, 12]}},
}
trainer, batches = tiny_trainer(config, [deadly])
with trainer:
    trainer.fit(batches[:4], resume="auto")
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no kill that cannot be caught")
def test_no_row_is_missing_or_there_twice(tmp_path: Path) -> None:
    for dies_at, code in ((6, -signal.SIGKILL), (11, -signal.SIGKILL), (0, 0)):
        command = [sys.executable, "-c", RUN, str(HELPERS), str(tmp_path), str(dies_at)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert code == done.returncode, done.stderr
    with (tmp_path / "plugins" / "profiler" / "memory.csv").open(encoding="utf-8") as file:
        rows = [(int(row["step"]), row["moment"]) for row in csv.DictReader(file)]
    moments = ("forward", "backward", "step")
    assert [(step, moment) for step in range(1, 15) for moment in moments] == rows
    traces = (tmp_path / "plugins" / "profiler").glob("trace-*")
    assert ["trace-00000009-00000012.json"] == [path.name for path in traces]
