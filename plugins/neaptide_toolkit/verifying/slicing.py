"""Whether a model can be resident; if not, it is built with fewer blocks of the same kinds."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from neaptide.api import rng
from neaptide.errors import ConfigError, ModelError, NeaptideError, described
from neaptide.io.logging import run_logger
from neaptide.io.units import size
from neaptide.run import assembly
from neaptide_toolkit.machine import facts
from neaptide_toolkit.machine.devices import free_bytes
from neaptide_toolkit.machine.pretended import is_pretended

from .fewer import chosen, keep_only, no_blocks, repeated_in
from .value import ModelSlice

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from neaptide.config import RunConfig
    from neaptide.plugin import PluginSpec

    from .fewer import Repeated
    from .stacks import Stack

STATES = 2
"""Tensors of optimizer state for each weight, as AdamW has."""
COPIES = 2
"""Moments whose tensors are kept in RAM when two runs are compared."""


@attrs.frozen(eq=False)
class ModelCut:
    """How a model is built with fewer blocks.

    Attributes:
        found: the repeated blocks of the whole.
        slice: what remains.
        dropped: parameters of the others, by their place among all that are registered while the
            model is built, with the class of their module, their name and shape.
    """

    found: tuple[Repeated, ...]
    slice: ModelSlice
    dropped: dict[int, Any]


@attrs.frozen(eq=False)
class _Whole:
    """The whole model without values, and its parameters as they were registered."""

    model: nn.Module
    made: list[tuple[nn.Module, str, nn.Parameter]]
    found: list[Repeated]
    fits: Callable[[int], bool]

    def remaining(self, kept: Collection[str]) -> list[nn.Parameter]:
        gone = tuple(f"{name}." for one in self.found for name in one.names if name not in kept)
        return [one for name, one in self.model.named_parameters() if not name.startswith(gone)]

    def fitting(self) -> list[str]:
        """Return the blocks that remain by default."""
        least = [name for one in self.found for name in one.least]
        for kept in (chosen(self.found), least):
            needs = _needs(self.remaining(kept))
            if self.fits(needs):
                return kept
        msg = (
            f"weights, gradients and AdamW's state of the smallest slice, {len(least)} blocks, "
            f"need {size(needs)} and their copies, which are not free; verify on a larger machine, "
            f"or with narrower blocks @ model.options"
        )
        raise ModelError(msg)

    def cut(self, kept: Collection[str], *, asked: bool) -> ModelCut:
        names = [name for one in self.found for name in one.names]
        gone = [self.model.get_submodule(name) for name in names if name not in kept]
        inside = {id(part) for block in gone for part in block.modules()}
        remain = {id(one) for one in self.remaining(kept)}
        dropped = {
            place: (type(module), name, parameter.shape)
            for place, (module, name, parameter) in enumerate(self.made)
            if id(module) in inside and id(parameter) not in remain
        }
        needs = _needs(self.model.parameters())
        part = ModelSlice(tuple(kept), len(names), needs, asked=asked)
        return ModelCut(tuple(self.found), part, dropped)


def cut_for(stack: Stack, blocks: int | None) -> ModelCut | None:
    """Return how to slice the model of a configuration; None if the whole is verified.

    The model is first built without values. It is sliced if its weights, gradients and AdamW's
    state do not fit in the memory that is free now, with the copies that are compared, or if
    `blocks` asks for it.

    Raises:
        ConfigError: `blocks` are too few, or the model has no repeated blocks.
        ModelError: it is too large, and cannot be sliced.
    """
    config, ordered = stack.with_only(stack.foundation)
    try:
        whole = _whole(config, ordered)
    except Exception as error:
        if blocks is None:
            return None  # the runs tell what is wrong, if anything is
        if isinstance(error, NeaptideError):
            raise
        msg = f"the model cannot be built without values, to be sliced: {described(error)}"
        raise ConfigError(msg) from error
    needs = _needs(whole.model.parameters())
    if blocks is None and whole.fits(needs):
        return None
    if not any(len(one.least) < len(one.names) for one in whole.found):
        reason = no_blocks(whole.model)
        if blocks is None:
            what = f"weights, gradients and AdamW's state need {size(needs)}, which is not free"
            msg = f"{what}; {reason}"
            raise ModelError(msg)
        raise ConfigError(reason)
    kept = whole.fitting() if blocks is None else chosen(whole.found, blocks)
    if len(kept) == sum(len(one.names) for one in whole.found):
        return None
    return whole.cut(kept, asked=blocks is not None)


def _whole(config: RunConfig, ordered: list[PluginSpec]) -> _Whole:
    made = []

    def without_values(module: nn.Module, name: str, parameter: Any) -> Any:
        if parameter is None:
            return None
        empty = _empty(parameter)
        made.append((module, name, empty))
        return empty

    with rng.preserved():
        rng.seed_all(config.seed)
        handle = register_module_parameter_registration_hook(without_values)
        try:
            hooks = assembly.create_plugins(config, ordered, run_logger())
            model = assembly.build_task(config, hooks).module
        finally:
            handle.remove()
    return _Whole(model, made, repeated_in(model), _fits(config))


def _empty(parameter: nn.Parameter) -> nn.Parameter:
    if parameter.is_meta or type(parameter) is not nn.Parameter:
        return parameter
    shape = torch.empty_like(parameter, device="meta")
    return nn.Parameter(shape, requires_grad=parameter.requires_grad)


def _needs(parameters: Iterable[nn.Parameter]) -> int:
    every = {id(one): one for one in parameters}.values()
    return sum(one.nbytes * (1 + (1 + STATES) * one.requires_grad) for one in every)


def _fits(config: RunConfig) -> Callable[[int], bool]:
    ram = facts.memory().room
    device = assembly.choose_device(config.train.device, None)
    own = None if device.type == "cpu" else free_bytes(device)
    times = COPIES + (own is None)

    def fits(needs: int) -> bool:
        return (ram is None or times * needs <= ram) and (own is None or needs <= own)

    return fits


@contextmanager
def sliced(cut: ModelCut | None) -> Iterator[None]:
    """Within this context, a configuration's model is built without the blocks that are left out.

    Their weights take no memory, not even while the model is built.
    """
    if cut is None:
        yield
        return
    whole = assembly.build_task

    def build_task(config: Any, hooks: Any) -> Any:
        places = iter(range(1 << 62))
        is_alike = True

        def without(module: nn.Module, name: str, parameter: Any) -> Any:
            nonlocal is_alike
            if parameter is None:
                return None
            told = cut.dropped.get(next(places))
            if told is None or not is_alike:
                return None
            is_alike = told == (type(module), name, parameter.shape)
            return _empty(parameter) if is_alike else None

        handle = register_module_parameter_registration_hook(without)
        try:
            task = whole(config, hooks)
        finally:
            handle.remove()
        keep_only(task.module, cut.found, cut.slice.kept)
        lost = [name for name, one in task.module.named_parameters() if one.is_meta]
        if lost and not is_pretended():
            msg = (
                f"the model is built otherwise each time, and cannot be sliced: {lost[0]} has no "
                f"values; build a smaller model of the same kind @ model.options"
            )
            raise ModelError(msg)
        return task

    assembly.build_task = build_task
    try:
        yield
    finally:
        assembly.build_task = whole
