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

from neaptide_toolkit.recompute import ChangedInPlaceError, check_no_transform, eager

from ..weights.block import owner_of
from .reads import first_terms
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

    @eager
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's result, with its tensors in the graph."""
        check_no_transform(self.block.name, "layer-streaming")
        if not torch.is_grad_enabled():
            with self.residency.use(self.block, "infer"):
                return apart(self.forward(*args, **kwargs), self.residency)
        self._hook_parameters()
        with (
            self.residency.use(self.block, "forward"),
            saved_tensors_hooks(self._pack, self._unpack),
        ):
            self.gradients.expect(self.block)
            weights = self.gradients.accumulators.expect(self.block)
            start = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]  # torch leaves it so
            returned = apart(self.forward(*args, **kwargs), self.residency)
        for tensor in FoundTensors().look(returned).tensors:
            node = tensor.grad_fn
            if node is not None:
                lead = first_terms(node, weights, start, self.gradients.take_arrived)
                tensor.register_hook(partial(self._begin, lead))  # type: ignore[no-untyped-call]  # torch leaves it so
        return returned

    def _hook_parameters(self) -> None:
        for owner in self.block.needs:
            for place, parameter in enumerate(owner.parameters):
                if parameter.requires_grad and not self._is_hooked_last(parameter):
                    hook = partial(self._arrived, owner, place)
                    self.hooked[parameter] = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]  # torch leaves it so

    def _is_hooked_last(self, parameter: nn.Parameter) -> bool:
        """Remove the hook if another hook, which may change the gradient, would run after it."""
        handle = self.hooked.get(parameter)
        if handle is None:
            return False
        hooks = parameter._post_accumulate_grad_hooks
        if next(reversed(hooks)) == handle.id:
            return True
        handle.remove()
        return False

    def _begin(self, lead: Callable[[], None], _: torch.Tensor) -> None:
        self.gradients.resume(self.block)
        if self.gradients.have_arrived(self.block):
            lead()
        # Gradients of earlier backwards are on the host. Later, this backward's gradients are added
        # to them.
        for owner in self.block.needs:
            for parameter in owner.parameters:
                parameter.grad = None

    def _arrived(self, owner: Block, place: int, _: torch.Tensor) -> None:
        self.gradients.arrived(owner, place)

    def _pack(self, tensor: torch.Tensor) -> _Weight | _SavedVersion:
        held = self.residency.holds(tensor)
        owner = owner_of(self.residency.blocks, tensor) if held else None
        if owner is None:
            # A node that saves its output would refer to itself. `detach` keeps the version.
            return _SavedVersion(tensor.detach(), tensor._version)
        offset = int(tensor.storage_offset()) * tensor.element_size()
        shape, strides = tuple(tensor.shape), tensor.stride()
        return _Weight(owner, tensor.dtype, shape, strides, offset, owner.changes)

    def _unpack(self, saved: _Weight | _SavedVersion) -> torch.Tensor:
        if isinstance(saved, _Weight):
            self.residency.touched.look([saved.block])
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
