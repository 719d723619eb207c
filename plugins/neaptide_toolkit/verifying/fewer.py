"""A model with fewer blocks of the same kinds: which remain, and how the others are taken out."""

from __future__ import annotations

import copy
import re
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.errors import ConfigError
from neaptide_toolkit.recompute import find_blocks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from torch import nn

USUAL = 4
"""Blocks that remain if there are so many: twice the slots that a store has by default."""
_COUNTS = re.compile("layer|block|depth")
_INDEX = "layer_idx"
"""How modules of transformers name their own place."""


@attrs.frozen
class Repeated:
    """The repeated blocks of one container, in order.

    Attributes:
        container: the qualified name of the ModuleList, Sequential or ModuleDict.
        names: the qualified names of its blocks.
        kinds: what each block is; equal for blocks with the same modules and shapes.
    """

    container: str
    names: tuple[str, ...]
    kinds: tuple[Any, ...]

    @property
    def least(self) -> list[str]:
        """One block of each kind, and the next one of a kind that is repeated."""
        first = [self.kinds.index(kind) for kind in dict.fromkeys(self.kinds)]
        again = [place for place in range(len(self.kinds)) if place not in first]
        return [self.names[place] for place in sorted({*first, *again[:1]})]


def repeated_in(model: nn.Module) -> list[Repeated]:
    """Return the containers with blocks of which some can be left out, as `find_blocks` finds them.

    If every block of the outermost containers is of a kind of its own, as the stages of a model of
    images are, the containers in them are searched.
    """
    outer = _grouped(model, find_blocks(model))
    if any(len(one.least) < len(one.names) for one in outer):
        return outer
    inner = [
        (f"{name}.{inside}", module)
        for one in outer
        for name in one.names
        for inside, module in find_blocks(model.get_submodule(name))
    ]
    return _grouped(model, inner)


def _grouped(model: nn.Module, blocks: Iterable[tuple[str, nn.Module]]) -> list[Repeated]:
    found: dict[str, list[tuple[str, nn.Module]]] = {}
    for name, block in blocks:
        container, _, key = name.rpartition(".")
        if key in _modules_of(model.get_submodule(container)):
            found.setdefault(container, []).append((name, block))
    return [
        Repeated(container, tuple(name for name, _ in each), tuple(_kind(one) for _, one in each))
        for container, each in found.items()
    ]


def _modules_of(container: nn.Module) -> dict[str, nn.Module | None]:
    return container._modules  # noqa: SLF001 - a container has no public way to keep or set keys


def _kind(block: nn.Module) -> Any:
    """Return what two blocks of the same kind have in common: modules, shapes, words and switches.

    Numbers are left out: the place of a block is one.
    """
    return tuple(
        (
            name,
            f"{type(module).__module__}.{type(module).__qualname__}",
            tuple(
                (key, tuple(one.shape), one.dtype, one.requires_grad)
                for key, one in module.named_parameters(recurse=False)
            ),
            tuple(
                (key, re.sub(r"\d+", "", value) if isinstance(value, str) else value)
                for key, value in sorted(vars(module).items())
                if isinstance(value, bool | str)
            ),
        )
        for name, module in block.named_modules()
    )


def chosen(found: Sequence[Repeated], count: int | None = None) -> list[str]:
    """Return the names of the blocks that remain, `count` of them.

    Args:
        found: as `repeated_in` returns it.
        count: by default 4 of each container, or as many as it takes to have each kind.

    Raises:
        ConfigError: `count` is less than each kind and one repeated pair need.
    """
    if count is None:
        return [name for one in found for name in _filled(one, max(USUAL, len(one.least)))]
    kept = [name for one in found for name in one.least]
    if count < len(kept):
        msg = (
            f"a slice of this model has at least {len(kept)} blocks, to have one of each kind and "
            f"one pair of a container (got {count}) @ --blocks"
        )
        raise ConfigError(msg)
    in_turn = zip_longest(*(_filled(one, len(one.names), first=True) for one in found))
    for name in (name for several in in_turn for name in several if name is not None):
        if len(kept) < count and name not in kept:
            kept.append(name)
    return [name for one in found for name in one.names if name in kept]


def _filled(one: Repeated, count: int, *, first: bool = False) -> list[str]:
    order = [*one.least, *(name for name in one.names if name not in one.least)]
    kept = order[:count]
    return kept if first else [name for name in one.names if name in kept]


def keep_only(model: nn.Module, found: Sequence[Repeated], kept: Collection[str]) -> None:
    """Take all other blocks out of their containers, and give the others the next free places.

    What counts or lists the blocks is told: attributes of the container's owner, and of a `config`
    of any module, whose name has "layer", "block" or "depth".
    """
    counts = []
    for one in found:
        inside = _modules_of(model.get_submodule(one.container))
        gone = {name.rpartition(".")[2] for name in one.names if name not in kept}
        keys = list(inside)
        remain = [place for place, key in enumerate(keys) if key not in gone]
        modules = [inside[keys[place]] for place in remain]
        numbered = all(key.isdigit() for key in keys)
        inside.clear()
        for new, (old, module) in enumerate(zip(remain, modules, strict=True)):
            inside[str(new) if numbered else keys[old]] = module
            for part in module.modules() if module is not None else ():
                if vars(part).get(_INDEX) == old:
                    setattr(part, _INDEX, new)
        counts.append((len(keys), remain))
        _recount(model.get_submodule(one.container.rpartition(".")[0]), *counts[-1])
    renewed: dict[int, Any] = {}
    for module in model.modules():
        config = vars(module).get("config")
        if hasattr(config, "__dict__"):
            if id(config) not in renewed:
                renewed[id(config)] = own = copy.copy(config)  # a factory may use it again
                for count in counts:
                    _recount(own, *count)
            module.config = renewed[id(config)]


def _recount(owner: Any, total: int, remain: Sequence[int]) -> None:
    for key, value in list(vars(owner).items()):
        if type(value) is int and value == total and _COUNTS.search(key):
            setattr(owner, key, len(remain))
        elif isinstance(value, list | tuple) and len(value) == total and _COUNTS.search(key):
            setattr(owner, key, type(value)([value[place] for place in remain]))


def fewer_blocks(model: nn.Module, count: int | None = None) -> tuple[str, ...]:
    """Take blocks out of a model until `count` remain, and return the names of those that remain.

    At least one of each kind remains, and one pair of the same kind in a container; by default
    four blocks of each container. The others move up: `layers.5` may become `layers.2`.

    Args:
        model: with repeated blocks in a ModuleList, Sequential or ModuleDict; it is changed. Make
            its optimizer afterwards.
        count: the number of blocks that remain.

    Raises:
        ConfigError: the model has no repeated blocks, or needs more than `count`.
    """
    found = repeated_in(model)
    if not found:
        raise ConfigError(no_blocks(model))
    kept = chosen(found, count)
    keep_only(model, found, kept)
    return tuple(kept)


def no_blocks(model: nn.Module) -> str:
    """Return why a model cannot be sliced."""
    return (
        f"{type(model).__name__} has no repeated blocks that can be left out; build a smaller "
        f"model of the same kind @ model.options"
    )
