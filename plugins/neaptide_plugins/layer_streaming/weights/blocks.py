"""Finds the parameters that stream.

A parameter streams if only blocks use it. The first block that uses a parameter owns the parameter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neaptide_toolkit.offload import BufferLayout

from .block import Block
from .loading import put

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from .loading import Fill


def make_blocks(
    model: nn.Module,
    named: Sequence[tuple[str, nn.Module]],
    allocate: Callable[[int], torch.Tensor],
    fill: Fill,
) -> list[Block]:
    """Move the blocks' parameters into flat buffers on the host, one block after the other.

    A parameter that a module outside of the blocks also uses is not moved. A moved parameter has a
    new storage and stays the same object.

    Args:
        model: the whole model.
        named: qualified name and module of each block; no block contains another.
        allocate: `allocate(bytes)` returns a uint8 tensor on the host.
        fill: `fill(parameter, place)` writes the parameter's values to the tensor `place`.

    Raises:
        ValueError: a block contains another block, or a parameter's storage cannot be moved.
    """
    outside = parameters_outside(model, [module for _, module in named])
    owned = owned_parameters(named, outside)
    owners: dict[nn.Parameter, Block] = {}
    blocks = []
    for index, ((name, module), own) in enumerate(zip(named, owned, strict=True)):
        for parameter in own:
            _check(name, module, parameter)
        layout = BufferLayout.of(own)
        host = allocate(layout.bytes)
        views = layout.views(host)
        block = Block(index, name, module, own, layout, host, views)
        for parameter, view in zip(own, views, strict=True):
            fill(parameter, view)
            put(parameter, view)
        owners.update(dict.fromkeys(own, block))
        used = [owners[parameter] for parameter in module.parameters() if parameter in owners]
        block.needs = list(dict.fromkeys([block, *used]))
        blocks.append(block)
    return blocks


def owned_parameters(
    named: Sequence[tuple[str, nn.Module]], outside: set[nn.Parameter]
) -> list[list[nn.Parameter]]:
    """Return, for each block, its parameters that are not in `outside` or in earlier blocks."""
    seen = set(outside)
    owned = []
    for _, module in named:
        own = [parameter for parameter in module.parameters() if parameter not in seen]
        seen.update(own)
        owned.append(own)
    return owned


def parameters_outside(model: nn.Module, blocks: Sequence[nn.Module]) -> set[nn.Parameter]:
    """Return the parameters that belong directly to a module outside of the blocks.

    Raises ValueError if a block contains another block.
    """
    chosen = {id(block) for block in blocks}
    inside: set[int] = set()
    for block in blocks:
        for name, module in block.named_modules():
            if module is not block and id(module) in chosen:
                msg = f"a block contains another one, as its {name!r}; choose blocks of one level"
                raise ValueError(msg)
            inside.add(id(module))
    return {
        parameter
        for module in model.modules()
        if id(module) not in inside
        for parameter in module._parameters.values()
        if parameter is not None
    }


def tensors_outside(model: nn.Module, blocks: Sequence[Block]) -> list[torch.Tensor]:
    """Return the parameters and buffers of the model that do not stream."""
    streamed = {id(parameter) for block in blocks for parameter in block.parameters}
    return [one for one in (*model.parameters(), *model.buffers()) if id(one) not in streamed]


def owners_of(blocks: Sequence[Block]) -> dict[nn.Parameter, tuple[Block, int]]:
    """Return, for each streamed parameter, its block and its index in this block."""
    return {
        parameter: (block, place)
        for block in blocks
        for place, parameter in enumerate(block.parameters)
    }


def shared_parameters(block: Block) -> list[nn.Parameter]:
    """Return those parameters of a block that do not stream."""
    streamed = {id(parameter) for owner in block.needs for parameter in owner.parameters}
    return [p for p in block.module.parameters() if id(p) not in streamed]


def _check(block: str, module: nn.Module, parameter: nn.Parameter) -> None:
    name = next(name for name, found in module.named_parameters() if found is parameter)
    kind = type(parameter.data)
    if kind is not torch.Tensor or parameter.layout != torch.strided or parameter.is_quantized:
        what = kind.__name__ if kind is not torch.Tensor else str(parameter.layout)
        msg = (
            f"parameter {name!r} of block {block!r} is a {what}, whose storage cannot be moved; "
            f"exclude the block"
        )
        raise ValueError(msg)
