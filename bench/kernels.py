"""Time Neaptide's kernels, other libraries and the machine's peak rates in one run.

    python bench/kernels.py [--op NAME]... [--device cpu|cuda] [--rounds N] [--json PATH] [--quick]
                            [--no-compile]

An op is an operation with several implementations, called providers. A sample is a set of arguments
of an op. For each op and each of its large samples, every provider that agrees with the op's
reference is timed, alternately with its rivals. The rivals are eager torch, torch.compile, and
installed libraries. The bandwidth is the op's `traffic`, which is the least number of bytes to read
and write, divided by the median time. If a rival cannot run, the reason is listed.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from kernel_times.rivals import Absent, rivals
from kernel_times.seconds import ceilings, seconds

from neaptide_kernels.catalogue import triton_providers
from neaptide_kernels.registry import KERNELS, first_disagreement
from neaptide_kernels.registry.measuring import built
from neaptide_toolkit.machine.facts import facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neaptide_kernels.registry import Op, Sample

_HEAD = "| op | sample | by | median | quartiles | GB/s | of the copy | x eager |"
_FEWEST = 3
_FAILS = "it fails: {}"


def contenders(
    op: Op, sample: Sample, *, compiled: bool
) -> Iterator[tuple[str, Callable[[], object] | str]]:
    """Yield each provider and rival: its name, and a callable or the reason why it cannot run."""
    arguments = op.spec.complete(sample.arguments)
    query = KERNELS.query(op.spec.name, arguments)
    providers = KERNELS.providers(op.spec.name)
    failed = built(providers, query) if compiled else {}  # as `neaptide kernels tune` does
    for provider in providers:
        answer = failed.get(provider.name) or provider.supports(query)
        name = f"neaptide: {provider.name}"
        if answer is not True:
            yield name, str(answer)
            continue
        wrong = first_disagreement(op.spec, provider, query)
        if wrong is not None:
            yield name, f"it disagrees with the reference: {wrong}"
        else:
            yield name, lambda run=provider.run: run(*arguments)
    for name, build in rivals(op.spec.name, compiled=compiled):
        try:
            yield name, build(*arguments)
        except Absent as reason:
            yield name, str(reason)
        except Exception as error:  # noqa: BLE001 - some fail as they are prepared
            yield name, _FAILS.format(type(error).__name__)


def measure(
    op: Op, sample: Sample, device: torch.device, rounds: int, *, compiled: bool
) -> list[dict[str, Any]]:
    """Time the providers and rivals alternately. Return one row for each of them."""
    named = dict(contenders(op, sample, compiled=compiled))
    running = {name: action for name, action in named.items() if not isinstance(action, str)}
    taken: dict[str, list[float]] = {name: [] for name in running}
    reasons = {name: action for name, action in named.items() if isinstance(action, str)}
    shuffle = random.Random(0)  # noqa: S311 - random order, no secret
    for turn in range(rounds + 1):
        order = list(running)
        shuffle.shuffle(order)
        for name in order:
            try:
                once = seconds(running[name], device)
            except Exception as error:  # noqa: BLE001 - the error is the row
                reasons[name] = _FAILS.format(type(error).__name__)
                del running[name], taken[name]
                continue
            if turn:  # the first turn warms up compilers and caches
                taken[name].append(once)
    traffic = op.spec.traffic
    moved = traffic(*op.spec.complete(sample.arguments)) if traffic is not None else None
    return [
        {
            "op": op.spec.name,
            "sample": sample.name,
            "by": name,
            "seconds": statistics.median(taken[name]) if name in taken else None,
            "quartiles": statistics.quantiles(taken[name], n=4)[::2] if name in taken else None,
            "bytes": moved,
            "not_measured": reasons.get(name),
        }
        for name in named
    ]


def table(rows: list[dict[str, Any]], copy: float) -> str:
    """Return the timings as a Markdown table, and a list of what was not measured."""
    eager = {(row["op"], row["sample"]): row["seconds"] for row in rows if row["by"] == "eager"}
    lines = [_HEAD, "|---" * (_HEAD.count("|") - 1) + "|"]
    absent: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["seconds"] is None:
            ops = absent.setdefault((row["by"], row["not_measured"]), [])
            ops += [row["op"]] if row["op"] not in ops else []
            continue
        low, high = row["quartiles"]
        timed = row["seconds"] > 0  # a call without elements may take no time
        rate = row["bytes"] / row["seconds"] if row["bytes"] and timed else None
        speed = f"{rate / 1e9:.1f} | {rate / copy:.0%}" if rate else "|"
        beside = eager.get((row["op"], row["sample"]))
        times = f"{beside / row['seconds']:.2f}" if beside and timed else ""
        lines.append(
            f"| {row['op']} | {row['sample']} | {row['by']} | {row['seconds'] * 1e3:.2f} ms "
            f"| {low * 1e3:.2f}-{high * 1e3:.2f} | {speed} | {times} |"
        )
    notes = [
        f"- *{by}* for {' and '.join(filter(None, (', '.join(ops[:-1]), ops[-1])))} ({reason})"
        for (by, reason), ops in absent.items()
    ]
    return "\n".join([*lines, "", "Not measured:", "", *notes] if notes else lines)


def main() -> None:
    """Measure, print the table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--op", action="append", help="may be given several times")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--quick", action="store_true", help="small samples: a test of this script")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    for provider in triton_providers():
        KERNELS.add(provider)
    limits = ceilings(device, quick=arguments.quick)
    rows: list[dict[str, Any]] = []
    for name, op in sorted(KERNELS.ops.items()):
        if arguments.op and name not in arguments.op:
            continue
        samples = list((op.spec.samples if arguments.quick else op.spec.large)(device))
        for sample in samples[-1:] if arguments.quick else samples:
            rounds = max(_FEWEST, arguments.rounds)
            found = measure(op, sample, device, rounds, compiled=not arguments.no_compile)
            rows += found
            print(f"measured: {name}, {sample.name}", file=sys.stderr)
    print(table(rows, limits["copy_bytes_per_s"]))
    if arguments.json is not None:
        content = {"machine": facts(), "device": str(device), "ceilings": limits, "rows": rows}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
