"""The model of a factory that a caller gives: a configuration names `given_model`."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from neaptide import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_given: ContextVar[Callable[[], Any]] = ContextVar("given")


@contextmanager
def planned_with(factory: Callable[[], Any] | None) -> Iterator[None]:
    """Within this context, `given_model` builds the model of `factory`."""
    token = _given.set(factory or _given_nothing)
    try:
        yield
    finally:
        _given.reset(token)


def _given_nothing() -> Any:
    raise AssertionError


def given_model() -> Any:
    """Build the model. If it has existed before, a plan must not train it: return a copy."""
    with _Makes() as mode:
        made = _given.get()()
    task = made if isinstance(made, Task) else None
    module = task.module if task else made[0] if isinstance(made, tuple) else made
    if not isinstance(module, torch.nn.Module) or mode.made(module):
        return made
    copied = copy.deepcopy(module)
    if task:
        return attrs.evolve(task, module=copied)
    return (copied, *made[1:]) if isinstance(made, tuple) else copied


class _Makes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it so
    """Notes the storages that are made within it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._storages: set[int] = set()

    def made(self, module: torch.nn.Module) -> bool:
        """Return whether all tensors of a module were made within it."""
        tensors = [*module.parameters(), *module.buffers()]
        return all(one.untyped_storage()._cdata in self._storages for one in tensors)  # noqa: SLF001 - as in `dry_run`

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {
            one.untyped_storage()._cdata  # noqa: SLF001 - as above
            for one in tree_iter((args, kwargs))
            if isinstance(one, torch.Tensor)
        }
        for one in tree_iter(result):
            if isinstance(one, torch.Tensor):
                self._storages |= {one.untyped_storage()._cdata} - given  # noqa: SLF001 - as above
        return result
