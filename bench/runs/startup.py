"""Seconds from the command line to the end of one update: `neaptide run`, and a bare script.

    python bench/runs/startup.py [--rounds N] [--json PATH]

The script imports torch, builds a transformer as large as `builtin:byte-gpt`, reads the standard
library's sources, makes one fused update of AdamW, and saves weights and optimizer. `neaptide run`
does it with its configuration, events, guard and checkpoint. Each round runs both, in an order that
changes. Times are of the clock, and of the processor (user and system). The last table says which
imports of the run the script does not make, by package, in milliseconds of `-X importtime`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from neaptide_toolkit.machine.facts import facts

BARE = """
import os, sys, sysconfig
from pathlib import Path
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(256, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, 0.0, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(128, 256)
    def forward(self, tokens):
        return self.head(self.layers(self.embedding(tokens)))

torch.manual_seed(0)
files = []
for folder, folders, names in os.walk(sysconfig.get_paths()["stdlib"]):
    folders[:] = set(folders) - {"__pycache__", "idle_test", "site-packages", "test", "tests"}
    files += [Path(folder, name) for name in names if name.endswith(".py")]
read = bytearray(b"".join(map(Path.read_bytes, sorted(files))))
text = torch.frombuffer(read, dtype=torch.uint8).long()
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
starts = torch.randint(len(text) - 129, (16,)).tolist()
batch = torch.stack([text[start:start + 129] for start in starts])
logits = model(batch[:, :-1])
loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
loss.backward()
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
optimizer.step()
print(loss.item())
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, sys.argv[1])
"""
RUN = """
[model]
name = "builtin:byte-gpt"
[data]
name = "builtin:python-stdlib"
[train]
steps = 1
device = "cpu"
[eval]
every = 0
batches = 1
"""
WAYS = "script", "run"
_IMPORT = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)")
_SHOWN = 12


def command(way: str, folder: Path, *options: str) -> list[str]:
    """Return the command of a way, which writes into an empty folder."""
    python = [sys.executable, *options]
    if way == "script":
        return [*python, "-c", BARE, str(folder / "saved.pt")]
    config = folder / "run.toml"
    config.write_text(RUN, encoding="utf-8")
    where = f"run.dir={json.dumps(str(folder / 'run'))}"
    return [*python, "-m", "neaptide", "run", str(config), "--set", where]


def timed(way: str) -> dict[str, float]:
    """Return the seconds of a process."""
    with tempfile.TemporaryDirectory() as folder:
        words = command(way, Path(folder))
        before, began = os.times(), time.perf_counter()
        subprocess.run(words, check=True, capture_output=True)  # noqa: S603 - ours
        wall, after = time.perf_counter() - began, os.times()
    used = after.children_user - before.children_user
    used += after.children_system - before.children_system
    return {"wall": wall, "cpu": used}


def imports(way: str) -> dict[str, int]:
    """Return the microseconds of each module that a way imports."""
    with tempfile.TemporaryDirectory() as folder:
        words = command(way, Path(folder), "-X", "importtime")
        done = subprocess.run(words, check=True, capture_output=True, text=True)  # noqa: S603 - ours
    return {name: int(took) for took, name in _IMPORT.findall(done.stderr)}


def more_imports() -> dict[str, float]:
    """Return milliseconds by package of what only the run imports, the longest first."""
    known, found = imports("script"), Counter[str]()
    for name, took in imports("run").items():
        if name not in known:
            found[name.partition(".")[0]] += took
    return {name: took / 1000 for name, took in found.most_common(_SHOWN)}


def main() -> None:
    """Measure, print tables, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    shuffle = random.Random(0)  # noqa: S311 - random order, no secret
    found: list[dict[str, dict[str, float]]] = []
    for _ in range(given.rounds + 1):
        order = [*WAYS]
        shuffle.shuffle(order)
        found.append({way: timed(way) for way in order})
    del found[0]  # files come into the page cache
    rows = {
        kind: {
            **{way: [each[way][kind] for each in found] for way in WAYS},
            "run - script": [each["run"][kind] - each["script"][kind] for each in found],
        }
        for kind in ("wall", "cpu")
    }
    print("| seconds | script | run | run - script |\n|---|---|---|---|")
    for kind, row in rows.items():
        cells = [
            f"{statistics.median(one):.2f} ({min(one):.2f} to {max(one):.2f})"
            for one in row.values()
        ]
        print(f"| {kind} | {' | '.join(cells)} |")
    packages = more_imports()
    print("\n| imported by the run alone | ms |\n|---|---|")
    for name, took in packages.items():
        print(f"| {name} | {took:.0f} |")
    if given.json:
        report: dict[str, Any] = {"machine": facts(), "seconds": rows, "imports_ms": packages}
        given.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
