"""Training in which dropout drops nothing: other micro-batches would draw other masks."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Iterator

_MODULES = nn.modules.dropout._DropoutNd  # noqa: SLF001 - their common base
_DROPOUTS = {
    functional.dropout,
    functional.dropout1d,
    functional.dropout2d,
    functional.dropout3d,
    functional.alpha_dropout,
    functional.feature_alpha_dropout,
    torch.dropout,
    torch.dropout_,
    torch.alpha_dropout,
    torch.alpha_dropout_,
    torch.feature_dropout,
    torch.feature_dropout_,
    torch.feature_alpha_dropout,
    torch.feature_alpha_dropout_,
    torch.native_dropout,
}
"""Their second argument `p` is the share that is dropped."""
_ATTENTION = functional.scaled_dot_product_attention
_DROPOUT_P = 4


class _Dropless(TorchFunctionMode):
    """Calls functions of dropout with a share of 0."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in _DROPOUTS:
            if len(args) > 1:
                args = (args[0], 0.0, *args[2:])
            else:
                kwargs["p"] = 0.0
        elif func is _ATTENTION:
            if len(args) > _DROPOUT_P:
                args = (*args[:_DROPOUT_P], 0.0, *args[_DROPOUT_P + 1 :])
            else:
                kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)


@contextmanager
def dropless(model: nn.Module) -> Iterator[None]:
    """Within this context, modules and functions of dropout drop nothing.

    Args:
        model: its modules keep a share of 0.
    """
    for module in model.modules():
        if isinstance(module, _MODULES):
            module.p = 0.0
        elif isinstance(module, nn.RNNBase | nn.MultiheadAttention):
            module.dropout = 0.0
    with _Dropless():
        yield
