"""The rules of autocast on CUDA, for tensors on the CPU, whose own rules are fewer.

The lists are those of `ATen/autocast_mode.h`, less what this version of torch has no rule for.
Where the CPU has a rule for an operation, it stays.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

from .overriding import overridden

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

_KEY = "AutocastCPU"
_HALF = (
    "_convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input "
    "conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot "
    "linear addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell "
    "_thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell "
    "scaled_dot_product_attention"
)
_SINGLE = (
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan "
    "pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm "
    "group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity "
    "poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div "
    "l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss "
    "multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss "
    "binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d "
    "upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d "
    "upsample_trilinear3d upsample_bicubic2d"
)
_SUMS = (
    "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm "
    "linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList"
)
"""Operations that are told to compute in single precision, without a copy of arguments."""


def as_cuda_casts() -> AbstractContextManager[None]:
    """Within this context, autocast on the CPU has the rules of CUDA."""
    rules = {_HALF: _in_half, _SINGLE: _in_single, _SUMS: _told_single}
    found = {
        operation: partial(rule, operation)
        for names, rule in rules.items()
        for operation in map(_operation, names.split())
        if _has_rule(operation, "AutocastCUDA") and not _has_rule(operation, _KEY)
    }
    return overridden(found, _KEY)


def _has_rule(operation: Any, key: str) -> bool:
    has: bool = torch._C._dispatch_has_kernel_for_dispatch_key(operation.name(), key)  # noqa: SLF001
    return has


def _operation(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _in_half(operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    half = torch.get_autocast_dtype("cpu")
    args, kwargs = tree_map(partial(_cast, dtype=half), (args, kwargs))
    return _called(operation, args, kwargs)


def _in_single(operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    args, kwargs = tree_map(partial(_cast, dtype=torch.float32), (args, kwargs))
    return _called(operation, args, kwargs)


def _told_single(operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    args, kwargs = _with_defaults(operation, args, kwargs)
    if _is_castable(args[0]) and kwargs.get("dtype") is None:
        kwargs = {**kwargs, "dtype": torch.float32}
    return _called(operation, args, kwargs)


def _with_defaults(
    operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Name `dtype`, which may be given by its place, as it is in `softmax`."""
    names = [one.name for one in operation._schema.arguments]  # noqa: SLF001 - no public way
    place = names.index("dtype")
    if len(args) > place:
        return args[:place], {**kwargs, **dict(zip(names[place:], args[place:], strict=False))}
    return args, kwargs


def _called(operation: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    below = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)  # noqa: SLF001 - as C++ does
    with torch._C._ExcludeDispatchKeyGuard(below):  # noqa: SLF001
        return operation(*args, **kwargs)


def _is_castable(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.dtype.is_floating_point
        and value.dtype is not torch.float64
    )


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if _is_castable(value) else value
