"""Providers that call the kernels of Liger (`pip install liger-kernel`), where it is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .registry import Provider
from .support import installed, no_triton

if TYPE_CHECKING:
    import torch

    from .registry import Query, Support

_GATED = {"silu": "swiglu", "gelu_tanh": "geglu"}
_WIDEST = 65_536
_LLAMA, _GEMMA = 0, 1
"""Numbers of Liger's casting modes: round before the product with the weight, or after it."""


def liger_version() -> str | None:
    """Return the version of the installed Liger, or None."""
    return installed("liger-kernel")


def _supports(query: Query) -> Support:
    if liger_version() is None:
        return "Liger is not installed: pip install liger-kernel"
    reason = no_triton(query)
    if reason:
        return reason
    dtypes = {facts.dtype for name, facts in query.tensors if facts is not None and name != "rstd"}
    if len(dtypes) > 1 or any(dtype.itemsize > 4 for dtype in dtypes if dtype):  # noqa: PLR2004 - float64
        return "Liger's kernels are used for tensors of one dtype, not float64"
    largest = query[query.tensors[0][0]]
    if not largest.elements:
        return "there are no elements"
    if largest.shape[-1] > _WIDEST // 4:
        return f"rows of more than {_WIDEST // 4} elements are left to torch"
    name = dict(query.options).get("activation")
    return name is None or name in _GATED or f"Liger has no gated unit with {name!r}"


def _rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    offset: float = 0.0,
    narrow_first: bool = False,  # noqa: FBT001, FBT002 - the op's
) -> tuple[torch.Tensor, torch.Tensor]:
    from liger_kernel.ops.rms_norm import rms_norm_forward  # noqa: PLC0415 - where it is installed

    y, _, rstd, *_ = rms_norm_forward(
        x.contiguous(), _dense(weight), eps, offset, _LLAMA if narrow_first else _GEMMA, False
    )
    return y, rstd.view(x.shape[:-1])


def _rms_norm_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    rstd: torch.Tensor,
    offset: float = 0.0,
    narrow_first: bool = False,  # noqa: FBT001, FBT002 - the op's
    for_weight: bool = True,  # noqa: FBT001, FBT002 - the op's
) -> tuple[torch.Tensor, torch.Tensor]:
    from liger_kernel.ops.rms_norm import rms_norm_backward  # noqa: PLC0415 - as above
    from liger_kernel.ops.utils import calculate_settings  # noqa: PLC0415 - where it is installed

    width = x.shape[-1]
    of_x, of_weight = rms_norm_backward(
        gradient.contiguous(), x.contiguous().view(-1, width), _dense(weight),
        rstd.contiguous().view(-1), offset, _LLAMA if narrow_first else _GEMMA,
        *calculate_settings(width), False, False,
    )  # fmt: skip
    empty = x.new_empty(0)
    return of_x, of_weight if for_weight and of_weight is not None else empty


def _gated_unit(gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
    y: torch.Tensor = _gated_module(activation, "forward")(gate.contiguous(), up.contiguous())[2]
    return y


def _gated_unit_backward(
    gradient: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: str
) -> tuple[torch.Tensor, torch.Tensor]:
    # Liger overwrites its inputs with their gradients.
    of_gate, of_up = (
        each.clone(memory_format=_contiguous()).view(-1, each.shape[-1]) for each in (gate, up)
    )
    results = _gated_module(activation, "backward")(of_gate, of_up, gradient.contiguous())
    return results[0], results[1]


def _gated_module(activation: str, which: str) -> Any:
    from importlib import import_module  # noqa: PLC0415 - where Liger is installed

    kind = _GATED[activation]
    return getattr(import_module(f"liger_kernel.ops.{kind}"), f"{kind}_{which}")


def _contiguous() -> torch.memory_format:
    import torch  # noqa: PLC0415 - the module is read without it

    return torch.contiguous_format


def _dense(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.contiguous()


LIGER = tuple(
    Provider(
        op=op,
        name="liger",
        run=run,
        supports=_supports,
        priority=8,
        version=f"{liger_version()}/1",
    )
    for op, run in (
        ("rms_norm", _rms_norm),
        ("rms_norm_backward", _rms_norm_backward),
        ("gated_unit", _gated_unit),
        ("gated_unit_backward", _gated_unit_backward),
    )
)
"""Providers that the plugin `fused-layers` adds to a run."""
