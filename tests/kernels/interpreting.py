"""Run every Triton provider of one op in the interpreter, against the reference.

    TRITON_INTERPRET=1 python tests/kernels/interpreting.py OP [N]

On every N-th sample of the op (default: every sample): agreement; agreement with all tensors ending
at an unreadable page, where an over-read dies of SIGSEGV; the same bits with the programs in
another order. Prints a JSON line for each thing that is wrong, and one that counts what was tried.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from guarding import guarded
from triton.runtime import interpreter

from neaptide_kernels.catalogue import triton_providers
from neaptide_kernels.registry import KERNELS, Provider, disagreements, outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ORDERS = ("reversed", "odd first")


def main(name: str, every: str = "1") -> None:
    """Try the providers of an op."""
    op = KERNELS.ops[name]
    tried = 0
    for provider in triton_providers():
        if provider.op != name:
            continue
        for sample in islice(op.spec.samples(torch.device("cpu")), 0, None, int(every)):
            arguments = op.spec.complete(sample.arguments)
            answer = provider.supports(KERNELS.query(name, arguments))
            if answer is not True:
                continue
            for problem in _wrong(provider, arguments, tried):
                _say(json.dumps({"sample": sample.name, "problem": problem}))
            tried += 1
    _say(json.dumps({"tried": tried}))


def _wrong(provider: Provider, arguments: Sequence[Any], turn: int) -> Iterator[str]:
    """Yield what is wrong; configs but the first, and orders, take turns over the samples."""
    spec = KERNELS.ops[provider.op].spec
    first, *others = provider.configs(KERNELS.query(spec.name, arguments)) or ({},)
    for config in (first, *others[turn % max(1, len(others)) :][:1]):
        found = disagreements(spec, provider, arguments, config)
        yield from (f"{config}: {problem}" for problem in found)
        if found:
            return
    sys.stderr.write(f"guarded: {spec.name}\n")  # the last word before a SIGSEGV
    plain = outcome(spec, provider.run, _fresh(arguments))
    edged = outcome(spec, provider.run, guarded(arguments))
    yield from (f"guarded, {name}: other bits" for name in _different(plain, edged))
    order = ORDERS[turn % len(ORDERS)]
    with _permuted(order):
        other = outcome(spec, provider.run, _fresh(arguments))
    yield from (f"programs {order}, {name}: other bits" for name in _different(plain, other))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _different(
    first: list[tuple[str, torch.Tensor]], second: list[tuple[str, torch.Tensor]]
) -> list[str]:
    return [
        name
        for (name, one), (_, two) in zip(first, second, strict=True)
        if not torch.equal(_bits(one), _bits(two))
    ]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _fresh(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return [_fresh(each) for each in value] if isinstance(value, list | tuple) else value


class _permuted:  # noqa: N801 - used as a verb
    """Have programs of a launch run in another order along the first axis of the grid."""

    def __init__(self, order: str) -> None:
        self._order = order

    def __enter__(self) -> None:
        builder = interpreter.interpreter_builder
        self._original = builder.set_grid_idx

        def moved(x: int, y: int, z: int) -> None:
            self._original(_place(self._order, x, builder.grid_dim[0]), y, z)

        builder.set_grid_idx = moved

    def __exit__(self, *_: object) -> None:
        interpreter.interpreter_builder.set_grid_idx = self._original


def _place(order: str, x: int, programs: int) -> int:
    if order == "reversed":
        return programs - 1 - x
    odd = programs // 2
    return 2 * x + 1 if x < odd else 2 * (x - odd)


if __name__ == "__main__":
    main(*sys.argv[1:])
