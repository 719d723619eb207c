"""The heap keeps room of temporary tensors, unless large ones are given back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

GROWN = """
import torch
from neaptide_toolkit.machine.heap import give_back_large, keep_large

def data():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmData:"))

def steps():
    for _ in range(40):
        large = torch.empty(8 << 20, dtype=torch.uint8)
        stays.extend(torch.empty(64 << 10, dtype=torch.uint8) for _ in range(2))
        del large

stays = []
torch.empty(16 << 20, dtype=torch.uint8)  # from now on glibc takes 8 MiB from the heap
before = data()
{mode}
steps()
print(data() - before)
"""


def grown(mode: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", GROWN.format(mode=mode)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_what_stays_does_not_keep_the_room_of_what_is_freed() -> None:
    kept, one = 5, 8  # MiB that stay, and of one temporary tensor
    assert grown("give_back_large()") <= 2 * kept + one
