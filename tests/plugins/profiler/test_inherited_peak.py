"""A peak of host memory is the program's own, not that of the process that started it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

OWN = """
import resource, torch
from neaptide_plugins.profiler.probes import Probe
from neaptide_toolkit.machine.meter import high_water

probe = Probe(torch.device("cpu"))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)
print(probe.sample().rss_peak_bytes)
held = b"x" * (64 << 20)
assert probe.sample().rss_bytes > 64 << 20
print(high_water())
"""
MARK = """
from pathlib import Path
from neaptide_plugins.profiler.probes import ResidentSet

resident = ResidentSet()
held = b"x" * (128 << 20)
del held
mark = next(line for line in Path("/proc/self/status").open() if "VmHWM" in line)
print(resident.read()[1], int(mark.split()[1]) << 10)
"""
LARGE = f"""
import subprocess, sys

held = b"x" * (1 << 30)
sys.exit(subprocess.run([sys.executable, "-c", {OWN!r}], check=False).returncode)
"""


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell it")


def test_a_run_that_a_large_process_starts_has_a_peak_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True)
    inherited, *own = map(int, done.stdout.split())
    assert inherited >= 1 << 30
    assert 2 == len(own)
    for peak in own:
        assert 1 << 20 < peak < 1 << 30


def test_the_mark_is_the_kernels_own(tmp_path: Path) -> None:
    script = tmp_path / "mark.py"
    script.write_text(MARK)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    told, status = map(int, done.stdout.split())
    assert status > 128 << 20
    assert abs(told - status) < 2 << 20
