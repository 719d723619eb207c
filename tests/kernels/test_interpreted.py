"""Triton kernels in the interpreter, a process for each op: numerics, over-reads, races."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import environment

from neaptide_kernels.catalogue import triton_providers

pytest.importorskip("triton", reason="Triton is installed on Linux and Windows only")

HERE = Path(__file__).parent
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Of each process: two workers of pytest have two cores."""
OPS = sorted({provider.op for provider in triton_providers()})


def interpreted(op: str, every: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(HERE / "interpreting.py"), op, str(every)],
        env=environment(HERE, TRITON_INTERPRET="1", **ONE_THREAD),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("op", OPS)
def test_kernels_agree_in_the_interpreter(op: str) -> None:
    """Some samples: the interpreter is slow."""
    check(interpreted(op, 3))


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
def test_kernels_agree_in_the_interpreter_on_every_sample(op: str) -> None:
    check(interpreted(op, 1))


def check(done: subprocess.CompletedProcess[str]) -> None:
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert (0, []) == (done.returncode, lines[:-1]), done.stderr[-2000:]
    assert lines[-1]["tried"] > 0
