"""Runs one step in a process of its own, under a time limit, and says what came of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .steps import Step

ROOT = Path(__file__).resolve().parents[2]
REPORT_LINES, LAST_LINES = 400, 12
GRACE = 20.0
"""Seconds of a step's limit that pytest leaves for its own end."""
DEVICE_GIB = "4"
NO_TESTS = 5
"""pytest's status if no test is left to run."""


@dataclass(frozen=True)
class Done:
    """How a process ended; `status` is None if it was stopped."""

    status: int | None
    seconds: float
    out: str
    err: str


def run(command: Sequence[str], limit: float, environment: dict[str, str]) -> Done:
    """Run a command in the repository's root. After `limit` seconds, end it and what it started."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.monotonic()
        process = subprocess.Popen(  # noqa: S603 - a program of this repository
            command, stdout=out, stderr=err, cwd=ROOT, env=environment, start_new_session=True
        )
        try:
            status: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return Done(status, round(time.monotonic() - start, 1), *texts)


def environment(site: Path) -> dict[str, str]:
    """Return the environment of all steps: this tree is imported, installed or not.

    Plugins are found by an installed distribution. Without one, `site` gets what stands for it.
    """
    folders = [ROOT / name for name in ("core", "plugins", "kernels")]
    try:
        metadata.distribution("neaptide")
    except metadata.PackageNotFoundError:
        folders.append(distribution(site))
    paths = [*map(str, folders), os.environ.get("PYTHONPATH")]
    # cuBLAS is bitwise reproducible on several streams only with a workspace of fixed size.
    return {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def distribution(site: Path) -> Path:
    """Write the entry points of pyproject.toml as an installer does; return the folder."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = site / "neaptide-0.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    head = f"Metadata-Version: 2.1\nName: neaptide\nVersion: {project['version']}\n"
    (folder / "METADATA").write_text(head, encoding="utf-8")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return site


def command_of(
    step: Step, part: Path, limit: float, *, simulated: bool, workers: int = 1
) -> list[str]:
    """Return the command of a step; it writes its result to `part`."""
    on_device = ["-m", "simulated_gpu", "--capacity", DEVICE_GIB] if simulated else []
    given = list(step.tiny if simulated else step.real)
    if step.tests:
        plugin = ["-p", "first_minutes.outcomes", "--outcomes", str(part)]
        plugin += ["--seconds", str(max(1.0, limit - GRACE)), "-W", "default", "-q"]
        if workers > 1 and find_spec("xdist"):
            plugin += ["-n", str(workers), "--dist", "worksteal"]
        given += [*plugin, "-p", "no:cacheprovider", "-p", "no:randomly"]
    else:
        given += ["--json", str(part)]
    return [sys.executable, *on_device, *given]


def workers_of(device: dict[str, Any]) -> int:
    """Return the number of processes for tests: each takes a core, and GPU memory and RAM."""
    memory = min(device["memory_bytes"], device["ram_bytes"])
    return max(1, min(device["cores"], memory // (int(DEVICE_GIB) << 30)))


def entry(
    step: Step,
    parts: Path,
    limit: float,
    given: dict[str, str],
    *,
    simulated: bool,
    workers: int = 1,
) -> dict[str, Any]:
    """Run the step, tests in `workers` processes; return what the record notes of it."""
    shown = " ".join(["python", *(step.tiny if simulated else step.real)])
    if lacking := [module for module in step.needs if find_spec(module) is None]:
        reason = f"not installed: {', '.join(lacking)}"
        return {"command": shown, "outcome": "missing", "reason": reason}
    parts.mkdir(parents=True, exist_ok=True)
    part = parts / f"{step.slice}-{step.name.replace(' ', '-').replace(',', '')}.json"
    bench = str(ROOT / "bench")
    given = {**given, "PYTHONPATH": os.pathsep.join([given["PYTHONPATH"], bench])}
    done = run(command_of(step, part, limit, simulated=simulated, workers=workers), limit, given)
    found: dict[str, Any] = {"command": shown, "seconds": done.seconds}
    result = result_of(step, part)
    problems = problems_of(result)
    good = (0, NO_TESTS) if step.tests else (0,)
    if done.status is None:
        found |= {"outcome": "stopped", "reason": f"it ran for {done.seconds:.0f} s"}
    elif done.status not in good:
        found |= {"outcome": "failed", "reason": f"status {done.status}"}
    elif step.tests and result["left"]:
        found |= {"outcome": "stopped", "reason": "tests are left"}
    else:
        found["outcome"] = "done"
    if problems:
        found["problems"] = problems
    if found["outcome"] != "done":
        said = (done.out, done.err) if step.tests else (done.err, done.out)
        text = next(filter(None, map(str.strip, said)), "")
        found["last_lines"] = text.splitlines()[-LAST_LINES:]
    if found["outcome"] == "done" and not step.tests:
        part.unlink(missing_ok=True)
    return {**found, "result": result, "report": done.out.splitlines()[-REPORT_LINES:]}


def result_of(step: Step, part: Path) -> Any:
    """Return what a step wrote, also if it was stopped; None if it wrote nothing."""
    if not part.exists():
        return None
    text = part.read_text(encoding="utf-8")
    if not step.tests:
        try:
            return json.loads(text)
        except ValueError:  # it was stopped while it wrote
            return None
    lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    tests = {line["test"]: line for line in lines if "test" in line}
    counts = [line["outcome"] for line in tests.values()]
    return {
        "left": bool(lines) and "test" in lines[-1],
        **{name: counts.count(name) for name in ("passed", "failed", "skipped")},
        "failures": {name: line["line"] for name, line in tests.items() if line["line"]},
        "seconds": {name: line["seconds"] for name, line in tests.items()},
    }


def problems_of(result: Any) -> list[str]:
    """Return what a result itself says has failed: checks, rows and tests."""
    if isinstance(result, list):
        return [problem for each in result for problem in problems_of(each)]
    if not isinstance(result, dict):
        return []
    found = [problem for each in result.values() for problem in problems_of(each)]
    if result.get("ok") is False:
        found.append(f"{result.get('name')}: {result.get('summary')}")
    if result.get("outcome") == "failed":
        found.append(f"{result.get('key')}: {result.get('reason')}")
    return found
