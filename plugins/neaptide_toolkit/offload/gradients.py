"""Norm, factor and layout of the gradients of a model, many small ones together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neaptide.norms import norm_of, on_device, total_norm
from neaptide_toolkit.tensors import laid_out_as

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

ONE = torch.ones((), dtype=torch.float32, device="cpu")
_POWERS = frozenset(2.0**-power for power in range(15))
"""Factors that every dtype of gradients has."""
_SMALL = 1 << 14
"""Elements of a gradient up to which torch's fused check multiplies faster than its product."""


def _nothing_found() -> torch.Tensor:
    """Return `found_inf` of torch's check of gradients: 1 after inf or nan; it is float32."""
    return torch.zeros(1, dtype=torch.float32, device="cpu")


_UNREAD = _nothing_found()


class FiniteCheck:
    """Looks for inf and nan in many gradients on the CPU by one fused call."""

    def __init__(self) -> None:
        self._found = _nothing_found()

    def fails(self, gradients: list[torch.Tensor]) -> bool | None:
        """Return whether a gradient holds inf or nan; None if torch has no such call for them."""
        if False in [gradient.is_cpu for gradient in gradients]:
            return None
        try:
            # The check of torch's GradScaler; it also multiplies by one, which changes no value.
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, self._found, ONE)
        except NotImplementedError:  # sparse and complex gradients
            self._found = _nothing_found()
            return None
        if not self._found.item():
            return False
        self._found = _nothing_found()
        return True


def norm_of_all(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Return the global L2 norm, with the bits of torch's; of float16 gradients in float32."""
    kinds = {(type(each), each.dtype, each.is_cpu, each.is_sparse) for each in gradients}
    if any(dtype is torch.float16 or sparse for _, dtype, _, sparse in kinds):
        return total_norm(list(map(norm_of, gradients)), [each.dtype for each in gradients])
    if [(torch.Tensor, True)] == [(kind, on_cpu) for kind, _, on_cpu, _ in kinds]:
        norms = torch._foreach_norm(gradients)  # noqa: SLF001 - as torch's own, in half the time
        norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
        return norm
    return torch.nn.utils.get_total_norm(gradients)


def scale_all(gradients: list[torch.Tensor], factor: float | torch.Tensor) -> None:
    """Multiply the gradients by `factor`, with fused kernels per device."""
    if _are_small(gradients):
        # The check of torch's GradScaler multiplies in float32, as `_foreach_mul_` does.
        exact = torch.as_tensor(factor, dtype=torch.float32, device="cpu")
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, _UNREAD, exact)
        return
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for gradient in gradients:
        by_device.setdefault(gradient.device, []).append(gradient)
    for device, some in by_device.items():
        # On a CPU torch rounds a number to the dtype of the gradients, but not a tensor.
        number = isinstance(factor, float) and device.type == "cpu" and factor not in _POWERS
        wide = torch.tensor(factor, dtype=torch.float64) if number else factor
        torch._foreach_mul_(some, on_device(wide, device))


def _are_small(gradients: list[torch.Tensor]) -> bool:
    """Return whether these are dense float32 tensors on the CPU, so small that calls cost most."""
    kinds = {(type(each), each.dtype, each.is_cpu, each.is_sparse) for each in gradients}
    plain = kinds == {(torch.Tensor, torch.float32, True, False)}
    return plain and sum(map(torch.numel, gradients)) <= _SMALL * len(gradients)


def lay_out(parameters: Iterable[nn.Parameter]) -> None:
    """Give gradients that were set by hand the strides of their weights; autograd's have them."""
    for parameter in parameters:
        if (gradient := parameter.grad) is not None:
            laid_out = laid_out_as(parameter, gradient)
            if laid_out is not gradient:
                parameter.grad = laid_out
