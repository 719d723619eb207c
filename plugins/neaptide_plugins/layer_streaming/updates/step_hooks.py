"""The hooks of an optimizer's step run once for an update, and see every gradient."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from neaptide.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch


def is_followed(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether code of the user runs inside `optimizer.step()`: a hook, or another `step`."""
    own = vars(optimizer).get("step")
    replaced = own is not None and not getattr(own, "_wrapped_by_lr_sched", False)
    return replaced or bool(_hooks(optimizer))


def _hooks(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return the hooks that may read or change gradients or weights, also those of all optimizers.

    torch runs the latter before all other pre-hooks, and after all other post-hooks.
    """
    hooks = [
        *_global_optimizer_pre_hooks.values(),
        *_global_optimizer_post_hooks.values(),
        *optimizer._optimizer_step_pre_hooks.values(),
        *optimizer._optimizer_step_post_hooks.values(),
    ]
    return [hook for hook in hooks if getattr(hook, "reads_gradients", True)]


@contextmanager
def once_for_all(
    optimizer: torch.optim.Optimizer, part: Callable[[], Callable[[], None]]
) -> Iterator[None]:
    """In the context, `optimizer.step()` calls `part` after all pre-hooks.

    The function that `part` returns is called before all post-hooks.
    """
    undo: list[Callable[[], None]] = []

    def back(*_: Any) -> None:
        while undo:
            undo.pop()()

    handles = [
        optimizer.register_step_pre_hook(lambda *_: undo.append(part())),
        optimizer.register_step_post_hook(back),
    ]
    optimizer._optimizer_step_post_hooks.move_to_end(handles[1].id, last=False)  # type: ignore[attr-defined]  # an OrderedDict
    try:
        yield
    finally:
        back()
        for handle in handles:
            handle.remove()


def check_no_hooks(optimizer: torch.optim.Optimizer) -> None:
    """Raise ModelError if the optimizer has a hook that may read or change gradients.

    A hook with the attribute `reads_gradients = False` is allowed.
    """
    found = _hooks(optimizer)
    if found:
        name = getattr(found[0], "__qualname__", str(found[0]))
        msg = (
            f"the optimizer has a hook on its step ({name}), which would not see the gradients of "
            f"the blocks, because 'in_backward' applies them in the backward; remove the hook, or "
            f"use 'after_backward' @ plugins.layer-streaming.update"
        )
        raise ModelError(msg)
