"""The sources of the weights that are moved to the host: the model itself, or safetensors files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.utils import swap_tensors

from .computed_buffers import computed_buffers
from .shards import Shards

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .block import Block

    Fill = Callable[[nn.Parameter, torch.Tensor], None]


class FromFiles:
    """Reads each parameter from files once, directly into its final memory.

    Args:
        model: may be on the meta device, so that its weights are in memory only once.
        path: see `Shards.open`.

    Raises:
        CheckpointError: the files do not match the model.
    """

    def __init__(self, model: nn.Module, path: str) -> None:
        self._shards = Shards.open(path)
        self._names: dict[torch.Tensor, list[str]] = {}
        self._computed = computed_buffers(model)  # while the parameters have no values to lose
        targets = _saved(model)
        self._shards.check(targets, ignore=_not_saved(model))
        known = set(self._shards.names())
        for name, tensor in targets.items():
            if name in known:
                self._names.setdefault(tensor, []).append(name)

    def __call__(self, parameter: nn.Parameter, place: torch.Tensor) -> None:
        """Fill `place` with the parameter's values."""
        self._shards.read_into(self._names[parameter][0], place)

    def read_buffers(self, model: nn.Module, device: torch.device) -> None:
        """Read the persistent buffers, and set the computed buffers.

        Buffers on the meta device are allocated on `device`.
        """
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer in self._computed:
                    module._buffers[name] = self._computed[buffer].to(device)
                elif buffer is not None and buffer in self._names:
                    place = torch.empty_like(buffer, device=device) if buffer.is_meta else buffer
                    self._shards.read_into(self._names[buffer][0], place)
                    module._buffers[name] = place


def place_rest(model: nn.Module, blocks: Sequence[Block], device: torch.device, fill: Fill) -> None:
    """Move all parameters that do not stream, and all buffers, to `device`."""
    if isinstance(fill, FromFiles):
        fill.read_buffers(model, device)
    streamed = {id(parameter) for block in blocks for parameter in block.parameters}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None and id(parameter) not in streamed:
                if parameter.is_meta or isinstance(fill, FromFiles):
                    place = torch.empty_like(parameter.data, device=device)
                    fill(parameter, place)
                    put(parameter, place)
                else:
                    parameter.data = parameter.data.to(device)
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.device != device:
                module._buffers[name] = buffer.to(device)


def put(parameter: nn.Parameter, place: torch.Tensor) -> None:
    """Rebind a parameter to the memory of `place`. The parameter stays the same object."""
    if parameter.is_meta:
        # The parameter needs a separate version counter: a write to the buffer must not count as an
        # in-place change of the parameter.
        new = nn.Parameter(torch.empty(0, dtype=place.dtype), requires_grad=parameter.requires_grad)
        new.data = place
        swap_tensors(parameter, new)  # type: ignore[no-untyped-call]  # torch leaves it so
    else:
        parameter.data = place


def check_values(model: nn.Module, path: str | None) -> None:
    """Raise ValueError for a meta tensor whose values are in no file."""
    saved = set(_saved(model)) if path is not None else set()
    computed = computed_buffers(model) if path is not None else {}
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    for name, tensor in named:
        if tensor.is_meta and name not in saved and tensor not in computed:
            what = (
                "is not in the state dict, and neither reset_parameters() of its module nor "
                "_init_weights() of the model computes it; build it on the CPU"
                if path is not None
                else "no weights are set; set weights to the model's safetensors"
            )
            msg = f"{name!r} has no values (it is on the meta device) and {what}"
            raise ValueError(msg)


def _not_saved(model: nn.Module) -> list[str]:
    """Return patterns of the buffers that are in no state dict; older files may have them."""
    names = {name for module in model.modules() for name in module._non_persistent_buffers_set}
    return [pattern for name in sorted(names) for pattern in (name, f"*.{name}")]


def _saved(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors of the state dict. They are not copied."""
    found: dict[str, torch.Tensor] = dict(model.named_parameters(remove_duplicate=False))
    for path, module in model.named_modules(remove_duplicate=False):
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                found[f"{path}.{name}" if path else name] = buffer
    return found
