"""A peak of host memory is the program's own, not that of the process that started it."""

from __future__ import annotations

import subprocess
import sys

import pytest

OWN = """
import resource, torch
from neaptide_plugins.profiler.probes import Probe
from neaptide_toolkit.machine.meter import high_water

probe = Probe(torch.device("cpu"))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)
print(probe.sample().rss_peak_bytes)
print(high_water())
"""
LARGE = f"""
import subprocess, sys

held = b"x" * (1 << 30)
sys.exit(subprocess.run([sys.executable, "-c", {OWN!r}], check=False).returncode)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell the peak")
def test_a_run_that_a_large_process_starts_has_a_peak_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True)
    inherited, *own = map(int, done.stdout.split())
    assert inherited >= 1 << 30
    assert 2 == len(own)
    for peak in own:
        assert 1 << 20 < peak < 1 << 30
