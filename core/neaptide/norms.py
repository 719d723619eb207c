"""Norms and scales of gradients, with the bits of `torch.nn.utils.clip_grad_norm_`.

The exception is float16: torch's norm above 65,504 is infinite. Here it is float32.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

from .devices import widest

_LEAST = 1e-15  # if a norm in float32 is less, or inf, float32 may not have held the squares


def total_norm(norms: list[torch.Tensor], dtypes: list[torch.dtype]) -> torch.Tensor:
    """Return the L2 norm of `norms` (0-dim), on the device of the first; zero if there is none.

    `dtypes` are those of the gradients: torch adds up one dtype after the other.
    """
    if not norms:
        return torch.zeros(())
    like: Any = [torch.empty(0, dtype=dtype) for dtype in dtypes]
    groups = _group_tensors_by_device_and_dtype([like], with_indices=True).values()
    ordered = [norms[index].to(norms[0].device) for _, indices in groups for index in indices]
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(ordered))
    return total


def gradient_norm(store: Any, on: torch.device | None = None) -> torch.Tensor:
    """Return the global L2 norm of a store's gradients, 0-dim; zero without gradients.

    With a device `on` it has the bits of a norm that is computed there, from copies.
    """
    norms, dtypes = [], []
    places = {name: place for place, name in enumerate(store.parameters)}
    for span in sorted(store.spans(), key=lambda span: places[span.name]):
        if store.has_gradient(span):
            with store.loan(span, "read", of="gradient", on=on) as gradient:
                norms.append(norm_of(gradient))
                dtypes.append(gradient.dtype)
    return total_norm(norms, dtypes)


def norm_of(gradient: torch.Tensor) -> torch.Tensor:
    """Return the L2 norm of a dense or sparse gradient, 0-dim, as `get_total_norm` computes it."""
    # Entries of a sparse gradient with the same index must be summed first.
    dense = gradient.coalesce().values() if gradient.is_sparse else gradient
    wider = torch.float32 if dense.dtype == torch.float16 else None
    # On a GPU `vector_norm` adds in another order.
    return torch._foreach_norm([dense], 2.0, wider)[0]  # noqa: SLF001 - as torch's own


def long_norm(tensor: torch.Tensor) -> float:
    """Return the L2 norm of a dense tensor, to 5 digits: one long float32 sum would have 3."""
    wide, norm = widest(tensor.device), 0.0
    if tensor.is_contiguous() and tensor.dtype == torch.float32:
        parts = torch._foreach_norm(torch.split(tensor.view(-1), 1 << 15))  # noqa: SLF001 - as torch's own
        norm = float(torch.linalg.vector_norm(torch.stack(parts), dtype=wide))
    if not _LEAST < norm < math.inf:
        norm = float(torch.linalg.vector_norm(tensor, dtype=wide))
    return norm


def on_device(factor: float | torch.Tensor, device: torch.device) -> Any:
    """Return `factor`; if it is a tensor, first move it to `device`."""
    return factor.to(device) if isinstance(factor, torch.Tensor) else factor


def all_finite(store: Any) -> bool:
    """Return whether each gradient of a store is finite; their norm may overflow even so."""
    for span in filter(store.has_gradient, store.spans()):
        with store.loan(span, "read", of="gradient") as gradient:
            values = gradient.coalesce().values() if gradient.is_sparse else gradient
            if not torch.isfinite(values).all():
                return False
    return True
