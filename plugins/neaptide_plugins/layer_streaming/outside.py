"""Explains the error when a block's parameter is used outside the block's forward.

The weights of a streamed block are in RAM there, and torch does not compute with tensors of two
devices.
"""

from __future__ import annotations

import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from neaptide.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import torch

    from .weights.block import Block

_TWO_DEVICES = ("to be on the same device", ") and weight type (")
"""Parts of torch's error texts for an operation with tensors of two devices."""


@contextmanager
def told_outside(blocks: Sequence[Block]) -> Iterator[None]:
    """In a forward, replace torch's error for two devices by one that names the parameter.

    The error stays as it is if no module of `blocks` has raised it.
    """
    try:
        yield
    except RuntimeError as error:
        if not any(text in str(error) for text in _TWO_DEVICES):
            raise
        owners = _owners(blocks)
        found = _called(error, owners)
        if found is None:
            msg = (
                f"two devices meet in loss_fn ({str(error).splitlines()[0]}); outside of their "
                f"block's forward, weights of streamed blocks are in RAM: exclude the blocks whose "
                f"weights loss_fn uses"
            )
            raise ModelError(msg) from error
        raise ModelError(used_outside(found, owners[id(found)])) from error


def check_graph(blocks: Sequence[Block], loss: torch.Tensor) -> None:
    """Raise ModelError if `loss` depends on a streamed parameter outside its block's forward.

    Not for `mode = "graph"`, in which the graph of the loss contains the parameters.
    """
    owners = _owners(blocks)
    found = _in_graph(loss, owners)
    if found is not None:
        raise ModelError(used_outside(found, owners[id(found)]))


def used_outside(parameter: nn.Parameter, block: Block) -> str:
    """Return the error text for a use of a block's parameter outside the block's forward."""
    return (
        f"parameter {_name(parameter, block)!r} of block {block.name!r} is used outside the "
        f"block's forward (by a penalty on weights, a hook, or a direct call of a part of the "
        f"block), which cannot be streamed; set `blocks` to the modules that are called, exclude "
        f"{block.name!r}, or, for a tensor that a hook hands out, set mode = 'graph'"
    )


def check_whole(parameters: Iterable[nn.Parameter], block: Block, own_hooks: int = 0) -> None:
    """Raise ModelError if a user's hook would see a part of a parameter's gradient."""
    for one in parameters:
        hooks = [*(one._backward_hooks or ()), *(one._post_accumulate_grad_hooks or ())]
        if len(hooks) > own_hooks:
            msg = (
                f"a hook on the gradient of parameter {_name(one, block)!r} of block "
                f"{block.name!r} would see a part of it, because several uses of the parameter "
                f"wait for one backward; remove the hook, or exclude the block"
            )
            raise ModelError(msg)


def _name(parameter: nn.Parameter, block: Block) -> str:
    return next(name for name, each in block.module.named_parameters() if each is parameter)


def _owners(blocks: Sequence[Block]) -> dict[int, Block]:
    """Return the block of each parameter, by the parameter's identity."""
    return {id(parameter): block for block in blocks for parameter in block.parameters}


def _called(error: RuntimeError, owners: dict[int, Block]) -> nn.Parameter | None:
    """Return a streamed parameter of the innermost module whose code raised `error`."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module):
            return next((each for each in module.parameters() if id(each) in owners), None)
    return None


def _in_graph(loss: torch.Tensor, owners: dict[int, Block]) -> nn.Parameter | None:
    """Return a parameter that `loss` depends on other than by a block's node, of the last block."""
    waiting: list[Any] = [loss.grad_fn]
    seen = set()
    found: list[nn.Parameter] = []
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) in owners:
            found.append(leaf)
        waiting += [following for following, _ in node.next_functions]
    return max(found, key=lambda parameter: owners[id(parameter)].index, default=None)
