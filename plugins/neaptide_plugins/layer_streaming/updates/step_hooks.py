"""The hooks of an optimizer's step run once for an update, and see every gradient."""

from __future__ import annotations

from collections import OrderedDict
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


def hooks_of_twin(optimizer: torch.optim.Optimizer) -> dict[str, OrderedDict[int, Any]]:
    """Return the attributes with the hooks of a second object of the optimizer's class.

    The optimizer's own hooks are not among them. torch runs hooks in `optimizer.step()`, and once
    more if the class's step calls the step of its base. There a hook of the user would not see the
    gradients of the blocks, so the twin has a hook that raises ModelError.
    """

    def refuse(*_: Any) -> None:
        cls = type(optimizer).__qualname__
        msg = (
            f"the optimizer has a hook on its step ({_named(found[0])}), which torch runs again in "
            f"the step that {cls}.step calls, where it would not see the gradients of the blocks; "
            f"remove the hook, or use optimizer_on = 'cpu' @ plugins.layer-streaming"
        )
        raise ModelError(msg)

    found = _hooks(optimizer)
    return {
        "_optimizer_step_pre_hooks": OrderedDict({0: refuse} if found else {}),
        "_optimizer_step_post_hooks": OrderedDict(),
    }


@contextmanager
def once_for_all(
    optimizer: torch.optim.Optimizer, part: Callable[[], Callable[[], None]]
) -> Iterator[None]:
    """In the context, `optimizer.step()` calls `part` after all pre-hooks.

    The function that `part` returns is called before all post-hooks. If the class's step calls the
    step of its base, torch runs the hooks there, too; `part` is called in the outer step only.
    """
    undo: list[Callable[[], None]] = []
    depth = 0

    def enter(*_: Any) -> None:
        nonlocal depth
        depth += 1
        if depth == 1:
            undo.append(part())

    def leave(*_: Any) -> None:
        nonlocal depth
        depth -= 1
        if depth == 0:
            back()

    def back() -> None:
        while undo:
            undo.pop()()

    for hook in (enter, leave):
        hook.reads_gradients = False  # type: ignore[attr-defined]  # not the user's
    handles = [
        optimizer.register_step_pre_hook(enter),
        optimizer.register_step_post_hook(leave),
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
        msg = (
            f"the optimizer has a hook on its step ({_named(found[0])}), which would not see the "
            f"gradients of the blocks, because 'in_backward' applies them in the backward; remove "
            f"the hook, or use 'after_backward' @ plugins.layer-streaming.update"
        )
        raise ModelError(msg)


def _named(hook: Any) -> str:
    return str(getattr(hook, "__qualname__", hook))
