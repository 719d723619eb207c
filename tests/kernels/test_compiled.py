"""Every shipped launch compiled for sm_89 and sm_90: no spills, within the committed budgets."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is installed on Linux and Windows only")


def compiled(target: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(Path(__file__).with_name("compiling.py")), "--targets", str(target)],
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_launches_stay_within_their_budgets() -> None:
    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(compiled, (89, 90)):
            lines = [json.loads(line) for line in done.stdout.splitlines()]
            assert [] == [line for line in lines if line["problems"]]
            assert (0, True) == (done.returncode, bool(lines)), done.stderr[-2000:]
