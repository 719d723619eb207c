"""Compares saved state with the state in whose place it would be loaded.

The core calls the functions that the entry points `neaptide.saved_forms` name, before it loads
anything of a checkpoint. Each gets the outline of its section.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from neaptide.api.phases import PREDICT
from neaptide.errors import WrongCheckpointError
from neaptide.run.saved_form import as_mapping, as_names, tensors_of
from neaptide.run.saved_weights import check_names

from .optimizer_state import after_a_step

if TYPE_CHECKING:
    from neaptide.api.parameters import ParameterStore

_USUAL = {torch.float32, torch.bfloat16, torch.float16}


def check_optimizer(
    saved: Any, *, store: ParameterStore, training: Mapping[str, Any], **_: Any
) -> None:
    """Raise an error if the groups are not those of the optimizer, or a parameter's state is not.

    A state must have the names, types, shapes and dtypes of the state that a step on the meta
    device makes. A plugin may keep the state in another precision. If such a step is not possible,
    no state is compared. The section `training` says whether some parameter must have state.
    """
    _check_groups(saved, store.optimizer)
    state = saved["state"]
    try:
        shapes = {store.parameters[span.name]: span.shape for span in store.spans()}
        made = after_a_step(store.optimizer, shapes)
    except Exception:  # noqa: BLE001 - whatever a stranger's optimizer raises
        return
    if _has_updated(training) and not any(state.values()) and any(made.values()):
        msg = "no parameter has state"
        raise ValueError(msg)
    parameters = (one for group in store.optimizer.param_groups for one in group["params"])
    for number, parameter in enumerate(parameters):
        if state.get(number) and made.get(parameter):
            where = f"state of parameter {number}"
            check_like(state[number], made[parameter], where, precise=False)
    for group, settings in zip(saved["param_groups"], store.optimizer.param_groups, strict=True):
        for name in sorted(settings.keys() - {"params"}):
            _check_setting(group[name], settings[name], f"setting {name!r}")
        check_like(group.get("initial_lr", 0.0), 0.0, "setting 'initial_lr'")  # a scheduler's


def _has_updated(training: Mapping[str, Any]) -> bool:
    """Return whether the saved run has made an update since it last left Predict."""
    visit = training["schedule"]
    ordinary = visit["phase"] != PREDICT.name and visit["done"] > training["skipped_in_a_row"]
    pending = training["pending"] or {"applied": False}
    return bool(ordinary and (pending["applied"] or training["history"]["updates"] > 0))


def check_buffers(
    saved: Any, *, buffers: Mapping[str, torch.Tensor], allow_changes: bool, **_: Any
) -> None:
    """Raise WrongCheckpointError if a buffer has another dtype or shape than the model's.

    Their names must be the same, unless changes are allowed: other plugins may have other buffers.
    """
    if not allow_changes:
        check_names("buffer", saved.keys(), buffers.keys())
    for name in sorted(saved.keys() & buffers.keys()):
        forms = [(one[name].dtype, tuple(one[name].shape)) for one in (saved, buffers)]
        if forms[0] != forms[1]:
            msg = f"buffer {name!r} is {forms[0]} in the checkpoint but {forms[1]} in the model"
            raise WrongCheckpointError(msg)


def check_gradients(saved: Any, *, store: ParameterStore, **_: Any) -> None:
    """Raise ValueError if a gradient has another dtype or shape than its parameter."""
    spans = {span.name: span for span in store.spans()}
    for name, found in tensors_of(saved).items():
        span = spans[name]
        if (found.dtype, tuple(found.shape)) != (span.dtype, span.shape):
            msg = (
                f"the gradient of {name!r} is {found.dtype} {tuple(found.shape)}, the parameter "
                f"{span.dtype} {span.shape}"
            )
            raise ValueError(msg)


def _check_groups(tree: Any, optimizer: torch.optim.Optimizer) -> None:
    groups = [as_names(group) for group in tree["param_groups"]]
    before = [len(group["params"]) for group in groups]
    now = [len(group["params"]) for group in optimizer.param_groups]
    if before != now:
        msg = (
            f"the optimizer's parameter groups hold {now} parameters, the checkpoint's {before}; "
            f"build it the same way"
        )
        raise WrongCheckpointError(msg)
    # Each optimizer class has its own settings. A saved group may also have a scheduler's settings.
    for group, settings in zip(groups, optimizer.param_groups, strict=True):
        missing = sorted(settings.keys() - group.keys())
        if missing:
            msg = (
                f"the checkpoint is of another optimizer than {type(optimizer).__name__}: it has "
                f"no {', '.join(missing)}; build the one it was saved with"
            )
            raise WrongCheckpointError(msg)
    known = range(sum(now))
    numbers = [number for group in groups for number in group["params"]]
    strange = [
        one for one in as_mapping(tree["state"]) if isinstance(one, int) and one not in known
    ]
    if strange or numbers != [*known]:
        msg = f"the parameters must be numbered 0 to {len(known) - 1} (got {strange or numbers})"
        raise ValueError(msg)
    for entries in tree["state"].values():
        as_mapping(entries)


def _check_setting(value: Any, like: Any, where: str) -> None:
    """Raise ValueError if `value` is of another type. Of a switch, None means the default."""
    if like is None or (value is None and isinstance(like, bool)):
        like = value if value is None or isinstance(value, bool | int | float) else False
    check_like(value, like, where)


def counter(state: Mapping[str, Any], name: str) -> int:
    """Return the counter `name` of a saved state. Raises ValueError if it is none."""
    value = state[name]
    if type(value) is not int or value < 0:
        msg = f"{name} must be a whole number from 0 (got {value!r:.40})"
        raise ValueError(msg)
    return value


def check_plugins(
    saved: Any, *, plugins: Mapping[str, Mapping[str, Any]], fresh: bool, **_: Any
) -> None:
    """Raise ValueError if a plugin's state has another form than its present state in `plugins`.

    In a `fresh` run the present state has no names that training has added. So all are needed.
    """
    for name, like in plugins.items():
        missing = sorted(like.keys() - saved[name].keys())
        if missing:
            msg = f"{name} has no {', '.join(missing)}"
            raise ValueError(msg)
        check_like(saved[name], like, name, grows=True, has_names=fresh)


def check_like(
    value: Any,
    like: Any,
    where: str,
    *,
    grows: bool = False,
    has_names: bool = True,
    precise: bool = True,
) -> None:
    """Raise ValueError if `value` has another form than `like`: names, types, dtypes, shapes.

    A number may also be a tensor without dimensions. With `grows`, None stands for any value, lists
    may have other lengths, and tensors other sizes, but not the same sizes in another order.
    Without `has_names`, names of `like` may be missing. If not `precise`, float32, bfloat16 and
    float16 may stand for each other.
    """
    more = {"grows": grows, "has_names": has_names, "precise": precise}
    if like is None or (grows and value is None):
        return
    if _kind(value) != _kind(like) or not _fits(value, like, grows, precise):
        msg = f"{where} is {_shown(value)}, not {_shown(like)}"
        raise ValueError(msg)
    if isinstance(like, Mapping):
        if has_names and like.keys() - value.keys():
            msg = f"{where} needs {', '.join(map(str, like))}, and has {', '.join(map(str, value))}"
            raise ValueError(msg)
        for name in like.keys() & value.keys():
            check_like(value[name], like[name], f"{where}.{name}", **more)
    elif isinstance(like, list | tuple) and like:
        first = [like[0]] * len(value) if len({*map(_kind, like)}) == 1 else like
        for place, (one, other) in enumerate(zip(value, first, strict=False)):
            check_like(one, other, f"{where}.{place}", **more)


def _fits(value: Any, like: Any, grows: bool, precise: bool) -> bool:  # noqa: FBT001 - private
    if not isinstance(value, torch.Tensor) or not isinstance(like, torch.Tensor):
        return True
    other = value.ndim == like.ndim and sorted(value.shape) != sorted(like.shape)
    dtypes = {value.dtype, like.dtype}
    same = len(dtypes) == 1 or (not precise and dtypes <= _USUAL)
    return same and (value.shape == like.shape or (grows and other))


def _kind(value: Any) -> type:
    if isinstance(value, torch.Tensor):
        return torch.Tensor if value.ndim else float
    if isinstance(value, Mapping):
        return dict
    if isinstance(value, list | tuple):
        return list
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float if is_number else type(value)


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {list(value.shape)}"
    return f"{type(value).__name__} {value!r:.40}"
