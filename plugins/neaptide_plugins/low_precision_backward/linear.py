"""A product with a weight.

Torch computes the forward; the backward rounds its factors to 8 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide_toolkit.low_precision import not_a_view, refuse_second_derivative

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from neaptide_toolkit.low_precision import Product

    Multiply = Callable[[torch.Tensor, torch.Tensor, torch.dtype], torch.Tensor]


class _LowBackwardProduct(torch.autograd.Function):
    """Computes a `Product`.

    Its backward uses `multiply`. The gradient of the bias is an exact sum.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        product: Product,
        multiply: Multiply,
        name: str,
    ) -> torch.Tensor:
        """Return the product as torch computes it."""
        ctx.multiply, ctx.transposed, ctx.name = multiply, product.transposed, name
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.x_dtype = x.dtype
        device = x.device.type
        saved = x
        cached = torch.is_autocast_cache_enabled()
        if torch.is_autocast_enabled(device) and x.dtype is torch.float32:
            saved = x.to(torch.get_autocast_dtype(device))  # autograd would save this cast, too
        ctx.save_for_backward(saved, weight)
        # A cast of the weight in this forward has no graph, but later products may need a graph. So
        # autocast must not cache this cast.
        torch.set_autocast_cache_enabled(False)
        try:
            return not_a_view(product.compute())
        finally:
            torch.set_autocast_cache_enabled(cached)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of x, weight and bias."""
        refuse_second_derivative(f"the product with {ctx.name!r}")
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        rows = gradient.reshape(-1, gradient.shape[-1])
        of_x = of_weight = of_bias = None
        if wants_x:
            columns = weight if ctx.transposed else weight.t()
            of_x = ctx.multiply(rows, columns, ctx.x_dtype).view(x.shape)
        if wants_weight:
            of_weight = ctx.multiply(rows.t(), x.reshape(-1, x.shape[-1]).t(), weight.dtype)
            of_weight = of_weight.t() if ctx.transposed else of_weight
        if wants_bias:
            # With a dtype, autocast does not make it a sum in float32, which torch's is not.
            of_bias = rows.sum(0, dtype=rows.dtype).to(ctx.bias_dtype)
        return of_x, of_weight, of_bias, None, None, None


@attrs.define(eq=False)
class LowBackward:
    """Computes the products of some weights with a low-precision backward, and counts them.

    Args:
        weights: the weights, with their names.
        multiply: `multiply(a, b, dtype)` returns `a @ b.T`, see `products`.
        min_rows: a product with fewer rows of `x` stays exact.
    """

    weights: dict[nn.Parameter, str]
    multiply: Multiply
    min_rows: int
    low: int = 0
    """Number of products whose backward is in low precision."""
    exact: int = 0
    """Number of products that stayed exact.

    They have too few rows, or a dtype that the kernels do not support.
    """
    met: set[str] = attrs.field(factory=set)
    """Names of the weights that occurred in a product."""

    def __call__(self, product: Product) -> torch.Tensor | None:
        """Compute a product.

        Return None if its weight is not in `weights` or if no backward is needed.
        """
        x, weight, bias = product.x, product.weight, product.bias
        name = self.weights.get(weight)  # type: ignore[call-overload]  # only parameters arrive
        if name is None:
            return None
        self.met.add(name)
        if not torch.is_grad_enabled() or not (x.requires_grad or weight.requires_grad):
            return None
        if not _known(x) or not _known(weight) or product.rows < self.min_rows:
            self.exact += 1
            return None
        self.low += 1
        done: torch.Tensor = _LowBackwardProduct.apply(
            x, weight, bias, product, self.multiply, name
        )  # type: ignore[no-untyped-call]  # torch leaves it so
        return done


def _known(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.dtype in (
        torch.float32,
        torch.bfloat16,
        torch.float16,
    )
