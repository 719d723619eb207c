"""Plans of models of which a part is on a drive, for docs/recipes.md.

python docs/disk_plans.py FILE    prints the plan of one file in examples/, as JSON
"""
# ruff: noqa: E501, INP001, T201 - a script beside the pages, not a package; lines of the page

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neaptide_toolkit.machine.wear import DAY, RATED

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
KNOWN = ROOT / "docs" / "benchmarks" / "recipes-disk.json"
FILES = {
    "llama-7b-32gb-ram-disk.toml": "7B, 32 GiB of RAM",
    "llama-50b-24gb-disk.toml": "50B, a card of 24 GiB, 128 GiB of RAM",
}
GIB = 2**30
HEAD = """\
With [`tier = "disk"`](beyond-ram.md), what does not fit in RAM is on a drive. Both are AdamW with float32 masters,
`update = "in_backward"` and `clip = "lagged"`, on a drive that reads and writes 7 GB a second. An update has
32,768 tokens: 16 windows of 2,048. **Computed by the plan, not measured.** *Busy* is the share of an update in
which the drive works.
"""


def command_of(name: str) -> list[str]:
    """Return the words that plan a file of examples/, from its first comment."""
    text = (ROOT / "examples" / name).read_text(encoding="utf-8")
    (line,) = re.findall(r"^# +neaptide (plan .*)$", text, re.MULTILINE)
    return shlex.split(line)


def planned(name: str) -> dict[str, Any]:
    """Return what the plan of a file says.

    Raises:
        SystemExit: it does not fit its machine.
    """
    words = [sys.executable, "-m", "neaptide", *command_of(name), "--json"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if done.returncode:
        msg = f"{name}: {done.stderr.strip() or done.stdout}"
        raise SystemExit(msg)
    made = json.loads(done.stdout)
    kept = ("peak_bytes", "seconds_per_step", "tokens_per_second", "bound_by", "busy")
    return {key: made[key] for key in (*kept, "disk_written")}


def plans(*, again: bool) -> dict[str, dict[str, Any]]:
    """Return all plans. Those that are missing are made, and kept."""
    known = {} if again or not KNOWN.exists() else json.loads(KNOWN.read_text("utf-8"))
    known = {name: known.get(name) or planned(name) for name in FILES}
    KNOWN.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return known


def section(known: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "## From a drive\n"
    yield HEAD
    yield "| what | card GiB | RAM GiB | drive GiB | s per update | tokens/s | bound by | busy |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, text in FILES.items():
        one = known[name]
        sizes = (f"{one['peak_bytes'][tier] / GIB:.1f}" for tier in ("device", "RAM", "disk"))
        seconds = one["seconds_per_step"]
        busy = one["busy"]["disk"] / seconds
        yield (
            f"| [{text}](../examples/{name}) | {' | '.join(sizes)} | {seconds:.1f} | "
            f"{one['tokens_per_second']:,.0f} | {one['bound_by']} | {busy:.2f} |"
        )
    yield "\nAn update writes the state of all parameters, so it wears the drive out:\n"
    yield "| what | GB per update | TB a day | days until 600 TB | updates until 600 TB |"
    yield "|---|---|---|---|---|"
    for name, text in FILES.items():
        written, seconds = known[name]["disk_written"], known[name]["seconds_per_step"]
        day = written / seconds * DAY
        yield (
            f"| {text} | {written / 1e9:.1f} | {day / 1e12:.0f} | {RATED / day:.1f} | "
            f"{RATED / written:,.0f} |"
        )
    yield ""


if __name__ == "__main__":
    print(json.dumps(planned(sys.argv[1]), indent=1))
