"""Tells whether a model keeps the documents of a packed sample apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide.targets import IGNORED

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

_FIRST, _SECOND = 7, 9
"""Tokens of the two documents of the sample that is tried."""
_SHARE, _EPSILONS = 0.1, 32
"""A change is rounding if it is below this share of the change in a joined text, and below as many
times the precision of the largest logit."""


def keeps_apart(
    model: nn.Module, probe: Callable[[Any], float], vocabulary: int, device: torch.device
) -> bool:
    """Return whether `position_ids` that begin again keep a document from seeing the one before.

    The model runs on two documents, and with another first one. If the logits of the second are
    the same bits, it saw nothing. Else the change may be rounding, which in a mixture of experts
    depends on all tokens. Then it is small, also beside the change in a text in which both are one
    document.

    Args:
        model: what is called; it has a forward hook during the call.
        probe: runs the model on a batch, in eval mode and without gradients.
        vocabulary: ids of tokens are below it.
        device: where batches belong.
    """
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocabulary, (1, _FIRST + _SECOND), generator=generator)
    other = ids.clone()
    other[:, :_FIRST] = (ids[:, :_FIRST] + vocabulary // 2) % vocabulary
    apart = torch.cat([torch.arange(_FIRST), torch.arange(_SECOND)])[None]
    joined = torch.arange(_FIRST + _SECOND)[None]

    def change(positions: Tensor) -> tuple[float, float]:
        """Return the change, and what of it may be rounding."""
        one, two = (_seen(model, probe, given, positions, device) for given in (ids, other))
        dtypes = one.dtype, next(model.parameters()).dtype
        precision = max(torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point)
        largest = float(one.abs().max())
        return float((one - two).abs().max()), _EPSILONS * precision * largest

    seen, rounding = change(apart)
    return seen == 0.0 or (seen < rounding and seen < _SHARE * change(joined)[0])


def _seen(
    model: nn.Module,
    probe: Callable[[Any], float],
    ids: Tensor,
    positions: Tensor,
    device: torch.device,
) -> Tensor:
    """Return the logits of the second document, or its loss if the model returns no logits."""
    labels = ids.clone()
    labels[:, : _FIRST + 1] = IGNORED
    batch = {"input_ids": ids, "labels": labels, "position_ids": positions}
    caught: list[Tensor] = []

    def note(_module: nn.Module, _inputs: Any, output: Any) -> None:
        logits = getattr(output, "logits", None)
        if isinstance(logits, torch.Tensor):
            caught.append(logits[:, _FIRST:].detach())

    handle = model.register_forward_hook(note)
    try:
        loss = probe({name: values.to(device) for name, values in batch.items()})
    finally:
        handle.remove()
    return caught[-1] if caught else torch.tensor(loss)
