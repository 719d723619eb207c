"""Finds the 16-bit copies that autocast makes of leaves, such as parameters outside of all blocks.

Under one autocast context a leaf is cast once for all its reads, inside and outside of blocks.
Autograd adds the 16-bit gradients of these reads and casts only their sum. So a block returns its
terms to the node of this cast, and not to the leaf.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..updates.casts import hidden

if TYPE_CHECKING:
    from collections.abc import Sequence


def casts_of_leaves(tensors: Sequence[torch.Tensor], kind: str) -> dict[int, torch.Tensor]:
    """Return the present autocast context's copies of those tensors that are leaves, by index."""
    return {
        index: found
        for index, tensor in enumerate(tensors)
        if (found := _cast(tensor, kind)) is not None
    }


def _cast(tensor: torch.Tensor, kind: str) -> torch.Tensor | None:
    if not (tensor.is_leaf and tensor.requires_grad and tensor.dtype == torch.float32):
        return None
    if tensor.ndim == 0 or tensor.device.type != kind:
        return None
    lower = torch.get_autocast_dtype(kind)
    if lower not in {torch.bfloat16, torch.float16}:  # the context is switched off
        return None
    with hidden(), torch.enable_grad(), torch.autocast(kind, lower):
        # The product has no elements. Its node saves the copy, which has no other public name.
        width, is_vector = tensor.shape[-1], tensor.ndim == 1
        shape = (0, width) if is_vector else (width, 0)
        nothing = torch.empty(shape, dtype=lower, device=tensor.device, requires_grad=True)
        product = torch.matmul(nothing, tensor) if is_vector else torch.matmul(tensor, nothing)
        node: Any = product.grad_fn
        saved = "_saved_vec" if is_vector else "_saved_self"
        while node is not None and not hasattr(node, saved):
            node = node.next_functions[0][0]
        found: torch.Tensor | None = None if node is None else getattr(node, saved)
    if found is not None and found._base is not None:
        found = found._base  # a view would be a node of its own, and so add up its own terms
    is_cast = found is not None and found.dtype == lower and found.shape == tensor.shape
    return found if is_cast else None
