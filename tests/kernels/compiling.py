"""Compile shipped kernels for GPUs that are not there, and hold them to committed budgets.

    python tests/kernels/compiling.py --targets 80,89,90,100,120 [--update]

Prints a JSON line for each launch and target; `--update` writes this Triton's budgets to
`budgets.json`. Needs Triton, no driver; not in a process with `TRITON_INTERPRET`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from neaptide_kernels.catalogue import shipped

if TYPE_CHECKING:
    from neaptide_kernels.shipping import ShippedKernel

BUDGETS = Path(__file__).with_name("budgets.json")
SHARED_LIMITS = {80: 166_912, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
"""Bytes of shared memory a block may have; Triton does not check without a driver."""
SLACK = 1.05
_BLACKWELL = 100


def resources(launch: ShippedKernel, arch: int) -> dict[str, int]:
    """Return registers, spilled bytes and shared memory of one launch compiled for `sm_<arch>`."""
    kernel = getattr(import_module(launch.module), launch.kernel)
    constants = {
        name: launch.constants[name] for name in kernel.arg_names if name in launch.constants
    }
    types = {
        name: "constexpr" if name in constants else launch.types[name] for name in kernel.arg_names
    }
    aligned: Any = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(kernel.arg_names)
        if name in launch.aligned and name not in constants
    }
    compiled = triton.compile(
        ASTSource(kernel, types, constants, aligned),
        target=GPUTarget("cuda", arch, 32),
        options=dict(launch.options),
    )
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder, "kernel.cubin")
        cubin.write_bytes(compiled.asm["cubin"])
        usage = _said(triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(cubin))
        ptx = Path(folder, "kernel.ptx")
        ptx.write_text(compiled.asm["ptx"])
        knobs = triton.knobs.nvidia
        tool = knobs.ptxas_blackwell if arch >= _BLACKWELL else knobs.ptxas
        name = f"sm_{arch}{'a' if arch >= 90 else ''}"
        log = _said(tool.path, "-v", f"--gpu-name={name}", str(ptx), "-o", "/dev/null")
    registers = re.search(r"REG:(\d+)", usage)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    assert registers is not None, usage
    assert spills is not None, log
    return {
        "registers": int(registers[1]),
        "spills": int(spills[1]) + int(spills[2]),
        "shared": int(compiled.metadata.shared),
    }


def problems(used: dict[str, int], arch: int, budget: dict[str, int] | None) -> list[str]:
    """Return what a launch exceeds, a line each."""
    found = []
    if used["spills"]:
        found.append(f"spills {used['spills']} bytes")
    if used["shared"] > SHARED_LIMITS[arch]:
        found.append(
            f"{used['shared']} bytes of shared memory, sm_{arch} has {SHARED_LIMITS[arch]}"
        )
    if budget is None:
        found.append("no budget is committed: run tests/kernels/compiling.py --update")
    elif used["registers"] > budget["registers"] * SLACK:
        found.append(f"{used['registers']} registers, the budget is {budget['registers']}")
    return found


def main() -> int:
    """Compile everything for the targets; 1 where something exceeds its budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", default="89,90")
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    targets = [int(target) for target in arguments.targets.split(",")]
    committed = json.loads(BUDGETS.read_text()) if BUDGETS.exists() else {}
    budgets = committed.setdefault(triton.__version__, {})
    failed = 0
    known = set()
    for launch in shipped():
        known.add(launch.name)
        for arch in targets:
            if launch.targets and arch not in launch.targets:
                continue
            used = resources(launch, arch)
            if arguments.update:
                budgets.setdefault(launch.name, {})[f"sm_{arch}"] = used
            budget = budgets.get(launch.name, {}).get(f"sm_{arch}")
            wrong = problems(used, arch, budget)
            failed += bool(wrong)
            line = {"launch": launch.name, "target": f"sm_{arch}", **used, "problems": wrong}
            sys.stdout.write(json.dumps(line) + "\n")
    if arguments.update:
        committed[triton.__version__] = {name: budgets[name] for name in sorted(known)}
        BUDGETS.write_text(json.dumps(committed, indent=1, sort_keys=True) + "\n")
    return 1 if failed else 0


def _said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


if __name__ == "__main__":
    raise SystemExit(main())
