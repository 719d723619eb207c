"""The kernels' benchmark on small samples: it times what agrees, and says why it does not time."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_small_samples_on_a_cpu(tmp_path: Path) -> None:
    target = tmp_path / "kernels.json"
    given = ("--quick", "--device", "cpu", "--op", "apply_delta", "--rounds", "3", "--no-compile")
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "kernels.py"), *given, "--json", str(target)],
        check=False,
        capture_output=True,
        text=True,
    )

    assert 0 == done.returncode, done.stderr[-2000:]
    rows = {row["by"]: row for row in json.loads(target.read_text())["rows"]}
    assert rows["neaptide: reference"]["seconds"] > 0
    assert rows["eager"]["seconds"] > 0
    assert rows["neaptide: triton"]["seconds"] is None
    assert "not on the CPU" in rows["neaptide: triton"]["not_measured"]
    assert "| apply_delta |" in done.stdout
