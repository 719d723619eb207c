"""Pass matrix products with weights to a handler: a function that computes the product instead.

The products are calls of `F.linear`, and calls of `torch.addmm` in the form that Conv1D uses. Both
functions are replaced in torch's modules while a handler is active. A mode of `torch.overrides` is
not enough: torch disables such a mode inside `F.multi_head_attention_forward` and inside
`torch.autograd.backward`, where blocks are recomputed. Code traced by torch.compile or torch.func,
and forward-mode derivatives, are not intercepted.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch.nn import functional

from neaptide.text import one_line
from neaptide_toolkit.recompute import other_derivative

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Handler = Callable[["Product"], torch.Tensor | None]


@attrs.frozen(eq=False)
class Product:
    """One product to compute: `x @ weight.T + bias`, or `x @ weight + bias` if `transposed`."""

    x: torch.Tensor
    """`[..., in]`."""
    weight: torch.Tensor
    """`[out, in]`; `[in, out]` if `transposed`."""
    bias: torch.Tensor | None
    transposed: bool
    compute: Callable[[], torch.Tensor]
    """Computes the product, `[..., out]`, with the outer handlers, or with torch if there are none.
    """

    __repr__ = one_line

    @property
    def rows(self) -> int:
        """Number of rows of `x`, seen as a matrix."""
        return self.x.numel() // self.x.shape[-1] if self.x.shape[-1] else 0


@attrs.frozen(eq=False)
class _StandIns:
    """The replacements installed in torch, and the original functions."""

    linear: Callable[..., torch.Tensor]
    addmm: Callable[..., torch.Tensor]
    original_linear: Callable[..., torch.Tensor]
    original_addmm: Callable[..., torch.Tensor]


_lock = threading.Lock()
_handlers: tuple[Handler, ...] = ()
_installed: _StandIns | None = None


@contextmanager
def intercepting(handler: Handler) -> Iterator[None]:
    """Call `handler` for each product, on all threads; if it returns None, the next handler runs.

    A returned tensor must have the shape, dtype and device of torch's product. Handlers nest: the
    innermost handler runs first. If it calls `product.compute()`, the outer handlers run.
    """
    global _handlers, _installed  # noqa: PLW0603 - a process has one torch

    with _lock:
        if not _handlers:
            _installed = _install()
        _handlers = (*_handlers, handler)
    try:
        yield
    finally:
        with _lock:
            place = len(_handlers) - 1 - _handlers[::-1].index(handler)
            _handlers = _handlers[:place] + _handlers[place + 1 :]
            if not _handlers and _installed is not None:
                _uninstall(_installed)
                _installed = None


def _install() -> _StandIns:
    # New functions each time: other code may have wrapped the old ones and may still call them.
    original_linear, original_addmm = functional.linear, torch.addmm
    stand_ins: _StandIns

    def linear(
        input: torch.Tensor,  # noqa: A002 - torch's own name
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        handlers = _handlers if _installed is stand_ins else ()
        if not handlers or not _is_product(input, weight, bias):
            return original_linear(input, weight, bias)
        return _ask(
            handlers,
            partial(Product, input, weight, bias, False),
            partial(original_linear, input, weight, bias),
        )

    def addmm(*args: Any, **kwargs: Any) -> torch.Tensor:
        handlers = _handlers if _installed is stand_ins else ()
        # Only the form addmm(bias, x, weight) is a product with a weight.
        if not handlers or kwargs or len(args) != len(("bias", "x", "weight")):
            return original_addmm(*args, **kwargs)
        bias, x, weight = args
        if bias is None or not _is_product(x, weight, bias):
            return original_addmm(bias, x, weight)
        return _ask(
            handlers, partial(Product, x, weight, bias, True), partial(original_addmm, *args)
        )

    stand_ins = _StandIns(linear, addmm, original_linear, original_addmm)
    functional.linear, torch.addmm = linear, addmm
    return stand_ins


def _uninstall(stand_ins: _StandIns) -> None:
    # If other code has wrapped our function in the meantime, torch's attribute is not ours any
    # more and stays unchanged. The wrapper still calls our function, which calls torch.
    if functional.linear is stand_ins.linear:
        functional.linear = stand_ins.original_linear
    if torch.addmm is stand_ins.addmm:
        torch.addmm = stand_ins.original_addmm


def _is_product(x: Any, weight: Any, bias: Any) -> bool:
    return (
        type(weight) is torch.nn.Parameter
        and weight.ndim == 2  # noqa: PLR2004 - a matrix
        and type(x) in (torch.Tensor, torch.nn.Parameter)  # subclasses define their own products
        and x.ndim > 0
        and (bias is None or (isinstance(bias, torch.Tensor) and bias.ndim == 1))
        and not x.is_nested
        and not torch.compiler.is_compiling()
        and not other_derivative()
    )


def _ask(
    handlers: tuple[Handler, ...],
    make: Callable[[Callable[[], torch.Tensor]], Product],
    last: Callable[[], torch.Tensor],
) -> torch.Tensor:
    if not handlers:
        return last()
    following = partial(_ask, handlers[:-1], make, last)
    done = handlers[-1](make(following))
    return following() if done is None else done


def not_a_view(result: torch.Tensor) -> torch.Tensor:
    """Return `result` as a tensor that is not a view, for use as the result of a Function.

    A matrix product of tensors with more than two dimensions is a view of a matrix. torch refuses
    in-place writes to a view that an `autograd.Function` returned: `ReLU(inplace=True)` would fail.
    """
    if not result._is_view():  # noqa: SLF001 - torch has no public function for this
        return result
    whole: torch.Tensor = torch.ops.aten._unsafe_view(result, result.shape)  # noqa: SLF001 - as reshape does
    return whole


def refuse_second_derivative(where: str) -> None:
    """Raise RuntimeError if the current backward runs with `create_graph=True`."""
    if torch.is_grad_enabled():
        msg = (
            f"the backward of {where} cannot be differentiated, but was run with "
            f"create_graph=True; exclude its weight from low precision"
        )
        raise RuntimeError(msg)
