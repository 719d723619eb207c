"""Sends products with weights through a handler: `F.linear`, and `torch.addmm` as Conv1D calls it.

They are replaced where modules look them up, for as long as somebody listens. A mode of
`torch.overrides` would not do: it is off inside `torch.autograd.backward`, where blocks are
computed again, and inside `F.multi_head_attention_forward`. What torch.compile and torch.func trace
passes by.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Handler = Callable[["Product"], torch.Tensor | None]


@attrs.frozen(eq=False)
class Product:
    """`x @ weight.T + bias`, or `x @ weight + bias` where `transposed`, that is to be computed."""

    x: torch.Tensor
    """`[..., in]`."""
    weight: torch.Tensor
    """`[out, in]`; `[in, out]` where `transposed`."""
    bias: torch.Tensor | None
    transposed: bool
    compute: Callable[[], torch.Tensor]
    """Computes it as the handlers outside of this one do, or torch itself."""

    @property
    def rows(self) -> int:
        """Rows of `x` as a matrix."""
        return self.x.numel() // self.x.shape[-1] if self.x.shape[-1] else 0


_lock = threading.Lock()
_handlers: tuple[Handler, ...] = ()
_linear, _addmm = functional.linear, torch.addmm


@contextmanager
def intercepting(handler: Handler) -> Iterator[None]:
    """Ask `handler` for each product meanwhile, on all threads; None leaves it to the next one.

    Handlers nest: the innermost is asked first, and its `product.compute()` asks the others.
    """
    global _handlers  # noqa: PLW0603 - a process has one torch

    with _lock:
        _handlers = (*_handlers, handler)
        _install()
    try:
        yield
    finally:
        with _lock:
            place = len(_handlers) - 1 - _handlers[::-1].index(handler)
            _handlers = _handlers[:place] + _handlers[place + 1 :]
            if not _handlers:
                _uninstall()


def _install() -> None:
    global _linear, _addmm

    if functional.linear is not linear:
        _linear, functional.linear = functional.linear, linear
    if torch.addmm is not addmm:
        _addmm, torch.addmm = torch.addmm, addmm


def _uninstall() -> None:
    # What somebody else has put in its place since goes on calling ours, which does nothing now.
    if functional.linear is linear:
        functional.linear = _linear
    if torch.addmm is addmm:
        torch.addmm = _addmm


def linear(
    input: torch.Tensor,  # noqa: A002 - torch's own name
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Stand in for `torch.nn.functional.linear`."""
    handlers = _handlers
    if not handlers or not _is_product(input, weight):
        return _linear(input, weight, bias)
    return _ask(
        handlers, input, weight, bias, transposed=False, last=lambda: _linear(input, weight, bias)
    )


def addmm(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Stand in for `torch.addmm`; only `addmm(bias, x, weight)` is a product with a weight."""
    handlers = _handlers
    if handlers and not kwargs and len(args) == len(("bias", "x", "weight")):
        bias, x, weight = args
        if _is_product(x, weight) and isinstance(bias, torch.Tensor) and bias.ndim == 1:
            return _ask(handlers, x, weight, bias, transposed=True, last=lambda: _addmm(*args))
    result: torch.Tensor = _addmm(*args, **kwargs)
    return result


def _is_product(x: Any, weight: Any) -> bool:
    return (
        type(weight) is torch.nn.Parameter
        and weight.ndim == 2  # noqa: PLR2004 - a matrix
        and type(x) in (torch.Tensor, torch.nn.Parameter)  # subclasses have products of their own
        and not x.is_nested
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()  # noqa: SLF001 - there is no other way to ask
    )


def _ask(
    handlers: tuple[Handler, ...],
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    transposed: bool,
    last: Callable[[], torch.Tensor],
) -> torch.Tensor:
    if not handlers:
        return last()

    def following() -> torch.Tensor:
        return _ask(handlers[:-1], x, weight, bias, transposed=transposed, last=last)

    done = handlers[-1](Product(x, weight, bias, transposed, following))
    return following() if done is None else done


def refuse_second_derivative(where: str) -> None:
    """Raise RuntimeError if the backward that runs is to be differentiated once more."""
    if torch.is_grad_enabled():
        msg = (
            f"{where} has a backward without derivatives of its own, and was run with "
            f"create_graph=True; leave its weight out of low precision"
        )
        raise RuntimeError(msg)
