"""Whether a provider computes what the reference computes, on copies of the same arguments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .provider import Provider
    from .spec import OpSpec


def disagreements(
    spec: OpSpec,
    provider: Provider,
    arguments: Sequence[Any],
    config: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return what is wrong with a provider's results on these arguments, a line each.

    Results are what it returns and what it mutates. Arguments are left as they are; an exception
    of the provider is its disagreement, one of the reference is raised.
    """
    arguments = spec.complete(arguments)
    precise = bool(spec.tolerances)
    expected = outcome(spec, spec.reference, [copied(each, precise=precise) for each in arguments])
    try:
        copies = [copied(each) for each in arguments]
        got = outcome(spec, provider.run, copies, config)
    except Exception as error:  # noqa: BLE001 - a stranger's kernel may raise anything
        return [f"raised {type(error).__name__}: {' '.join(str(error).split())}"]
    if spec.agree is not None:
        return list(spec.agree(expected, got))
    if len(expected) != len(got):
        return [f"returned {len(got)} tensors instead of {len(expected)}"]
    return [
        f"{name}: {problem}"
        for (name, right), (_, result) in zip(expected, got, strict=True)
        for problem in _compare(right, result, spec.tolerances)
    ]


def outcome(
    spec: OpSpec,
    run: Any,
    arguments: Sequence[Any],
    config: Mapping[str, Any] | None = None,
) -> list[tuple[str, torch.Tensor]]:
    """Run, and return the results by name: `result 0` and so on, then what was mutated."""
    returned = run(*arguments, **(config or {}))
    results = [(f"result {place}", tensor) for place, tensor in enumerate(_tensors(returned))]
    for argument, value in zip(spec.names, arguments, strict=True):
        if argument in spec.mutates:
            results += [
                (f"{argument}[{place}]", tensor) for place, tensor in enumerate(_tensors(value))
            ]
    return results


def relative_error(expected: torch.Tensor, got: torch.Tensor) -> float:
    """Return `|got - expected| / |expected|`, in float64 over finite places; 0 for two zeros."""
    right, result = expected.double(), got.double()
    finite = right.isfinite()
    if not bool((result.isfinite() == finite).all()):
        return float("inf")
    same = right[~finite].eq(result[~finite]) | (right[~finite].isnan() & result[~finite].isnan())
    if not bool(same.all()):
        return float("inf")
    off = float((result[finite] - right[finite]).norm())
    size = float(right[finite].norm())
    return off / size if size else (float("inf") if off else 0.0)


def _compare(
    expected: torch.Tensor, got: torch.Tensor, tolerances: Mapping[torch.dtype, float]
) -> Iterator[str]:
    if expected.shape != got.shape:
        yield f"shape {tuple(got.shape)} instead of {tuple(expected.shape)}"
        return
    allowed = tolerances.get(got.dtype, 0.0)
    if not allowed:
        same = expected.to(got.dtype).eq(got) | (got != got) & (expected != expected)  # noqa: PLR0124 - NaN
        wrong = int((~same).sum())
        if wrong:
            yield f"{wrong} of {got.numel()} elements differ from the reference's"
        return
    error = relative_error(expected, got)
    if error > allowed:
        yield f"relative error {error:.2g} is more than {allowed:.2g} ({got.dtype})"


def copied(value: Any, *, precise: bool = False) -> Any:
    """Return a copy of an argument that lies in memory as it does; `precise` makes it float64."""
    if isinstance(value, torch.Tensor):
        if precise and value.is_floating_point():
            return value.detach().double().clone()
        if not value.numel():
            return value.detach().clone()
        shape, strides = value.shape, value.stride()
        span = 1 + sum(step * (size - 1) for step, size in zip(strides, shape, strict=True))
        # clone() alone closes gaps and expands what is expanded.
        return value.detach().as_strided((span,), (1,)).clone().as_strided(shape, strides)
    if isinstance(value, list | tuple):
        return [copied(each, precise=precise) for each in value]
    return value


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Iterable) and not isinstance(value, str):
        for each in value:
            yield from _tensors(each)
