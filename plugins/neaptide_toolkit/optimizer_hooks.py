"""Hooks on the steps of optimizers, and the wrapper by which torch runs them."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_OF_ALL = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
_WRAPPER = torch.optim.Optimizer.profile_hook_step(torch.optim.Optimizer.step).__code__


@contextmanager
def no_hooks_of_all() -> Iterator[None]:
    """In the context, torch runs none of the hooks that are registered for all optimizers.

    For a step that is not the user's, such as a trial. A class's step may call the step of its
    base, whose wrapper runs these hooks on any object.
    """
    kept = {name: getattr(optimizer, name) for name in _OF_ALL}
    # Another dict, not an emptied one: torch may just be reading it.
    vars(optimizer).update({name: OrderedDict() for name in _OF_ALL})
    try:
        yield
    finally:
        vars(optimizer).update(kept)


def plain_step(cls: type[torch.optim.Optimizer]) -> Callable[[torch.optim.Optimizer], Any]:
    """Return the `step` of a class, without the wrapper by which torch runs hooks."""
    step: Any = cls.step
    # Not by torch's mark `hooked`, which `functools.wraps` copies to a function of the user.
    while getattr(step, "__code__", None) is _WRAPPER:
        step = step.__wrapped__
    plain: Callable[[torch.optim.Optimizer], Any] = step
    return plain
