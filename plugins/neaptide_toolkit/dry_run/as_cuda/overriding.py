"""Operations of PyTorch on the CPU that are others for a while."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


@contextmanager
def overridden(operations: Mapping[Any, Callable[..., Any]], key: str) -> Iterator[None]:
    """Within this context, a call of an operation calls the function beside it.

    Args:
        operations: for example `torch.ops.aten.dropout.default`.
        key: the dispatch key at which they are replaced. `AutogradCPU` takes all calls with tensors
            on the CPU, outside of `torch.inference_mode`.
    """
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for operation, own in operations.items():
        name = operation.name().removeprefix("aten::")
        library.impl(name, own, key, allow_override=True)  # torch 2.11 must be told
    try:
        yield
    finally:
        library._destroy()  # noqa: SLF001 - PyTorch has no public way
