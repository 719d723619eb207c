"""State dicts for writers that take two tensors in one storage for the same weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def unshared(
    state: Mapping[str, Any], copied: Callable[[torch.Tensor], torch.Tensor] = torch.clone
) -> dict[str, Any]:
    """Return `state` with a copy of each tensor that has only a part of its storage.

    A streamed block is one storage. Tied weights, which are the same part, share one copy.
    """
    copies: dict[Any, torch.Tensor] = {}

    def alone(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        storage = value.untyped_storage()
        if storage.nbytes() <= value.nbytes:
            return value
        key = value.data_ptr(), value.dtype, value.shape, value.stride()
        if key not in copies:
            copies[key] = copied(value)
        return copies[key]

    return {name: alone(value) for name, value in state.items()}
