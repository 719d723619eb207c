"""The outline of a model: its modules without values, taken before plugins change the model."""

from __future__ import annotations

import copy
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from neaptide.errors import ModelError, described

if TYPE_CHECKING:
    from collections.abc import Mapping

WAY_OUT = "use neaptide_toolkit.verifying.verify(config, make=...)"


class Outline:
    """Modules as they were: their class and attributes, and tensors without values.

    Taking an outline copies no value and calls no code of the model. It costs some dictionaries a
    module. It keeps no parameter and no buffer alive.
    """

    def __init__(self, model: nn.Module) -> None:
        self._places: dict[int, torch.device] = {}
        self._names: dict[int, str] = {}
        # Of modules: torch cannot swap a tensor that somebody refers to weakly.
        self._modules = {path: weakref.ref(one) for path, one in model.named_modules()}
        self._unfit = ""
        placed = {
            id(tensor): self._without_values(tensor, name) for tensor, name in self._originals()
        }
        self._model: nn.Module = _outlined(model, placed)

    def _originals(self) -> list[tuple[torch.Tensor, str]]:
        """Return the tensors that the modules have now, each with its first name."""
        found: dict[int, tuple[torch.Tensor, str]] = {}
        for path, ref in self._modules.items():
            for name, tensor in _held(ref()):
                found.setdefault(id(tensor), (tensor, f"{path}.{name}".removeprefix(".")))
        return [*found.values()]

    def names(self) -> dict[int, str]:
        """Return the first name of each tensor that the modules have now, by its id."""
        return {id(tensor): name for tensor, name in self._originals()}

    def shapes(self) -> dict[str, torch.Size]:
        """Return the shapes of parameters and buffers, by their first names."""
        return {self._names[id(empty)]: empty.shape for empty in _tensors(self._model)}

    def _without_values(self, tensor: torch.Tensor, name: str) -> Any:
        if type(tensor) not in {torch.Tensor, nn.Parameter} or tensor.layout != torch.strided:
            self._unfit = self._unfit or f"{name!r} is a {type(tensor).__name__}"
            empty = torch.empty(0, device="meta")
        else:
            empty = torch.empty_like(tensor.detach(), device="meta")
        if isinstance(tensor, nn.Parameter):
            empty = nn.Parameter(empty, requires_grad=tensor.requires_grad)
        vars(empty).update(vars(tensor))
        self._places[id(empty)], self._names[id(empty)] = tensor.device, name
        return empty

    def made(self, values: Mapping[str, torch.Tensor]) -> nn.Module:
        """Return a new model of this outline.

        Args:
            values: the values of each parameter and buffer, by its first name.

        Raises:
            ModelError: the model cannot be copied.
        """
        if self._unfit:
            msg = f"no copy can be made: {self._unfit}; {WAY_OUT}"
            raise ModelError(msg)
        memo: dict[int, Any] = {}
        for empty in _tensors(self._model):
            value = values[self._names[id(empty)]]
            filled = torch.empty_like(empty, device=self._places[id(empty)])
            filled = filled.detach().copy_(value)
            if isinstance(empty, nn.Parameter):
                filled = nn.Parameter(filled, requires_grad=empty.requires_grad)
            vars(filled).update(vars(empty))
            memo[id(empty)] = filled
        model: nn.Module = self.copied(self._model, memo, "the model")
        return model

    def copied(self, value: Any, memo: dict[int, Any], name: str) -> Any:
        """Return a deep copy of `value`, with the copies in `memo`. `name` says what it is.

        Raises:
            ModelError: it cannot be copied, or refers to the trained model itself.
        """
        given = set(memo)
        try:
            new = copy.deepcopy(value, memo)
        except Exception as error:
            msg = f"no copy can be made of {name}: {described(error)}; {WAY_OUT}"
            raise ModelError(msg) from error
        own = self.names().keys() | self.places().keys()
        if not own.isdisjoint(memo.keys() - given):
            msg = (
                f"no copy can be made of {name}: an attribute refers to a part of the trained "
                f"model, and not as to its child; {WAY_OUT}"
            )
            raise ModelError(msg)
        return new

    def places(self) -> dict[int, str]:
        """Return the path of each module of the trained model, by its id."""
        found = ((ref(), path) for path, ref in self._modules.items())
        return {id(module): path for module, path in found if module is not None}


def _outlined(module: nn.Module, placed: Mapping[int, Any]) -> nn.Module:
    # A class may make something else of its instances, as torch's fully_shard does.
    twins = {id(one): object.__new__(one.__class__) for one in module.modules()}
    for one in module.modules():
        own = {name: _opened(value) for name, value in vars(one).items()}
        own["_modules"] = {
            name: None if child is None else twins[id(child)]
            for name, child in one._modules.items()  # noqa: SLF001 - as torch copies modules
        }
        for kind in ("_parameters", "_buffers"):
            own[kind] = {
                name: None if tensor is None else placed[id(tensor)]
                for name, tensor in own[kind].items()
            }
        vars(twins[id(one)]).update(own)
    return twins[id(module)]


def _opened(value: Any) -> Any:
    """Return a copy of a dict or list, such as a module's hooks, and any other value itself."""
    return copy.copy(value) if isinstance(value, dict | list | set) else value


def _held(module: nn.Module | None) -> list[tuple[str, torch.Tensor]]:
    if module is None:
        return []
    own = {**vars(module)["_parameters"], **vars(module)["_buffers"]}
    return [(name, tensor) for name, tensor in own.items() if tensor is not None]


def _tensors(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]
