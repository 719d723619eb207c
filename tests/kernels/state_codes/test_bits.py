"""In the interpreter, whose roots and quotients are exact, kernels give the reference's bits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is installed on Linux and Windows only")


def test_steps_by_triton_leave_the_bits_of_the_reference() -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("interpreted_steps.py"))],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert 0 == done.returncode, done.stderr[-2000:]
    assert [
        f"{op} torch.{dtype} same bits"
        for op in ("adam8bit_step", "lion8bit_step")
        for dtype in ("float32", "bfloat16")
    ] == done.stdout.splitlines()
