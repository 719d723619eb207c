"""Restores the buffers of a module after a forward that must not change them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn


@contextmanager
def preserved(model: nn.Module) -> Iterator[None]:
    """When the context ends, restore the tensor objects and values of all buffers of `model`."""
    before = [
        (module, name, buffer, None if _is_expanded(buffer) else buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()  # noqa: SLF001 - to restore the same objects
        if buffer is not None
    ]
    try:
        yield
    finally:
        for module, name, buffer, value in before:
            if value is not None:
                # `.data` leaves the version unchanged: a graph may have saved the buffer. All
                # buffers are copied, because BatchNorm changes a buffer without a new version.
                buffer.data.copy_(value)
            module._buffers[name] = buffer  # noqa: SLF001 - as above


def _is_expanded(buffer: torch.Tensor) -> bool:
    """Return whether elements of `buffer` share memory; torch cannot write in place to them."""
    return buffer.layout == torch.strided and any(
        size > 1 and stride == 0 for size, stride in zip(buffer.shape, buffer.stride(), strict=True)
    )
