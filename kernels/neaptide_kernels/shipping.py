"""The launches of Triton kernels as data, so that they can be compiled without a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping


@attrs.frozen(kw_only=True)
class ShippedKernel:
    """One kernel with one set of constants, as a launch would compile it."""

    name: str
    """Name of kernel and case, as in the committed budgets."""
    module: str
    """`"neaptide_kernels.int8.kernel"`."""
    kernel: str
    types: Mapping[str, str]
    """Triton type of each argument that is not a constant, such as `"*bf16"` or `"i64"`."""
    constants: Mapping[str, Any]
    aligned: tuple[str, ...] = ()
    """Arguments divisible by 16, such as addresses of torch's allocations."""
    options: Mapping[str, Any] = attrs.field(factory=dict)
    """Launch options such as `num_warps`."""
