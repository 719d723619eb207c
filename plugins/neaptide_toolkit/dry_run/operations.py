"""What operations of PyTorch's dispatcher do, by their names and schemas."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from neaptide_toolkit.tensors import nested_tensors

from .bounds import has_mask

_ALIASING = {
    torch.ops.aten._unsafe_view.default,  # noqa: SLF001 - PyTorch's own name
    torch.ops.aten.unsafe_split.Tensor,
    torch.ops.aten.unsafe_split_with_sizes.default,
}
"""Views that are not said to be views."""


def has_size_by_value(func: Any, args: tuple[Any, ...]) -> bool:
    """Return whether the size of what an operation makes depends on the values of its arguments."""
    return has_mask(func, args) or (
        torch.Tag.dynamic_output_shape in func.tags and func is not torch.ops.aten.index.Tensor
    )


@cache
def is_composed(func: Any) -> bool:
    """Return whether PyTorch composes an operation of others, which autograd does before a mode.

    Some operations, such as the derivative of `silu`, are composed on devices without a kernel.
    """

    def has(key: torch._C.DispatchKey) -> bool:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))  # noqa: SLF001

    keys = torch._C.DispatchKey  # noqa: SLF001
    return has(keys.CompositeImplicitAutograd) and not has(keys.CPU)


@cache
def kind_of(func: Any) -> str:
    """Return what an operation does: `view`, `tells`, `changes`, `makes`, or `both` of these."""
    if func.is_view or func in _ALIASING or torch.Tag.inplace_view in func.tags:
        return "view"
    schema = func._schema  # noqa: SLF001 - the public way to it does not exist
    if schema.returns and not any("Tensor" in str(one.type) for one in schema.returns):
        return "tells"
    if not any(one.alias_info and one.alias_info.is_write for one in schema.arguments):
        return "makes"
    fresh = any(one.alias_info is None for one in schema.returns)
    return "both" if fresh else "changes"


def changed_by(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return all tensors that an operation writes to."""
    return nested_tensors(_targets(func, args, kwargs))


def returned_by(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the arguments that an operation changes and returns."""
    wanted = len(func._schema.returns)  # noqa: SLF001
    if not wanted:
        return None
    values = _targets(func, args, kwargs)
    return values[0] if wanted == 1 else tuple(values[:wanted])


def _targets(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    named = _written(func)
    values = [args[place] for place, _ in named if place < len(args)]
    return values + [kwargs[name] for _, name in named if name in kwargs]


@cache
def _written(func: Any) -> list[tuple[int, str]]:
    return [
        (place, one.name)
        for place, one in enumerate(func._schema.arguments)  # noqa: SLF001
        if one.alias_info and one.alias_info.is_write
    ]
