"""Error and time of a linear layer's matrix products in 8 bits, compared with exact products.

    python bench/plugins/low_precision_backward.py [--json PATH] [--rounds N] [--device cuda]
    [--threads N]
                                           [--tiny]

Like `low-precision-backward`, the backward computes two products: gradient @ weight and
gradient.T @ x. Like `mixed-precision` in fp8, the forward computes one product. The times include
the rounding. The precisions are timed alternately in one process.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from neaptide_plugins.low_precision_backward.products import (
    Seeds,
    fp8_gradient_product,
    int8_product,
)
from neaptide_toolkit.low_precision import fp8_product

if TYPE_CHECKING:
    from collections.abc import Callable

    Multiply = Callable[[torch.Tensor, torch.Tensor, torch.dtype], torch.Tensor]

SHAPES = ((512, 512, 512), (1024, 1024, 1024), (1024, 1024, 4096))
"""Each triple: rows, inputs and outputs of the layer."""
TINY = ((64, 64, 64),)


def backward(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, multiply: Multiply
) -> list[torch.Tensor]:
    """Return the gradients of `x` and of `weight`."""
    dtype = gradient.dtype
    return [multiply(gradient, weight.t(), dtype), multiply(gradient.t(), x.t(), dtype)]


def exact(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return torch's `a @ b.T`."""
    return (a @ b.t()).to(dtype)


def subjects(rows: int, inputs: int, outputs: int, device: str) -> dict[str, Any]:
    """Return the subjects (functions to compare) by direction and name.

    The subject `fp32` of each direction computes exact products. The errors of the other subjects
    are measured against these products.
    """
    generator = torch.Generator().manual_seed(0)
    # As in real training, the gradients' magnitude varies from row to row.
    sizes = 10 ** torch.randn(rows, 1, generator=generator)
    gradient, x, weight = (
        (torch.randn(shape, generator=generator) * size).to(device)
        for shape, size in (
            ((rows, outputs), sizes),
            ((rows, inputs), 1.0),
            ((outputs, inputs), inputs**-0.5),
        )
    )
    wide, narrow = (gradient, x, weight), (gradient.bfloat16(), x.bfloat16(), weight.bfloat16())
    int8 = partial(int8_product, seeds=Seeds(0))
    return {
        "backward": {
            "fp32": partial(backward, *wide, exact),
            "bf16": partial(backward, *narrow, exact),
            "int8 of fp32": partial(backward, *wide, int8),
            "int8 of bf16": partial(backward, *narrow, int8),
            "fp8 of fp32": partial(backward, *wide, fp8_gradient_product),
            "fp8 of bf16": partial(backward, *narrow, fp8_gradient_product),
        },
        "forward": {
            "fp32": lambda: [wide[1] @ wide[2].t()],
            "bf16": lambda: [narrow[1] @ narrow[2].t()],
            "fp8 of bf16": lambda: [fp8_product(*narrow[1:], out_dtype=torch.bfloat16)],
        },
    }


def error(found: list[torch.Tensor], truth: list[torch.Tensor]) -> float:
    """Return the largest error of a tensor in `found` relative to `truth`, in the L2 norm."""
    return max(
        float((one.double() - other.double()).norm() / other.double().norm())
        for one, other in zip(found, truth, strict=True)
    )


def timed(call: Callable[[], object], device: str) -> float:
    """Return the seconds of one call."""
    started = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def measured(shape: tuple[int, int, int], rounds: int, device: str) -> list[dict[str, Any]]:
    """Return a row for each subject at one shape."""
    rows = []
    for direction, calls in subjects(*shape, device).items():
        truth = calls["fp32"]()
        errors = {name: error(call(), truth) for name, call in calls.items()}
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                seconds[name].append(timed(call, device))
        rows += [
            {
                "direction": direction,
                "shape": shape,
                "subject": name,
                "error": errors[name],
                "median_ms": statistics.median(taken) * 1e3,
                "of_fp32": _ratio(taken, seconds["fp32"]),
                "of_bf16": _ratio(taken, seconds["bf16"]),
            }
            for name, taken in seconds.items()
        ]
    return rows


def _ratio(taken: list[float], base: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(taken, base, strict=True))


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--tiny", action="store_true", help="a small shape: a test of this script")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    shapes = TINY if options.tiny else SHAPES
    rows = [row for shape in shapes for row in measured(shape, options.rounds, options.device)]
    print("| product | rows x in x out | dtype | error | ms | time of fp32 | time of bf16 |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        shape = " x ".join(map(str, row["shape"]))
        print(
            f"| {row['direction']} | {shape} | {row['subject']} | {row['error']:.2%} | "
            f"{row['median_ms']:.1f} | {row['of_fp32']:.2f} | {row['of_bf16']:.2f} |"
        )
    if options.json:
        facts = {
            "machine": platform.machine(),
            "torch": torch.__version__,
            "threads": options.threads,
            "device": options.device,
        }
        with open(options.json, "w", encoding="utf-8") as file:  # noqa: PTH123 - a path of the caller
            json.dump({**facts, "rows": rows}, file, indent=2)


if __name__ == "__main__":
    main()
