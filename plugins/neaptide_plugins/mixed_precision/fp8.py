"""Products with weights in fp8 (e4m3, one scale per tensor). Their backward runs in bf16."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide_toolkit.low_precision import fp8_product, not_a_view, refuse_second_derivative

if TYPE_CHECKING:
    from torch import nn

    from neaptide_toolkit.low_precision import Product


class _Fp8Linear(torch.autograd.Function):
    """Computes a product in fp8. The backward of the product is computed in `dtype`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        transposed: bool,  # noqa: FBT001 - apply takes no names
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """Return `x @ weight.T + bias`, or `x @ weight + bias` if `transposed`, in `dtype`."""
        ctx.transposed, ctx.x_dtype = transposed, x.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        lowered = x.to(dtype)
        ctx.save_for_backward(lowered, weight)
        rows = lowered.reshape(-1, x.shape[-1])
        product = fp8_product(rows, weight.t() if transposed else weight, out_dtype=dtype)
        if bias is not None:
            product += bias.to(dtype)
        return not_a_view(product.view(*x.shape[:-1], product.shape[-1]))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of x, weight and bias."""
        refuse_second_derivative("a product in fp8")
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        rows, inputs = gradient.reshape(-1, gradient.shape[-1]), x.reshape(-1, x.shape[-1])
        of_x = of_weight = of_bias = None
        if wants_x:
            lowered = weight.to(gradient.dtype)
            of_x = rows @ (lowered.t() if ctx.transposed else lowered)
            of_x = of_x.view(x.shape).to(ctx.x_dtype)
        if wants_weight:
            of_weight = inputs.t() @ rows if ctx.transposed else rows.t() @ inputs
            of_weight = of_weight.to(weight.dtype)
        if wants_bias:
            of_bias = rows.sum(0).to(ctx.bias_dtype)
        return of_x, of_weight, of_bias, None, None


@attrs.define(eq=False)
class Fp8Products:
    """Computes products of some weights in fp8 inside autocast to `dtype`, and counts them."""

    weights: dict[nn.Parameter, str]
    dtype: torch.dtype
    done: int = 0

    def __call__(self, product: Product) -> torch.Tensor | None:
        """Compute a product in fp8. Return None if the product must not be computed in fp8."""
        x = product.x
        if (
            product.weight not in self.weights
            or not product.rows
            or x.layout != torch.strided
            or torch.float64
            in (
                x.dtype,
                product.weight.dtype,
            )  # autocast does not cast float64 either
            or not torch.is_autocast_enabled(x.device.type)
            or torch.get_autocast_dtype(x.device.type) is not self.dtype
        ):
            return None
        self.done += 1
        done: torch.Tensor = _Fp8Linear.apply(  # type: ignore[no-untyped-call]  # torch leaves it so
            x, product.weight, product.bias, product.transposed, self.dtype
        )
        return done
