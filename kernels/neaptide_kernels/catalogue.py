"""All ops of Neaptide. The import of this module defines all ops and does not import Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import (
    adam8bit,
    adamw_split,
    apply_delta,
    attention,
    chunked_cross_entropy,
    encode_state,
    gated_unit,
    int8,
    lion,
    lion8bit,
    norms,
    rope,
    rssm_rollout,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .registry import Provider
    from .shipping import ShippedKernel

_FOLDERS = (
    adam8bit,
    adamw_split,
    apply_delta,
    attention,
    chunked_cross_entropy,
    encode_state,
    gated_unit,
    int8,
    lion,
    lion8bit,
    norms,
    rope,
    rssm_rollout,
)


def triton_providers() -> tuple[Provider, ...]:
    """Return the Triton provider of every op that has one."""
    return tuple(provider for folder in _FOLDERS for provider in folder.TRITON)


def shipped() -> Iterator[ShippedKernel]:
    """Yield a description of every kernel launch, to compile the kernels without a GPU."""
    for folder in _FOLDERS:
        yield from folder.shipped()
