"""How a Triton kernel is launched, written down so that it can be compiled without a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping


@attrs.frozen(kw_only=True)
class ShippedKernel:
    """One kernel with one set of constants: what a launch would compile."""

    name: str
    """Of kernel and case, as the committed budgets have it."""
    module: str
    """`"neaptide_kernels.int8.kernel"`."""
    kernel: str
    types: Mapping[str, str]
    """Triton's type of each argument that is no constant, such as `"*bf16"` or `"i64"`."""
    constants: Mapping[str, Any]
    aligned: tuple[str, ...] = ()
    """Arguments that are multiples of 16, as torch's allocations are."""
    options: Mapping[str, Any] = attrs.field(factory=dict)
    """`num_warps` and the like."""
