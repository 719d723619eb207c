"""Replace the forwards of a model's layers, and restore them."""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any

import attrs
from torch import nn

from .activations import TORCHS_OWN, hooked
from .forwards import gated_forward, layer_forward, rms_forward, turned
from .probing import gated_form, rms_form
from .rotary import rope_form

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from types import ModuleType

    from .forwards import Forward

_ROPE = "apply_rotary_pos_emb"
_SIMPLE = (bool, int, float, str, type(None))


@attrs.define(eq=False)
class Replacements:
    """The layers of a model that are replaced, and what is left as it is.

    Args:
        kinds: kinds of layers to replace, see the plugin's settings.
        least: calls with fewer elements run the model's own code.
    """

    kinds: Collection[str]
    least: int
    replaced: Counter[str] = attrs.field(init=False, factory=Counter)
    """Number of replaced layers of each class, and of functions, by name."""
    left: Counter[str] = attrs.field(init=False, factory=Counter)
    """As above, of layers that look like a kind to replace, but compute something else."""
    _modules: list[nn.Module] = attrs.field(init=False, factory=list)
    _functions: list[ModuleType] = attrs.field(init=False, factory=list)
    _known: dict[Any, Forward | None] = attrs.field(init=False, factory=dict)

    def attach(self, model: nn.Module) -> None:
        """Replace the forwards of layers of `model`, and functions of its classes' modules."""
        for module in model.modules():
            if not _may_be(module, self.kinds):
                continue
            made = None
            if "forward" not in vars(module):  # another's replacement stays
                key = (type(module), *_settings(module))
                if key not in self._known:
                    self._known[key] = self._forward(module)
                made = self._known[key]
            (self.left if made is None else self.replaced)[type(module).__name__] += 1
            if made is not None:
                # Pickled by its name `forward`, which is that of the class's method.
                module.__dict__["forward"] = MethodType(made, module)
                self._modules.append(module)
        if "rope" in self.kinds:
            for where in _homes(model):
                self._attach_rope(where)

    def detach(self) -> None:
        """Restore everything; without effect the second time."""
        while self._modules:
            self._modules.pop().__dict__.pop("forward", None)
        while self._functions:
            _REPLACED_FUNCTIONS.restore(self._functions.pop())

    def _forward(self, module: nn.Module) -> Forward | None:
        own = type(module)
        if "layer_norm" in self.kinds and own.forward is nn.LayerNorm.forward:
            one = len(module.normalized_shape) == 1  # type: ignore[arg-type]  # a LayerNorm's
            return layer_forward(own, self.least) if one else None
        if "rms_norm" in self.kinds and (norm := rms_form(module)) is not None:
            return rms_forward(own, norm, self.least)
        if "gated_mlp" in self.kinds and (gated := gated_form(module)) is not None:
            return gated_forward(own, gated, self.least)
        return None

    def _attach_rope(self, where: ModuleType) -> None:
        name = f"{where.__name__.rpartition('.')[2]}.{_ROPE}"
        if _REPLACED_FUNCTIONS.replace(where, self.least):
            self.replaced[name] += 1
            self._functions.append(where)
        else:
            self.left[name] += 1


class _Functions:
    """Replaced functions of modules. Runs at the same time share a replacement."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[Any, int]] = {}

    def replace(self, where: ModuleType, least: int) -> bool:
        """Replace the function of a module; return whether it computes what `rope` does."""
        own, count = self._held.get(where.__name__, (getattr(where, _ROPE), 0))
        if not count:
            parts = rope_form(own)
            if parts is None:
                return False
            setattr(where, _ROPE, turned(own, least, parts=parts))
        self._held[where.__name__] = own, count + 1
        return True

    def restore(self, where: ModuleType) -> None:
        """Restore the function if no other run needs the replacement."""
        own, count = self._held.pop(where.__name__)
        if count > 1:
            self._held[where.__name__] = own, count - 1
        else:
            setattr(where, _ROPE, own)


_REPLACED_FUNCTIONS = _Functions()


def _homes(model: nn.Module) -> Iterator[ModuleType]:
    """Yield each Python module of the model's classes that has a function for RoPE."""
    for name in dict.fromkeys(type(module).__module__ for module in model.modules()):
        where = sys.modules.get(name)
        if callable(getattr(where, _ROPE, None)):
            yield where  # type: ignore[misc]  # it has the function


def _may_be(module: nn.Module, kinds: Collection[str]) -> bool:
    """Return whether a layer looks like one of a kind to replace."""
    name = type(module).__name__.lower()
    children = {each for each, _ in module.named_children()}
    parts = children | {each for each, _ in module.named_parameters(recurse=False)}
    if "gated_mlp" in kinds and (
        parts & {"gate_proj", "gate_up_proj", "wi_0"} or parts >= {"w1", "w2", "w3"}
    ):
        return True
    if children:
        return False
    if isinstance(module, nn.LayerNorm):
        return "layer_norm" in kinds
    return "rms_norm" in kinds and "norm" in name and "batchnorm" not in name


def _settings(module: nn.Module) -> Iterator[Any]:
    """Yield what the forwards of two modules of a class may depend on.

    Other objects than numbers and strings are told apart by identity: what they hold may differ.
    """
    for name, value in sorted(vars(module).items()):
        if name not in TORCHS_OWN:
            yield name, _identity(value)
    for name, parameter in module.named_parameters(recurse=False):
        yield name, tuple(parameter.shape)
    for name, buffer in module.named_buffers(recurse=False):
        yield name, id(buffer)
    for name, child in module.named_children():
        yield name, type(child)
        if next(child.parameters(), None) is None:  # an activation; others are not looked into
            yield hooked(child), *_settings(child)


def _identity(value: Any) -> Any:
    if type(value) is tuple:
        return tuple(_identity(each) for each in value)
    if type(value) is partial:
        return value.func, _identity(value.args), _identity((*value.keywords.items(),))
    # By text, since 1 == 1.0 == True, and NaN != NaN.
    return (type(value), repr(value)) if type(value) in _SIMPLE else id(value)
