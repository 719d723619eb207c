"""Which tests here are collected: all on the simulated GPU, those that need no simulator on a GPU.

Without a device nothing is collected. Libraries of a GPU keep memory from their first products on;
it is there before the first test counts.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

_ONLY_SIMULATED = re.compile(
    r"^\s*(import|from) simulated_gpu\b|\"simulated_gpu\"|\bmonkeypatch\.delattr\(torch\.cuda",
    re.MULTILINE,
)
"""What a test file has that asks the simulator, or changes what it is like."""


def _ignored() -> list[str]:
    if "simulated_gpu" in sys.modules:
        return []
    if not torch.cuda.is_available():
        return ["test_*.py"]
    files = Path(__file__).parent.glob("test_*.py")
    return [file.name for file in files if _ONLY_SIMULATED.search(file.read_text("utf-8"))]


collect_ignore_glob = _ignored()


@pytest.fixture(autouse=True, scope="session")
def _workspaces() -> None:
    if "simulated_gpu" not in sys.modules:  # mutants import what they change
        from neaptide_toolkit.testing.memory_counts import keep_workspaces

        keep_workspaces(torch.device("cuda"))
