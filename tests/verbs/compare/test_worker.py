"""A worker does not outlive whom it works for."""

from __future__ import annotations

import subprocess
import sys

WORKER = """
import os, time
from neaptide_verbs.compare.worker import stop_when_orphaned

stop_when_orphaned(os.getppid(), look=0.01)
print("watching", flush=True)
time.sleep(600)
"""
PARENT = """
import os, subprocess, sys

worker = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
worker.stdout.readline()
os.kill(os.getpid(), 9)
"""


def test_a_worker_whose_parent_was_killed_ends() -> None:
    # The worker inherits stderr: its end is reached when the last process that holds it is gone.
    done = subprocess.run(
        [sys.executable, "-c", PARENT, WORKER], check=False, stderr=subprocess.PIPE, timeout=120
    )
    assert -9 == done.returncode
