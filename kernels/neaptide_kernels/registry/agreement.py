"""Compare the results of a provider and of the reference, on copies of the same arguments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from neaptide.errors import is_out_of_memory

from .isolation import isolated
from .query import query_of

if TYPE_CHECKING:
    from .provider import Provider
    from .query import Query
    from .spec import OpSpec

Results = list[tuple[str, torch.Tensor]]
"""Pairs of a name and a tensor: the returned tensors, then the mutated arguments."""


def disagreements(
    spec: OpSpec,
    provider: Provider,
    arguments: Sequence[Any],
    config: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return the faults of a provider's results on these arguments, one line each.

    The returned tensors and the mutated arguments are compared by value, dtype, shape and device.
    It is a fault if the provider writes to other arguments, returns a tensor that shares memory
    with an argument, or raises an exception. Exceptions of the reference and out-of-memory errors
    are raised. The given arguments are not changed.
    """
    arguments = spec.complete(arguments)
    expected = outcome(spec, spec.reference, [copied(each) for each in arguments])
    try:
        copies = [copied(each) for each in arguments]
        got = outcome(spec, provider.run, copies, config)
    except Exception as error:
        if is_out_of_memory(error):
            raise  # the provider is not at fault if memory is short
        return [f"raised {type(error).__name__}: {' '.join(str(error).split())}"]
    if len(expected) != len(got):
        return [f"returned {len(got)} tensors instead of {len(expected)}"]
    problems = [*_misshapen(expected, got), *_trespasses(spec, arguments, copies, got)]
    if problems:
        return problems
    if spec.tolerances:
        precise = [copied(each, precise=True) for each in arguments]
        expected = outcome(spec, spec.reference, precise)
    if spec.agree is not None:
        return list(spec.agree(expected, got))
    return [
        f"{name}: {problem}"
        for (name, right), (_, result) in zip(expected, got, strict=True)
        for problem in _compare(right, result, spec.tolerances)
    ]


def first_disagreement(
    spec: OpSpec, provider: Provider, query: Query, config: Mapping[str, Any] | None = None
) -> str | None:
    """Try a provider on the op's samples. Return the first fault, or None if there is no fault.

    Only supported samples with the call's dtypes are tried. If there is no such sample, all
    supported samples are tried.
    """
    accelerator = torch.accelerator.current_accelerator() or torch.device("cpu")
    device = accelerator if query.device == "mixed" else torch.device(query.device)
    with isolated(device):
        samples = []
        for sample in spec.samples(device):
            small = query_of(spec.name, spec.names, spec.complete(sample.arguments))
            if provider.supports(small) is True:
                samples.append((small.dtypes, sample))
        alike = [sample for dtypes, sample in samples if dtypes == query.dtypes]
        for sample in alike or [sample for _, sample in samples]:
            for problem in disagreements(spec, provider, sample.arguments, config):
                return f"on the sample {sample.name!r}: {problem}"
    return None


def outcome(
    spec: OpSpec,
    run: Any,
    arguments: Sequence[Any],
    config: Mapping[str, Any] | None = None,
) -> Results:
    """Run a function; return its results as `result 0`, `result 1`, ..., and mutated arguments."""
    returned = run(*arguments, **(config or {}))
    results = [(f"result {place}", tensor) for place, tensor in enumerate(_tensors(returned))]
    for argument, value in zip(spec.names, arguments, strict=True):
        if argument in spec.mutates:
            results += [
                (f"{argument}[{place}]", tensor) for place, tensor in enumerate(_tensors(value))
            ]
    return results


def relative_error(expected: torch.Tensor, got: torch.Tensor) -> float:
    """Return `|got - expected| / |expected|`, in float64 over finite elements; 0 if both are zero.

    Both tensors must have the same shape and device; their dtypes may differ. If an element is
    inf or NaN in only one of the tensors, the error is infinite.
    """
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


def _misshapen(expected: Results, got: Results) -> Iterator[str]:
    for (name, right), (_, result) in zip(expected, got, strict=True):
        wanted, found = (
            f"{one.dtype} {list(one.shape)} on {one.device}" for one in (right, result)
        )
        if wanted != found:
            yield f"{name}: {found} instead of {wanted}"


def _trespasses(
    spec: OpSpec, before: Sequence[Any], after: Sequence[Any], got: Results
) -> Iterator[str]:
    for name, one, other in zip(spec.names, before, after, strict=True):
        if name not in spec.mutates and not same_bits(one, other):
            yield f"it wrote to {name}"
    named = zip(spec.names, after, strict=True)
    taken = {place: name for name, value in named for place in _memory(value)}
    for name, tensor in got:
        if not name.startswith("result "):
            break
        for place in _memory(tensor):
            if place in taken:
                yield f"{name} shares memory with {taken[place]}"
            taken[place] = name


def same_bits(first: Any, second: Any) -> bool:
    """Return whether two tensors have the same bits; for other arguments return True."""
    if isinstance(first, torch.Tensor):
        return bool(torch.equal(_bits(first), _bits(second)))
    if isinstance(first, list | tuple):
        return all(same_bits(one, other) for one, other in zip(first, second, strict=True))
    return True


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _memory(value: Any) -> set[int]:
    return {each.untyped_storage().data_ptr() for each in _tensors(value) if each.numel()}


def copied(value: Any, *, precise: bool = False) -> Any:
    """Return a copy of a tensor with the same strides, or a list of copies of a list's tensors.

    `precise` converts floating tensors to float64. Other arguments are returned unchanged.
    """
    if isinstance(value, torch.Tensor):
        if precise and value.is_floating_point():
            return value.detach().double().clone()
        if not value.numel():
            return value.detach().clone()
        shape, strides = value.shape, value.stride()
        span = 1 + sum(step * (size - 1) for step, size in zip(strides, shape, strict=True))
        # A plain clone() would close gaps between elements and materialize expanded dimensions.
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
