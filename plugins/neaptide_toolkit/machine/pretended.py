"""Another machine than this one, for code that asks what it runs on, such as a plan."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

_pretended: ContextVar[str | None] = ContextVar("pretended", default=None)
_ram: ContextVar[int | None] = ContextVar("ram", default=None)


@contextmanager
def as_if(kind: str) -> Iterator[None]:
    """Within this context the device is a `kind`, such as `cuda`, and no memory is known."""
    token = _pretended.set(kind)
    try:
        yield
    finally:
        _pretended.reset(token)


@contextmanager
def with_ram(nbytes: int | None) -> Iterator[None]:
    """Within this context, `ram_of` returns `nbytes`, for code that chooses what stays in RAM."""
    token = _ram.set(nbytes)
    try:
        yield
    finally:
        _ram.reset(token)


def ram_of() -> int | None:
    """Return the bytes of RAM of the pretended machine; None if they are unknown."""
    return _ram.get()


def kind_of(device: torch.device) -> str:
    """Return the kind of a device: of the pretended machine's, if there is one."""
    return _pretended.get() or device.type


def is_pretended() -> bool:
    """Return whether the memory of this machine says nothing."""
    return _pretended.get() is not None
