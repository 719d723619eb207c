"""Check lists of weights, gradients and 8-bit state, and compare the results of two updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch

from neaptide_kernels.registry import relative_error
from neaptide_kernels.support import no_triton

from . import blocks_of, decode_signed, decode_unsigned

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from neaptide_kernels.registry import Query, Support

WEIGHTS = (torch.float32, torch.bfloat16)
"""Permitted dtypes of weights and gradients."""
_CODES = {torch.int8: decode_signed, torch.uint8: decode_unsigned}
_WEIGHTS_OFF = {torch.float32: 1e-5, torch.bfloat16: 2e-3}
_CODES_OFF = 0.01


def check(
    op: str, names: Sequence[str], codes: Collection[torch.dtype], arguments: Sequence[Any]
) -> None:
    """Raise ValueError for the first tensor or list that does not match the other lists.

    Args:
        op: the op's name.
        names: names of the op's arguments, in the order of `op.CodedOp`.
        codes: dtypes of the codes.
        arguments: all arguments of the call.
    """
    kinds, rate = len(codes), 3 + 2 * len(codes)
    params, lr = arguments[0], arguments[rate]
    for place, param in enumerate(params):
        if param.dtype not in WEIGHTS:
            msg = f"{op} updates float32 and bfloat16 (params[{place}] is {param.dtype})"
            raise ValueError(msg)
    for name, tensors in zip(names[1:rate], arguments[1:rate], strict=True):
        if len(tensors) != len(params):
            msg = f"{op} got {len(params)} params and {len(tensors)} {name}"
            raise ValueError(msg)
    dtypes = (*codes, *[torch.float32] * (kinds + 1))
    for place, (param, grad, *state) in enumerate(zip(*arguments[:rate], strict=True)):
        if grad.dtype not in WEIGHTS or grad.layout != torch.strided or grad.shape != param.shape:
            msg = (
                f"{op}: grads[{place}] is {grad.layout} {grad.dtype} {list(grad.shape)}; params"
                f"[{place}] of shape {list(param.shape)} takes a dense float32 or bfloat16 one"
            )
            raise ValueError(msg)
        elements, blocks = (param.numel(),), (blocks_of(param.numel()),)
        shapes = (*[elements] * kinds, *[blocks] * kinds, ())
        for name, tensor, dtype, shape in zip(names[2:rate], state, dtypes, shapes, strict=True):
            if not _is(tensor, dtype, shape):
                _refuse(f"{op}: {name}[{place}]", tensor, dtype, shape)
    if not _is(lr, torch.float32, ()):
        _refuse(f"{op}: lr", lr, torch.float32, ())


def _is(tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
    return tensor.dtype == dtype and tensor.shape == shape and tensor.is_contiguous()


def _refuse(
    what: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]
) -> NoReturn:
    msg = (
        f"{what} is {tensor.dtype} {list(tensor.shape)}; it must be contiguous {dtype} "
        f"{list(shape)}"
    )
    raise ValueError(msg)


def check_numbers(op: str, **numbers: float) -> None:
    """Raise ValueError for a beta outside [0, 1), an eps of 0, or a negative, inf or NaN number."""
    for name, value in numbers.items():
        beta = name.startswith("beta")
        if not (0.0 <= value < 1.0 if beta else 0.0 <= value < float("inf")):
            wanted = "in [0, 1)" if beta else "finite and at least 0"
            msg = f"{op}: {name} must be {wanted} (got {value})"
            raise ValueError(msg)
    if numbers.get("eps") == 0:
        msg = f"{op}: eps must be more than 0: a moment of 0 is divided by it"
        raise ValueError(msg)


def supports(query: Query) -> Support:
    """Return True if Triton can update these lists in one launch, otherwise a reason."""
    reason = no_triton(query)
    if reason:
        return reason
    for name, facts in query.tensors:
        if facts is None or facts.count == 0:
            return "there are no tensors"
        if not facts.contiguous:
            return f"a tensor of {name} is not contiguous"
        if name in {"params", "grads"} and facts.dtype not in WEIGHTS:
            return f"{name} have several dtypes"
    return True


def aligned(*lists: Sequence[torch.Tensor]) -> bool:
    """Return whether the address of each tensor is a multiple of 16 bytes."""
    return all(tensor.data_ptr() % 16 == 0 for tensors in lists for tensor in tensors)


def disagreements(
    expected: Sequence[tuple[str, torch.Tensor]], got: Sequence[tuple[str, torch.Tensor]]
) -> Iterator[str]:
    """Yield a message for each wrong result.

    Weights are compared by norm. A value of the decoded state may differ by at most one code. The
    reason is that a compiler's square root may be wrong in the last bit, which changes the code of
    a value next to a boundary. At most 1 % of the codes (plus one code) may differ.
    """
    right, found = dict(expected), dict(got)
    for name, tensor in right.items():
        result = found[name]
        if tensor.dtype in _CODES:
            scale = name.replace("[", "_scale[")
            yield from _state_off(name, (tensor, right[scale]), (result, found[scale]))
        else:
            error, allowed = relative_error(tensor, result), _WEIGHTS_OFF[tensor.dtype]
            if error > allowed:
                yield f"{name}: relative error {error:.2g} is more than {allowed:.2g}"


def _state_off(
    name: str,
    expected: tuple[torch.Tensor, torch.Tensor],
    got: tuple[torch.Tensor, torch.Tensor],
) -> Iterator[str]:
    (codes, scale), decode = expected, _CODES[expected[0].dtype]
    right, result = decode(codes, scale), decode(*got)
    known = ~right.isnan()  # if a block is NaN, its codes are not compared
    if not torch.equal(known, ~result.isnan()):
        yield f"{name}: NaN is in other places than expected"
        return
    off = (codes.int() - got[0].int()).abs()[known]
    if int((off != 0).sum()) > 1 + _CODES_OFF * off.numel():
        yield f"{name}: {int((off != 0).sum())} of {off.numel()} codes differ"
    bounds = [decode((codes.int() + way).clamp(*_range(codes)), scale) for way in (-1, 1)]
    slack = 1e-5 * right.abs()
    inside = (result >= bounds[0] - slack) & (result <= bounds[1] + slack)
    if not bool(inside[known].all()):
        yield f"{name}: decoded state differs by more than one code"


def _range(codes: torch.Tensor) -> tuple[int, int]:
    return (0, 255) if codes.dtype == torch.uint8 else (-127, 127)
