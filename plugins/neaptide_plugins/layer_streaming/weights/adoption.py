"""Adopts the tensors that the user has assigned to parameters (`p.data = …`).

The memory that a parameter leaves belongs to the tensors that still view it, and a kept tensor that
was assigned is the parameter's memory from now on, as in plain PyTorch. So such weights stay where
the user has put them. Weights that nobody else can see are copied to their block's host buffer.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from neaptide.errors import ModelError
from neaptide_toolkit.offload import users

from .storages import where

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import nn

    from .block import Block

DATA: Any = torch.Tensor.data
"""`.data` of a parameter, whose use does not count as done by other code."""


@torch.inference_mode(mode=False)  # an inference tensor could not be written later
@torch.no_grad()
def adopted(
    blocks: Sequence[Block], outside: Callable[[], Iterable[torch.Tensor]] = tuple
) -> list[Block]:
    """Take over the tensors that are assigned to parameters of blocks that are not in use.

    Return the blocks that have such parameters. A tensor on another device is copied to the host.

    Args:
        blocks: all blocks.
        outside: returns the tensors of the model that are in no block.

    Raises:
        ModelError: such a tensor has another shape, dtype or order in memory (kernels sum in an
            order that depends on the strides), or shares its memory with another tensor of the
            model.
    """
    idle = [block for block in blocks if not block.users]
    assigned = [block for block in idle if _moved(block)]
    concerned = [block for block in idle if block.apart or block in assigned]
    if not concerned:
        return []
    if assigned:
        for block in assigned:
            _check_kinds(block)
        _check_shared(blocks, assigned, outside())
    for block in concerned:
        block.settle()
    for block in assigned:
        _take(block)
    for block in concerned:
        _bring_home(block, blocks)
    return assigned


def _moved(block: Block) -> list[int]:
    """Return the indices of the parameters whose tensors are not the block's."""
    both = enumerate(zip(block.parameters, block.views, strict=True))
    return [
        place
        for place, (parameter, view) in both
        if parameter.dtype != view.dtype or where(parameter) != block.places[place]
    ]


def _take(block: Block) -> None:
    for place in _moved(block):
        parameter, home = block.parameters[place], block.homes[place]
        block.apart.discard(place)
        if where(parameter) == where(home):
            block.put(place, home)
            continue
        block.apart.add(place)
        given = DATA.__get__(parameter)
        if given.device != home.device:
            given = torch.empty_like(home).copy_(given)
            DATA.__set__(parameter, given)
        block.put(place, given)


def _bring_home(block: Block, blocks: Sequence[Block]) -> None:
    """Copy to the host buffer what nobody else sees, if nobody sees what it overwrites."""
    if not block.apart:
        return
    known: Counter[int] = Counter()
    for one in blocks:
        known.update(_storage(parameter) for parameter in one.parameters)
        known.update(_storage(one.views[place]) for place in one.apart)
    hosts = {_storage(one.host) for one in blocks}
    of_views = Counter(_storage(one.views[place]) for one in blocks for place in one.apart)
    own = block.own_users + known[_storage(block.host)]
    if of_views[_storage(block.host)] or users(block.host.untyped_storage()) > own:
        return
    for place in sorted(block.apart):
        view, home = block.views[place], block.homes[place]
        storage = view.untyped_storage()
        seen = storage.is_shared() or users(storage) > known[_storage(view)]
        if seen or _storage(view) in hosts:
            continue
        home.copy_(view)
        block.put(place, home)
        DATA.__set__(block.parameters[place], home)
        block.apart.discard(place)


def _check_kinds(block: Block) -> None:
    for parameter, home in zip(block.parameters, block.homes, strict=True):
        if _kind(parameter) != _kind(home):
            msg = (
                f"parameter {_name(block, parameter)!r} of streamed block {block.name!r} is now "
                f"{_kind(parameter)}, and was {_kind(home)}: a streamed weight keeps its "
                "shape, dtype and strides; close the trainer before such a change, and make a "
                "new one"
            )
            raise ModelError(msg)


def _check_shared(
    blocks: Sequence[Block], assigned: Sequence[Block], outside: Iterable[torch.Tensor]
) -> None:
    """Raise ModelError if the memory of an assigned tensor is that of another tensor, too."""
    ranges = [_range(tensor) for tensor in outside if _has_memory(tensor)]
    streamed: dict[tuple[str, int, int, int], tuple[Block, nn.Parameter]] = {}
    for block in blocks:
        for parameter, view in zip(block.parameters, block.views, strict=True):
            if view.numel():
                one = _range(view if block.users else parameter)
                ranges.append(one)
                streamed[one] = (block, parameter)
    moved = {id(block) for block in assigned}
    last = None
    for one in sorted(ranges):
        if last is not None and one[0] == last[0] and one[1] < last[2]:
            found = [streamed[each] for each in (one, last) if each in streamed]
            found = [each for each in found if id(each[0]) in moved] or found
            if found:
                block, parameter = found[0]
                msg = (
                    f"parameter {_name(block, parameter)!r} of streamed block {block.name!r} has "
                    f"been given memory of another tensor of the model by `.data`; assign a clone, "
                    f"or tie the weights before the trainer is made"
                )
                raise ModelError(msg)
        last = one if last is None or one[0] != last[0] or one[2] > last[2] else last


def _range(tensor: torch.Tensor) -> tuple[str, int, int, int]:
    """Return the device, the first and the last address (exclusive), and which tensor it is."""
    start = tensor.data_ptr()
    both = zip(tensor.shape, tensor.stride(), strict=True)
    count = 1 + sum((size - 1) * stride for size, stride in both)
    return str(tensor.device), start, start + count * tensor.element_size(), id(tensor)


def _has_memory(tensor: torch.Tensor) -> bool:
    if tensor.layout != torch.strided or tensor.is_meta or not tensor.numel():
        return False
    try:
        return tensor.untyped_storage().nbytes() > 0
    except RuntimeError:  # a wrapper has no storage
        return False


def _storage(tensor: torch.Tensor) -> int:
    identity: int = tensor.untyped_storage()._cdata  # equal for all Python objects of a storage
    return identity


def _kind(tensor: torch.Tensor) -> str:
    dtype, shape = str(tensor.dtype).removeprefix("torch."), list(tensor.shape)
    sizes = zip(shape, tensor.stride(), strict=True) if tensor.numel() else ()
    strides = [stride for size, stride in sizes if size > 1]  # others mean nothing
    return f"{dtype} of shape {shape} and strides {strides}"


def _name(block: Block, parameter: nn.Parameter) -> str:
    return next(name for name, one in block.module.named_parameters() if one is parameter)
