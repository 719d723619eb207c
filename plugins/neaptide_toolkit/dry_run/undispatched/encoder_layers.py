"""Layers of a transformer's encoder in evaluation, which PyTorch computes in one operation."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_FUSED = "aten::_transformer_encoder_layer_fwd"


@contextmanager
def encoder_layers_in_parts() -> Iterator[None]:
    """Within this context a layer does several operations if this PyTorch has no shapes of the one.

    PyTorch 2.11 has none.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    has_shapes = torch._C._dispatch_has_kernel_for_dispatch_key(_FUSED, "Meta")  # noqa: SLF001 - no public way
    torch.backends.mha.set_fastpath_enabled(before and has_shapes)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
