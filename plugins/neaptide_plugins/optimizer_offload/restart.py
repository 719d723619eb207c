"""Tests whether an optimizer can start anew without its state, and finds what it needs for this.

For the test, a second object of the optimizer's class (a twin) makes a step on a matrix of four
numbers. The test does not depend on the name of the class.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import nn

from neaptide_kernels.accelerator import forked_random
from neaptide_toolkit.optimizer_hooks import no_hooks_of_all

if TYPE_CHECKING:
    from collections.abc import Mapping

_HOOKS = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)
_SIDE = 2


@attrs.frozen
class _Filled:
    """A tensor whose elements all have the same value."""

    value: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def tensor(self) -> torch.Tensor:
        made = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)
        return made.fill_(self.value)


@attrs.frozen(eq=False)
class _Copied:
    """A copy of a tensor on the host."""

    values: torch.Tensor
    device: torch.device

    def tensor(self) -> torch.Tensor:
        return self.values.to(self.device, copy=True)


def remembered(entry: Any) -> Any:
    """Return an entry of the state in the compact form that `made_again` reads.

    A tensor whose elements are all equal is stored as one number.
    """
    return _mapped(entry, torch.Tensor, _remembered_tensor)


def made_again(memory: Any) -> Any:
    """Return the entry that `remembered` stored, in new tensors."""
    return _mapped(memory, (_Filled, _Copied), lambda kept: kept.tensor())


@attrs.frozen
class Restart:
    """What an optimizer needs to start anew with a parameter group."""

    counted: frozenset[str] = frozenset()
    """Names of the group's settings that a step changes, such as a count of steps."""
    needs_state: bool = False
    """True if the class can step only with the state that it creates before its first step."""


def tried(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], first: Mapping[torch.Tensor, Any]
) -> Restart:
    """Return what `group` needs to start anew. `first` is the optimizer's state at the run's start.

    Raises ValueError, in one line, if the class cannot step without its state.
    """
    parameters = group["params"]
    if not parameters:
        return Restart()
    like = parameters[0]
    entry = next((first[each] for each in parameters if first.get(each)), None)
    problem: Exception | None = None
    for memory in (None,) if entry is None else (None, remembered(entry)):
        for sparse in (False, True):
            try:
                counted = _changed_by_a_step(optimizer, group, like, memory, sparse=sparse)
            except Exception as error:  # noqa: BLE001 - any class of optimizer may raise anything
                problem = problem or error
            else:
                return Restart(counted - {"lr"}, memory is not None)
    reason = (str(problem).splitlines() or [""])[0]
    msg = (
        f"{type(optimizer).__name__} cannot step after its state was dropped "
        f"({type(problem).__name__}: {reason}); use 'cpu' or 'compress'"
    )
    raise ValueError(msg) from problem


def _changed_by_a_step(
    optimizer: torch.optim.Optimizer,
    group: dict[str, Any],
    like: torch.Tensor,
    memory: Any,
    *,
    sparse: bool,
) -> frozenset[str]:
    known = {each for group in optimizer.param_groups for each in group["params"]}
    matrix = nn.Parameter(torch.ones(_SIDE, _SIDE, dtype=like.dtype, device=like.device))
    gradient = torch.full_like(matrix, 0.5).detach()
    matrix.grad = gradient.to_sparse(1) if sparse else gradient
    twin = _twin(optimizer, group, matrix)
    if memory is not None:
        twin.state[matrix] = made_again(
            _mapped(memory, (_Filled, _Copied), lambda kept: _small(kept, like))
        )
    settings = twin.param_groups[0]
    before = {key: copy.deepcopy(value) for key, value in settings.items() if key != "params"}
    shared = {key: value for key, value in optimizer.state.items() if key not in known}
    twin.state.update(copy.deepcopy(shared))
    own = _numbers(vars(twin))
    cls: Any = type(optimizer)
    with forked_random(like.device), torch.enable_grad(), no_hooks_of_all():
        cls.step(twin)
    if not bool(matrix.isfinite().all()):
        msg = "its first step is not finite"
        raise ValueError(msg)
    others = {key: value for key, value in twin.state.items() if key is not matrix}
    if others.keys() != shared.keys() or not all(_same(shared[key], others[key]) for key in others):
        msg = "it keeps state that belongs to no parameter"
        raise ValueError(msg)
    counted = [key for key, value in _numbers(vars(twin)).items() if own.get(key) != value]
    if counted:
        msg = f"it counts steps in its attribute {counted[0]!r}"
        raise ValueError(msg)
    return frozenset(
        key
        for key, value in settings.items()
        if key != "params" and (key not in before or not _same(before[key], value))
    )


def _twin(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], matrix: nn.Parameter
) -> torch.optim.Optimizer:
    """Return an optimizer of the same class and settings whose only parameter is `matrix`."""
    cls: Any = type(optimizer)
    twin: torch.optim.Optimizer = cls.__new__(cls)
    memo: dict[int, Any] = {
        id(parameter): matrix for each in optimizer.param_groups for parameter in each["params"]
    }
    attributes = dict(vars(optimizer))
    for name in ("state", "param_groups", "step", *_HOOKS):  # a schedule may have patched `step`
        attributes.pop(name, None)
    memo[id(optimizer)] = twin
    settings = {key: value for key, value in group.items() if key != "params"}
    vars(twin).update(copy.deepcopy(attributes, memo))
    vars(twin).update({name: OrderedDict() for name in _HOOKS})
    twin.state = defaultdict(dict)
    twin.param_groups = [{**copy.deepcopy(settings, memo), "params": [matrix]}]
    return twin


def _remembered_tensor(tensor: torch.Tensor) -> Any:
    values = tensor.detach()
    if values.numel() and bool((values == values.flatten()[0]).all()):
        shape, strides = tuple(values.shape), tuple(values.stride())
        return _Filled(values.flatten()[0].item(), shape, strides, values.dtype, values.device)
    return _Copied(values.to("cpu", copy=True), values.device)


def _small(kept: _Filled | _Copied, like: torch.Tensor) -> _Filled | _Copied:
    """If `kept` has the shape of `like`, return it in the shape of the twin's parameter.

    Otherwise return `kept`.
    """
    shape = kept.shape if isinstance(kept, _Filled) else tuple(kept.values.shape)
    if shape != tuple(like.shape) or not shape:
        return kept
    if isinstance(kept, _Copied):
        some = kept.values.flatten()[:1].expand(_SIDE, _SIDE).contiguous()
        return attrs.evolve(kept, values=some)
    return attrs.evolve(kept, shape=(_SIDE, _SIDE), strides=(_SIDE, 1))


def _mapped(tree: Any, kinds: Any, change: Any) -> Any:
    """Return `tree` with `change` applied to each object of `kinds`, and copies of the rest."""
    if isinstance(tree, kinds):
        return change(tree)
    if isinstance(tree, dict):
        return {key: _mapped(value, kinds, change) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_mapped(value, kinds, change) for value in tree)
    if isinstance(tree, torch.Tensor | _Filled | _Copied):
        return tree
    return copy.deepcopy(tree)


def _numbers(attributes: Mapping[str, Any]) -> dict[str, Any]:
    # torch's own counters for schedulers begin with an underscore; they are left out.
    return {
        key: value
        for key, value in attributes.items()
        if isinstance(value, int | float) and not key.startswith("_")
    }


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    try:
        return bool(one == other)
    except (RuntimeError, ValueError):
        return False
