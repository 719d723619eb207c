"""Runs an optimizer's step for some parameters, on separate tensors with their values.

A second object of the optimizer's class, the twin, makes the step. The twin has the same options,
and a proxy parameter for each parameter. The optimizer itself is changed only after the step, and
the optimizer's hooks do not run.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import nn, optim

from neaptide.errors import ModelError
from neaptide_kernels.adamw_split.split_master import join, split
from neaptide_kernels.state_codes.optimizer import CodedOptimizer
from neaptide_toolkit.optim.foreach_optimizer import ForeachOptimizer
from neaptide_toolkit.optim.rounding import NARROW
from neaptide_toolkit.optimizer_hooks import no_hooks_of_all, plain_step
from neaptide_toolkit.tensors import laid_out_as

from .members import members
from .step_hooks import hooks_of_twin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ADOPTED: frozenset[type[optim.Optimizer]] = frozenset(
    {
        optim.ASGD,
        optim.Adadelta,
        optim.Adagrad,
        optim.Adam,
        optim.AdamW,
        optim.Adamax,
        optim.Muon,
        optim.NAdam,
        optim.RAdam,
        optim.RMSprop,
        optim.Rprop,
        optim.SGD,
    }
)
"""Classes whose update of a parameter reads only the parameter, its gradient and its state.

