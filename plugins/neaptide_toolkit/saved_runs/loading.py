"""Loads the saved weights of a run into its model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neaptide.errors import WrongCheckpointError
from neaptide.run.saved_weights import check_names

from .tensors import buffers_of, weights_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neaptide.checkpoint import Checkpoint

    from .tensors import SavedTensor


def load_weights(model: torch.nn.Module, checkpoint: Checkpoint) -> None:
    """Load all weights and buffers of a checkpoint, one at a time.

    Raises:
        WrongCheckpointError: they are not those of this model, which may be loaded in part.
    """
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    weights, others = weights_of(checkpoint), buffers_of(checkpoint)
    check_names("parameter", weights.keys(), parameters.keys())
    check_names("buffer", others.keys(), buffers.keys())
    _load(parameters, weights)
    _load(buffers, others)


def _load(into: Mapping[str, torch.Tensor], saved: Mapping[str, SavedTensor]) -> None:
    for name, tensor in into.items():
        one = saved[name]
        if (one.dtype, one.shape) != (tensor.dtype, tuple(tensor.shape)):
            msg = (
                f"{name!r} is {one.dtype} {list(one.shape)} in the checkpoint but "
                f"{tensor.dtype} {list(tensor.shape)} in the model; build it the same way"
            )
            raise WrongCheckpointError(msg)
        with torch.no_grad():
            tensor.copy_(one.read())
