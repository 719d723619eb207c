"""A block whose graph is kept. Autograd saves references to the weights instead of the weights.

No forward is recomputed, and activations stay on the device. Between forward and backward the
weights are removed from the device. A block's gradients are copied to the host when the first
gradient of another block arrives.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch.autograd.graph import saved_tensors_hooks

from neaptide_toolkit.recompute import ChangedInPlaceError

from .tensors import FoundTensors
from .unit import apart, weights_changed

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from ..updates.gradients import Gradients
    from ..weights.block import Block
    from ..weights.residency import Residency


@attrs.frozen(eq=False)
class _Weight:
    """A reference to a weight: a view of a block's bytes."""

    block: Block
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    """Offset of the weight from the start of the block, in bytes."""
    changes: int
    """The version of the block's weights when autograd saved the weight."""


@attrs.frozen(eq=False)
class _SavedVersion:
    tensor: torch.Tensor
    version: int


@attrs.define(eq=False)
class Preserved:
    """Replaces the forward of one block's module."""

    block: Block
    forward: Callable[..., Any]
    residency: Residency
    gradients: Gradients
    hooked: dict[nn.Parameter, RemovableHandle]
    """The gradient hooks of the parameters. All blocks share this dict."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's result.

        In a model that is compiled as a whole, the block runs eagerly.
        """
        if torch.compiler.is_compiling():
            return torch.compiler.disable(self._called)(*args, **kwargs)  # type: ignore[no-untyped-call]  # torch leaves it so
        return self._called(*args, **kwargs)

    def _called(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            with self.residency.use(self.block, "infer"):
                return apart(self.forward(*args, **kwargs), self.residency)
        self._hook_parameters()
        with (
            self.residency.use(self.block, "forward"),
            saved_tensors_hooks(self._pack, self._unpack),
        ):
            self.gradients.expect_arrivals(self.block)
            returned = apart(self.forward(*args, **kwargs), self.residency)
        for tensor in FoundTensors().look(returned).tensors:
            if tensor.grad_fn is not None:
                tensor.register_hook(self._begin)  # type: ignore[no-untyped-call]  # torch leaves it so
        return returned

    def _hook_parameters(self) -> None:
        for owner in self.block.needs:
            for place, parameter in enumerate(owner.parameters):
                if parameter.requires_grad and parameter not in self.hooked:
                    hook = partial(self._arrived, owner, place)
                    self.hooked[parameter] = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]  # torch leaves it so

    def _begin(self, _: torch.Tensor) -> None:
        self.gradients.resume(self.block)
        # Gradients of earlier backwards are on the host. Later, this backward's gradients are added
        # to them.
        for owner in self.block.needs:
            for parameter in owner.parameters:
                parameter.grad = None

    def _arrived(self, owner: Block, place: int, _: torch.Tensor) -> None:
        self.gradients.arrived(owner, place)

    def _pack(self, tensor: torch.Tensor) -> _Weight | _SavedVersion:
        owner = self.residency.owner(tensor)
        if owner is None:
            return _SavedVersion(tensor, tensor._version)
        offset = int(tensor.storage_offset()) * tensor.element_size()
        shape, strides = tuple(tensor.shape), tensor.stride()
        return _Weight(owner, tensor.dtype, shape, strides, offset, owner.changes)

    def _unpack(self, saved: _Weight | _SavedVersion) -> torch.Tensor:
        if isinstance(saved, _Weight):
            if saved.changes != saved.block.changes:
                raise ChangedInPlaceError(weights_changed(saved.block.name))
            flat = self.residency.visit(saved.block, self.block)
            typed = flat[saved.offset :]
            typed = typed[: typed.nbytes // saved.dtype.itemsize * saved.dtype.itemsize]
            weight = typed.view(saved.dtype).as_strided(saved.shape, saved.strides)
            # A graph of the backward (create_graph) must not hold memory of a slot.
            return weight.clone() if torch.is_grad_enabled() else weight
        if saved.tensor._version != saved.version:
            msg = (
                f"a tensor that the backward of block {self.block.name!r} needs was changed in "
                f"place by a later operation; make the change on a copy"
            )
            raise ChangedInPlaceError(msg)
        return saved.tensor
