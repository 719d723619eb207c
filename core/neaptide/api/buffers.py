"""A module's buffers, left as they were by a forward that is not to count."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn


@contextmanager
def preserved(model: nn.Module) -> Iterator[None]:
    """Put back every buffer of `model` as it was on entry: the object and its values."""
    before = [
        (module, name, buffer, None if _is_expanded(buffer) else buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()  # noqa: SLF001 - to put the very objects back
        if buffer is not None
    ]
    try:
        yield
    finally:
        for module, name, buffer, value in before:
            if value is not None:
                # Through .data: a graph that has saved the buffer must not take it for changed.
                # Nor can its version tell whether it was: BatchNorm's statistics do not count it.
                buffer.data.copy_(value)
            module._buffers[name] = buffer  # noqa: SLF001 - see above


def _is_expanded(buffer: torch.Tensor) -> bool:
    """Return whether elements share memory, so that nothing can write in place."""
    return buffer.layout == torch.strided and any(
        size > 1 and stride == 0 for size, stride in zip(buffer.shape, buffer.stride(), strict=True)
    )
