"""Runs a script of `bench/` and reads what it writes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def measured(script: str, folder: Path, *arguments: str) -> tuple[dict[str, Any], str, str]:
    """Return the JSON that `bench/SCRIPT` writes in `folder`, and its stdout and stderr."""
    path = folder / "measured.json"
    command = [sys.executable, "-W", "ignore", str(ROOT / "bench" / script)]
    done = subprocess.run(
        [*command, *arguments, "--json", str(path)], capture_output=True, text=True, check=False
    )
    assert 0 == done.returncode, done.stderr
    return json.loads(path.read_text(encoding="utf-8")), done.stdout, done.stderr
