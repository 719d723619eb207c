"""Count where the interpreted kernel and torch's AdamW on a CPU differ in a bit; prints JSON.

Roots are exact with `beta2=0` and gradients of few bits. With others torch's root may be rounded
the other way, and only the moments are compared.
"""

from __future__ import annotations

import json
import math
import sys

import torch

from neaptide_kernels.adamw_split import kernel, reference, tuning
from neaptide_kernels.adamw_split.op import scalars, values
from neaptide_kernels.adamw_split.split_master import join

CPU = torch.device("cpu")
# torch's kernels work on whole vectors and then on a rest, which need not be fused: no rest here.
SHAPES = [(64, 32), (1024,), (2048,)]


def main() -> None:
    """Run a step of each, from the same tensors."""
    moments = masters = 0
    for step in (1, 2, 3, 1000):
        for beta1, beta2 in ((0.9, 0.999), (0.9, 0.0), (0.4, 0.0), (0.5, 0.95)):
            both = [values(SHAPES, torch.bfloat16, CPU) for _ in range(2)]
            options = (*scalars(3e-4, step, CPU), beta1, beta2, 1e-8, 0.1, False)
            reference.adamw_split_step(*both[0], *options)
            tuning.adamw_split_step(*both[1], *options)
            moments += sum(
                different(right, result)
                for place in (2, 3)
                for right, result in zip(both[0][place], both[1][place], strict=True)
            )
            if beta2 == 0:
                pairs = ([*map(join, *one[:2])] for one in both)
                masters += sum(different(*pair) for pair in zip(*pairs, strict=True))
    told = {"moments": moments, "masters where roots are exact": masters}
    sys.stdout.write(json.dumps({**told, "constants": constants()}) + "\n")


def constants() -> int:
    """Return how many constants of steps differ from those of Python's own arithmetic."""
    wrong = 0
    for step in (1, 2, 3, 10, 100, 1000, 12_345, 1_000_000, 2**24):
        for lr, beta1, beta2, eps, decay in (
            (1e-3, 0.9, 0.999, 1e-8, 1e-2),
            (3e-4, 0.95, 0.98, 1e-6, 0.1),
            (0.5, 0.0, 0.99999, 1e-12, 0.0),
        ):
            options = [tuning.bits_of(number) for number in (beta1, beta2, eps, decay)]
            out = torch.empty(7)
            kernel.step_constants[(1,)](*scalars(lr, step, CPU), out, *options)
            size, correction = -lr / (1 - beta1**step), math.sqrt(1 - beta2**step)
            expected = [1 - lr * decay, size, correction, 1 - beta1, beta2, 1 - beta2, eps]
            wrong += different(torch.tensor(expected), out)
    return wrong


def different(one: torch.Tensor, other: torch.Tensor) -> int:
    """Return in how many places the bits differ."""
    return int((one.view(torch.int32) != other.view(torch.int32)).sum())


if __name__ == "__main__":
    main()