Each state tensor of these classes has the parameter's shape or no dimension.
"""

LO = "lo"
"""Name of the state tensor with the lower 16 bits that `split` separates from a weight."""


@attrs.frozen(eq=False)
class Item:
    """The tensors of one parameter's step, all on one device.

    Weight and state are changed in place.

    Attributes:
        parameter: the optimizer's parameter. It identifies the parameter group; its values are not
            used.
        weight: a tensor of the parameter's shape; bfloat16 with `lo`, else of any floating dtype.
        gradient: a tensor of the parameter's shape and any floating dtype. The update is computed
            in the weight's dtype, or in float32 with `lo`. The optimizer's class may change the
            gradient.
        state: the tensors that `state_layout` names, with the dtypes from `state_layout` and the
            weight's shape; or those of `ForeachOptimizer.new_state`, except `"step"`, with their
            shapes. Before the parameter's first step their values are ignored.
        lo: int16, the lower bits that `split` returns. The step is then made on the float32
            weight.
        shown: by name, the tensors that the optimizer's state will contain instead of the tensors
            in `state`. An example is a copy on the host that the caller updates. `shown` may also
            have an entry `lo`.
        proxy: without `lo`, a parameter on the memory of `weight` that makes the step, if there is
            one. Its gradient is None.
    """

    parameter: torch.Tensor
    weight: torch.Tensor
    gradient: torch.Tensor
    state: Mapping[str, torch.Tensor] = attrs.field(factory=dict)
    lo: torch.Tensor | None = None
    shown: Mapping[str, torch.Tensor] = attrs.field(
        default=attrs.Factory(lambda self: self.state, takes_self=True)
    )
    proxy: nn.Parameter | None = None


def adoptable(optimizer: optim.Optimizer) -> str | None:
    """Return None if `step_away` is exact for the optimizer, else the reason in one line.

    A class that is not from torch must meet the conditions of `ADOPTED`. It declares this by
    `separable = True` in the class body. Subclasses do not inherit the declaration.
    """
    if type(optimizer) not in ADOPTED and not vars(type(optimizer)).get("separable", False):
        name = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        known = ", ".join(sorted(cls.__name__ for cls in ADOPTED))
        return (
            f"{name} is none of torch.optim's {known} and does not declare separable = True: its "
            f"step may read any parameter"
        )
    for index, group in enumerate(optimizer.param_groups):
        for option in ("capturable", "differentiable"):
            if group.get(option):
                return f"{option}=True in parameter group {index} binds the step to its tensors"
    return None


def state_layout(
    optimizer: optim.Optimizer, group: dict[str, Any], dtype: torch.dtype
) -> dict[str, torch.dtype]:
    """Return names and dtypes of the state tensors of a parameter of `group` after a step.

    The result has only the tensors of the parameter's shape. Other state tensors have no dimension
    and stay in the optimizer's state. To find the names, an optimizer of the same class makes a
    step on a matrix of four numbers.

    Args:
        optimizer: an optimizer that `adoptable` accepts.
        group: a group of the optimizer.
        dtype: the dtype of the weight in the update; float32 with a split master.
    """
    cls: Any = type(optimizer)
    matrix = nn.Parameter(torch.ones(2, 2, dtype=dtype, device="cpu"))
    matrix.grad = torch.ones_like(matrix)
    # `foreach`, `fused` and the learning rate do not affect the state's layout.
    plain = group | {"params": [matrix], "lr": 0.1, "foreach": False, "fused": False}
    probe = cls(**{name: plain[name] for name in _options(cls) if name in group})
    with no_hooks_of_all():
        plain_step(cls)(probe)
    state = probe.state[matrix].items() if matrix in probe.state else ()
    return {
        name: value.dtype
        for name, value in state
        if isinstance(value, torch.Tensor) and value.shape == matrix.shape
    }


def _options(cls: type) -> Iterator[str]:
    """Yield the names of the arguments of a class, also of those that it passes to its base."""
    for each in cls.__mro__:
        if "__init__" in vars(each):
            parameters = inspect.signature(each.__init__).parameters  # type: ignore[misc]  # of a class, not of an object
            yield from parameters
            if all(one.kind is not one.VAR_KEYWORD for one in parameters.values()):
                return


@torch.no_grad()
def step_away(optimizer: optim.Optimizer, items: Sequence[Item]) -> None:
    """Update the items' tensors as `optimizer.step()` would update the parameters, bit for bit.

    The step uses the options of the optimizer's groups. Afterwards the optimizer's state has the
    same entries as after `optimizer.step()`. Its state tensors of the parameter's shape are then
    the tensors in `shown`. If the state contains a different tensor before the step, for example
    after `load_state_dict`, that tensor is first copied into the item's tensor. Hooks on the step
    do not run, and wrappers of the optimizer's `step` are not called. This holds also for a class
    whose step calls the step of its base. If the class raises an error, groups and state are
    unchanged.

    Each item with `lo` needs memory for a float32 copy of its weight. A gradient whose dtype or
    strides differ from those of the update needs memory for one copy. The optimizer's class
    allocates additional memory. Pass fewer items to save memory.

    Raises:
        ModelError: a parameter is not in the optimizer, or it is twice in `items`, or the class
            has created a state tensor of the parameter's shape that the item does not have, or
            torch would run a hook of the user a second time in the step of the class's base.
    """
    state: defaultdict[torch.Tensor, dict[str, Any]] = defaultdict(dict)
    proxies = {id(item.parameter): _proxy(item, optimizer.state) for item in items}
    found = members(optimizer, [item.parameter for item in items])
    groups = [
        {**group, "params": [proxies[id(one)] for one in found.get(number, ())]}
        for number, group in enumerate(optimizer.param_groups)
    ]
    if not len(items) == len(proxies) == sum(len(group["params"]) for group in groups):
        message = "a parameter is twice in a step, or in none of the optimizer's groups"
        raise ModelError(message)
    fused = {
        id(proxy)
        for group in groups
        if group.get("fused") or isinstance(optimizer, CodedOptimizer)
        for proxy in group["params"]
    }
    for item in items:
        kept = optimizer.state.get(item.parameter)
        if kept is not None:
            proxy = proxies[id(item.parameter)]
            state[proxy] = working(item, kept, fused=id(proxy) in fused)
    twin: Any = object.__new__(type(optimizer))
    twin.__dict__.update(optimizer.__dict__, param_groups=groups, state=state)
    twin.__dict__.update(hooks_of_twin(optimizer))
    narrow = any(proxy.dtype in NARROW for proxy in proxies.values())
    # Without random bits, numbers are not needed: only 16-bit weights are rounded.
    if isinstance(optimizer, CodedOptimizer) or (
        isinstance(optimizer, ForeachOptimizer) and (narrow or optimizer.placed)
    ):
        places = optimizer.numbered()
        twin.places = {proxies[id(item.parameter)]: places[item.parameter] for item in items}
    try:
        with no_hooks_of_all():
            plain_step(type(optimizer))(twin)
    finally:
        for proxy in proxies.values():
            proxy.grad = None
    left = [settled(item, state.get(proxies[id(item.parameter)], {})) for item in items]
    for item, kept in zip(items, left, strict=True):
        if item.lo is not None:
            split(proxies[id(item.parameter)].data, item.weight.detach(), item.lo)
        if kept:
            optimizer.state.setdefault(item.parameter, {}).update(kept)


def _proxy(item: Item, state: Mapping[torch.Tensor, Mapping[str, Any]]) -> nn.Parameter:
    proxy, gradient = item.proxy, item.gradient
    if item.lo is not None:
        adopt_lo(item, state)
        proxy = nn.Parameter(join(item.weight.detach(), item.lo), requires_grad=False)
    elif proxy is None:
        proxy = nn.Parameter(item.weight.detach(), requires_grad=False)
    if gradient.requires_grad or gradient.dtype != proxy.dtype:
        gradient = gradient.detach().to(proxy.dtype)
    proxy.grad = laid_out_as(proxy, gradient)
    return proxy


def adopt_lo(item: Item, state: Mapping[torch.Tensor, Mapping[str, Any]]) -> None:
    """If the optimizer's state has a loaded `lo`, copy it into the item's `lo`."""
    loaded = state[item.parameter].get(LO) if item.parameter in state else None
    if item.lo is not None and loaded is not None and loaded is not item.shown.get(LO, loaded):
        item.lo.copy_(loaded)


def working(item: Item, kept: Mapping[str, Any], *, fused: bool) -> dict[str, Any]:
    """Return the state for the step.

    `kept` is the optimizer's state of the parameter. The result has the same entries, except `lo`.
    Its tensors of the parameter's shape are the item's tensors, filled with the values from `kept`.
    """
    state: dict[str, Any] = {}
    for name, value in kept.items():
        if item.lo is not None and name == LO:
            continue
        if name in item.state and isinstance(value, torch.Tensor):
            if value is not item.shown[name]:
                item.state[name].copy_(value)
            state[name] = item.state[name]
        elif isinstance(value, torch.Tensor) and value.dim():
            raise ModelError(_no_memory(name, item))
        elif fused and isinstance(value, torch.Tensor):
            state[name] = value.to(item.weight.device)  # read by a fused kernel
        else:
            state[name] = value
    return state


def settled(item: Item, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state to keep after the step. `state` is the state that the step has changed.

    If the step created a new tensor, that tensor is copied into the item's tensor.
    """
    kept: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and name in item.state:
            if value is not item.state[name]:
                item.state[name].copy_(value)
            kept[name] = item.shown[name]
        elif isinstance(value, torch.Tensor) and value.dim():
            raise ModelError(_no_memory(name, item))
        else:
            kept[name] = value
    return kept | ({LO: item.shown[LO]} if item.lo is not None and LO in item.shown else {})


def _no_memory(name: str, item: Item) -> str:
    return (
        f"the optimizer now has a state tensor {name!r} for a parameter of shape "
        f"{tuple(item.weight.shape)}, for which there is no memory: after the start the parameter "
        f"was added (add_param_group) or an option turned on (a momentum that was 0?); set it "
        f"before the start, or step on the CPU"
    )
