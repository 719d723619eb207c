"""Every shipped launch compiled for a GPU that is not there: no spills, within its budgets."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is installed on Linux and Windows only")


@pytest.mark.parametrize("target", [pytest.param(89, marks=pytest.mark.slow), 90])
def test_launches_stay_within_their_budgets(target: int) -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("compiling.py")), "--targets", str(target)],
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [] == [line for line in lines if line["problems"]]
    assert (0, True) == (done.returncode, bool(lines)), done.stderr[-2000:]
