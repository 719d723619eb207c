"""Restores a module's buffers after a forward that must not change them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn


@contextmanager
def preserved(model: nn.Module) -> Iterator[None]:
    """Restore at the end every buffer of `model` as it was on entry: the object and its values."""
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
                # Through .data, which keeps the version: a graph may have saved the buffer.
                # Every buffer is copied: BatchNorm changes its statistics without a new version.
                buffer.data.copy_(value)
            module._buffers[name] = buffer  # noqa: SLF001 - see above


def _is_expanded(buffer: torch.Tensor) -> bool:
    """Return whether elements share memory, which makes in-place writes impossible."""
    return buffer.layout == torch.strided and any(
        size > 1 and stride == 0 for size, stride in zip(buffer.shape, buffer.stride(), strict=True)
    )
