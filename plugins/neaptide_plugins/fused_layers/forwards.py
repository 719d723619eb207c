"""The forwards that replace those of a model's layers.

Each runs the model's own code for what the fused ops do not compute: small tensors, mixed dtypes,
transforms of torch.func, and layers whose epsilon or activation is no more that of the start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from neaptide_kernels.gated_unit import gated_unit
from neaptide_kernels.norms import layer_norm, rms_norm
from neaptide_kernels.rope import rope
from neaptide_toolkit.recompute import other_derivative

from .trials import TRIED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from .probing import GatedForm, RmsForm

Forward = Callable[..., torch.Tensor]
"""A method `forward`."""


def rms_forward(own: type[nn.Module], form: RmsForm, least: int) -> Forward:
    """Return the method `forward` of an RMSNorm of a class."""
    by_torch = own.forward is torch.nn.RMSNorm.forward

    def forward(self: Any, *given: Any, **named: Any) -> torch.Tensor:
        x, weight = _only(given, named, form.argument), self.weight
        if (
            not _fits(x, least)
            or not _of_width(weight, x)
            or not (x.dtype == weight.dtype or (form.mixed and weight.dtype == torch.float32))
            or not form.holds(self)
            or (by_torch and _autocasts(x))
        ):
            return own.forward(self, *given, **named)  # type: ignore[no-any-return]  # a module's
        return rms_norm(x, weight, form.eps, form.offset, form.narrow_first)[0]  # type: ignore[no-any-return]  # an op's

    return forward


def layer_forward(own: type[nn.Module], least: int) -> Forward:
    """Return the method `forward` of an `nn.LayerNorm` over one dimension.

    On a CPU it is torch's, which keeps the same.
    """

    def forward(self: Any, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        weight, bias = self.weight, self.bias
        if (
            not _fits(input, least)
            or input.device.type == "cpu"
            or input.shape[-1:] != self.normalized_shape
            or not all(
                each is None or (_of_width(each, input) and each.dtype == input.dtype)
                for each in (weight, bias)
            )
            or _autocasts(input)
        ):
            return own.forward(self, input)  # type: ignore[no-any-return]  # a module's
        return layer_norm(input, weight, bias, self.eps)[0]  # type: ignore[no-any-return]  # an op's

    return forward


def gated_forward(own: type[nn.Module], form: GatedForm, least: int) -> Forward:
    """Return the method `forward` of a gated MLP of a class."""
    activation = form.activation
    assert activation is not None, "a form with its activation"

    def forward(self: Any, *given: Any, **named: Any) -> torch.Tensor:
        x, act = _only(given, named, form.argument), getattr(self, form.act)
        if not isinstance(x, torch.Tensor) or not activation.holds(act) or other_derivative():
            return own.forward(self, *given, **named)  # type: ignore[no-any-return]  # a module's
        gate = getattr(self, form.gate)(x)
        if form.up is None:
            gate, up = gate.chunk(2, dim=-1)
        else:
            up = getattr(self, form.up)(x)
        if gate.dtype != up.dtype or gate.shape != up.shape or not _fits(gate, least):
            hidden = act(gate) * up
        else:
            hidden = gated_unit(gate, up, activation.name)
        down = getattr(self, form.down)
        if form.dropout is not None:
            hidden = _as_t5(getattr(self, form.dropout)(hidden), down)
        return down(hidden)  # type: ignore[no-any-return]  # a module's

    return forward


def _as_t5(hidden: torch.Tensor, down: nn.Module) -> torch.Tensor:
    """Return `hidden` in the dtype of the last weight, as T5's MLP does."""
    weight = down.weight
    other = isinstance(weight, torch.Tensor) and weight.dtype not in {hidden.dtype, torch.int8}
    return hidden.to(weight.dtype) if other else hidden  # type: ignore[arg-type]  # a tensor's


def turned(own: Callable[..., Any], least: int, *, parts: bool) -> Callable[..., Any]:
    """Return what replaces a function `apply_rotary_pos_emb`.

    Args:
        own: the function.
        least: smaller queries are turned by the function itself.
        parts: whether the function also turns parts of vectors.
    """

    def apply_rotary_pos_emb(
        q: torch.Tensor,
        k: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        unsqueeze_dim: int = 1,
    ) -> Any:
        alike = q.dtype == k.dtype == cos.dtype == sin.dtype and q.shape[-1] == k.shape[-1]
        whole = cos.shape[-1] == q.shape[-1]
        constant = not (cos.requires_grad or sin.requires_grad)
        if alike and (whole or parts) and constant and _fits(q, least):
            tables = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
            if all(_broadcasts(table, x) for table in tables for x in (q, k)):
                return rope(q, *tables), rope(k, *tables)
        return own(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)

    return apply_rotary_pos_emb


def _broadcasts(table: torch.Tensor, x: torch.Tensor) -> bool:
    """Return whether a table turns `x` without more rows than `x` has; both have 4 dimensions."""
    return (
        table.dim() == x.dim() == 4  # noqa: PLR2004 - as tried
        and table.device == x.device
        and not table.shape[-1] % 2
        and table.shape[-1] <= x.shape[-1]
        and all(
            size in {1, wanted} for size, wanted in zip(table.shape[:-1], x.shape[:-1], strict=True)
        )
    )


def _only(given: Sequence[Any], named: Mapping[str, Any], name: str) -> Any:
    """Return the only argument of a call; None if there is another number of them."""
    if len(given) + len(named) != 1:
        return None
    return given[0] if given else named.get(name)


def _of_width(weight: Any, x: torch.Tensor) -> bool:
    """Return whether a weight has one number for each of the last dimension of `x`."""
    return (
        isinstance(weight, torch.Tensor)
        and weight.shape == x.shape[-1:]
        and weight.device == x.device
    )


def _fits(x: Any, least: int) -> TypeGuard[torch.Tensor]:
    """Return whether an op computes with `x`, and is worth its call."""
    return (
        isinstance(x, torch.Tensor)
        and x.numel() >= least
        and x.dtype in TRIED
        and not other_derivative()
    )


def _autocasts(x: torch.Tensor) -> bool:
    return torch.is_autocast_enabled(x.device.type)
