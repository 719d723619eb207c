"""Bytes of training with sets of plugins: estimated by the memory ledger, and allocated.

    python bench/memory_guide.py [--json PATH] [--size NAME ...] [--device cuda]

Trains byte-gpt through all four phases, in float32 with AdamW, once for each set of plugins. The
ledger is Neaptide's estimate by phase, moment of a step, and tier (device or host), without
activations. On a CPU, torch's profiler counts the bytes of torch's allocator, including ordinary
tensors on the host. Slabs (large host buffers of Neaptide) are counted separately. Allocations of
other threads are not counted. For large models, `memory_run/formula.py` computes the bytes.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from memory_run.formula import KNOWN, LARGE, Decoder, computed
from memory_run.run import Size, measured

from neaptide.errors import NeaptideError
from neaptide.hooks.registry import installed_plugins

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MIB, GIB = 2**20, 2**30

SIZES = {
    "toy": Size(layers=2, width=32, heads=2, context=16, batch=2),
    "2M": Size(layers=4, width=192, heads=4, context=128, batch=8),
    "11M": Size(layers=6, width=384, heads=6, context=128, batch=4),
    "38M": Size(layers=12, width=512, heads=8, context=128, batch=2),
}
SHOWN = ("forward", "backward", "update", "predict", "evaluate")
RECOMPUTED: dict[str, Any] = {"activation-checkpointing": {"interval": 1}}
COMPRESSED: dict[str, Any] = {"activation-compression": {"check_every": 0}}
OFFLOADED: dict[str, Any] = {"optimizer-offload": {"strategy": "cpu"}}
QUANTIZED: dict[str, Any] = {"int8": {"measure_every": 0}}
STREAMED: dict[str, Any] = {"layer-streaming": {}}
STACKS: dict[str, dict[str, Any]] = {
    "none": {},
    "activation-compression": COMPRESSED,
    "activation-checkpointing": RECOMPUTED,
    "optimizer-offload": OFFLOADED,
    "int8": QUANTIZED,
    "activation-checkpointing, optimizer-offload, int8": RECOMPUTED | OFFLOADED | QUANTIZED,
    "layer-streaming": STREAMED,
    "layer-streaming, optimizer-offload, int8": STREAMED | OFFLOADED | QUANTIZED,
}


def main() -> None:
    """Measure, print tables, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json")
    parser.add_argument(
        "--size", action="append", choices=SIZES, help="by default all sizes except the toy"
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    stacks = dict(_runnable(STACKS))
    rows = [
        {"size": name, "stack": stack, **row}
        for name in options.size or list(SIZES)[1:]
        for stack, plugins in stacks.items()
        for row in _measured(SIZES[name], stack, plugins, options.device)
    ]
    large = [
        {"size": name, "stack": stack, "parameters": model.parameters, **_computed(model, plugins)}
        for name, model in LARGE.items()
        for stack, plugins in stacks.items()
        if plugins.keys() <= KNOWN
    ]
    print(
        "\n".join(["MiB by the ledger, on device + host:", "", *_table(rows), "", *_large(large)])
    )
    if options.json:
        report = {
            "device": _device(options.device),
            "torch": torch.__version__,
            "threads": 1,
            "rows": rows,
            "computed": large,
        }
        Path(options.json).write_text(json.dumps(report, indent=2), encoding="utf-8")


def _runnable(stacks: Mapping[str, dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    installed = installed_plugins()
    for stack, plugins in stacks.items():
        missing = [name for name in plugins if name not in installed]
        if missing:
            _say(f"{stack} is left out: {', '.join(missing)} is not installed")
        else:
            yield stack, plugins


def _measured(size: Size, stack: str, plugins: dict[str, Any], device: str) -> list[dict[str, Any]]:
    try:
        return measured(size, plugins, device)
    except NeaptideError as error:
        _say(f"{stack} is left out: {error}")
        return []


def _computed(model: Decoder, plugins: dict[str, Any]) -> dict[str, Any]:
    return {
        phase: {"device": device, "host": host}
        for phase, (device, host) in computed(model, plugins, on_gpu=True).items()
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _device(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = (line for line in info.read_text().splitlines() if line.startswith("model name"))
        cpu = next(names, f":{cpu}").partition(":")[2].strip()
    return f"CPU: {cpu}"


def _table(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    heads = ["model", "stack", "phase", *SHOWN, "peak allocated", "peak slabs"]
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for row in rows:
        tiers = [row["ledger"][moment] for moment in SHOWN]
        cells = [f"{_mib(each['device'])} + {_mib(each['host'])}" for each in tiers]
        cells += [_mib(row["allocated_peak"]), _mib(row["slabs_peak"])]
        yield f"| {' | '.join([row['size'], row['stack'], row['phase'], *cells])} |"


def _mib(count: int) -> str:
    return f"{count / MIB:.1f}"


def _large(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    yield (
        "| model | stack | training: device GiB (computed) | host GiB (computed) | "
        "Predict: device GiB (computed) | host GiB (computed) |"
    )
    yield "|---|---|---|---|---|---|"
    for row in rows:
        cells = [row[phase][tier] for phase in ("train", "predict") for tier in ("device", "host")]
        figures = " | ".join(f"{cell / GIB:.1f}" for cell in cells)
        yield f"| {row['size']} | {row['stack']} | {figures} |"


if __name__ == "__main__":
    main()
