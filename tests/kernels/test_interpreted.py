"""Triton kernels in the interpreter, a process for each op: numerics, over-reads, races."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from neaptide_kernels.catalogue import triton_providers

pytest.importorskip("triton", reason="Triton is installed on Linux and Windows only")

HERE = Path(__file__).parent


@pytest.mark.parametrize("op", sorted({provider.op for provider in triton_providers()}))
def test_kernels_agree_in_the_interpreter(op: str) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "interpreting.py"), op],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(HERE)},
        capture_output=True,
        text=True,
        check=False,
    )

    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert (0, []) == (done.returncode, lines[:-1]), done.stderr[-2000:]
    assert lines[-1]["tried"] > 0
