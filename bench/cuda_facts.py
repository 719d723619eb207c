"""Measure the properties of a GPU that matter for training with weights in host memory.

    python bench/cuda_facts.py --json docs/benchmarks/cuda-facts.json

Each section runs in its own process under a time limit. Every failed check becomes a line of the
report. The script needs only torch >= 2.11 and takes less than 5 minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from probes.checks import run_checks

if TYPE_CHECKING:
    from collections.abc import Sequence

NO_GPU = 2
PATIENCE = 4
"""By how much the limits of `--tiny` are longer: a CPU that others use may simulate the GPU."""


@dataclass(frozen=True)
class Section:
    """A part of the report. Has a title, the module with the checks, and a time limit."""

    title: str
    module: str
    limit_seconds: int
    needs_gpu: bool = True


SECTIONS = {
    "machine": Section("Machine", "probes.machine", 30),
    "streaming": Section(
        "Layer streaming against resident training", "probes.streaming", 50, needs_gpu=False
    ),
    "rebinding": Section("Rebinding a parameter's data", "probes.rebinding", 20, needs_gpu=False),
    "link": Section("Link and arithmetic", "probes.link", 50),
    "host-memory": Section("Pinning host memory", "probes.host_memory", 145),
}


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the results here as well")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="smaller sizes, for a first look")
    size.add_argument("--tiny", action="store_true", help="the least sizes: a test of this script")
    parser.add_argument(
        "--device",
        choices=["cuda", "cpu"],
        default="cuda",
        help="cpu runs only the checks that need no GPU: streaming and rebinding",
    )
    parser.add_argument("--section", choices=SECTIONS, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def size_of(options: argparse.Namespace) -> str:
    """Return `full`, `quick` or `tiny`."""
    return "tiny" if options.tiny else "quick" if options.quick else "full"


def measure(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run one section in its own process. Return its results, even if the section fails."""
    section = SECTIONS[name]
    command = [sys.executable, __file__, "--section", name, "--device", options.device]
    size = size_of(options)
    limit = section.limit_seconds * (PATIENCE if size == "tiny" else 1)
    if size != "full":
        command.append(f"--{size}")
    # cuBLAS is bitwise reproducible on several streams only with a workspace of fixed size.
    environment = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", **os.environ}
    try:
        done = subprocess.run(  # noqa: S603 - this script
            command,
            capture_output=True,
            timeout=limit,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired as stopped:
        output, problem = stopped.stdout or b"", f"stopped after {limit} s"
    else:
        output, problem = done.stdout, ""
        if done.returncode:
            last = next(reversed(done.stderr.decode(errors="replace").strip().splitlines()), "")
            problem = f"ended with status {done.returncode}: {last[:200]}"
    # The last line of a stopped section may be incomplete.
    lines = output[: output.rfind(b"\n") + 1].splitlines()
    results = [json.loads(line) for line in lines if line.startswith(b"{")]
    if problem:
        results.append({"name": "the section itself", "ok": False, "summary": problem})
    return results


def table(title: str, results: Sequence[dict[str, Any]]) -> str:
    """Return a section as Markdown."""
    rows = [
        f"| {result['name']} | {result['summary'].replace('|', chr(92) + '|')} |"
        for result in results
    ]
    return "\n".join([f"## {title}", "", "| what | result |", "|---|---|", *rows, ""])


def main(argv: Sequence[str] | None = None) -> int:
    """Run every section that the device supports; return the exit status."""
    options = arguments(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            f"cuda_facts: torch {torch.__version__} finds no NVIDIA GPU; --device cpu runs the "
            "checks that need none",
            file=sys.stderr,
        )
        return NO_GPU
    if options.section:
        probe = import_module(SECTIONS[options.section].module)
        run_checks(probe.checks(torch.device(options.device, 0), size=size_of(options)))
        return 0
    start = time.time()
    report: dict[str, Any] = {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(start)),
        "device": options.device,
        "size": size_of(options),
        "torch": torch.__version__,
        "sections": {},
    }
    for name, section in SECTIONS.items():
        if section.needs_gpu and options.device != "cuda":
            continue
        results = measure(name, options)
        print(table(section.title, results), flush=True)
        report["sections"][name] = results
        report["seconds"] = round(time.time() - start, 1)
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
