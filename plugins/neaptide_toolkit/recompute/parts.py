"""The modules of a block, found at each call and therefore fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def parts_of(module: nn.Module) -> list[nn.Module]:
    """Return `list(module.modules())`, several times faster."""
    found: dict[nn.Module, None] = {}
    waiting = [module]
    while waiting:
        part = waiting.pop()
        if part not in found:
            found[part] = None
            inside = part._modules
            if inside:
                waiting += [one for one in reversed(inside.values()) if one is not None]
    return list(found)
