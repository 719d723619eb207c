"""Some parameters of an optimizer stepped by its own class, over tensors that lie elsewhere.

A twin of the optimizer, which shares its options but has stand-ins for its parameters, takes the
step. The optimizer itself is only written to when that is over, and its hooks do not run.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import nn, optim

from neaptide_kernels.adamw_split.split_master import join, split

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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
"""Classes whose update of a parameter depends on it, its gradient and its state alone, and whose
state tensors have the parameter's shape or none."""

LO = "lo"
"""The name under which an optimizer's state may hold what `split` put beside a weight."""


@attrs.frozen(eq=False)
class Item:
    """One parameter's step: what is read, and what is updated in place, all on one device.

    Attributes:
        parameter: the optimizer's own; only its place in the optimizer is used, not its values.
        weight: of the parameter's shape. With `lo` a bfloat16, else of any floating dtype.
        gradient: of that shape, of any floating dtype; the update is computed in the weight's, or
            in float32 with `lo`. The class may write into it.
        state: the tensors named by `state_layout`, in its dtypes and the weight's shape. What they
            hold before the parameter's first step does not matter.
        lo: int16, what `split` put beside the weight: the step is then that of the float32.
        shown: what the optimizer's state is to hold under each name of `state`, where that is
            not the same tensors (a copy on the host, say, to which the caller copies back); with
            a further name "lo", what it is to hold for `lo`, which is not in there otherwise.
    """

    parameter: torch.Tensor
    weight: torch.Tensor
    gradient: torch.Tensor
    state: Mapping[str, torch.Tensor] = attrs.field(factory=dict)
    lo: torch.Tensor | None = None
    shown: Mapping[str, torch.Tensor] = attrs.field(
        default=attrs.Factory(lambda self: self.state, takes_self=True)
    )


def adoptable(optimizer: optim.Optimizer) -> str | None:
    """Return None if `step_away` is exact for the optimizer, else why it is not, in one line.

    A class that torch does not have says itself, in its own body, that it is as those of `ADOPTED`:
    `separable = True`. What a subclass of it does is not known from that.
    """
    if type(optimizer) not in ADOPTED and not vars(type(optimizer)).get("separable", False):
        name = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        known = ", ".join(sorted(cls.__name__ for cls in ADOPTED))
        return (
            f"{name} is none of torch.optim's {known} and does not say separable = True: its step "
            f"may look at any parameter"
        )
    for index, group in enumerate(optimizer.param_groups):
        for option in ("capturable", "differentiable"):
            if group.get(option):
                return f"{option}=True in parameter group {index} ties the step to its tensors"
    return None


def state_layout(
    optimizer: optim.Optimizer, group: dict[str, Any], dtype: torch.dtype
) -> dict[str, torch.dtype]:
    """Return the state tensors that a parameter of `group` has after its first step.

    Names and dtypes of those of the parameter's shape; the others have no dimension and stay in
    the optimizer's state. Found by a step of the class on a matrix of four numbers.

    Args:
        optimizer: one that `adoptable` accepts.
        group: one of its groups.
        dtype: that of the weight in the update: float32 with a split master.
    """
    cls: Any = type(optimizer)
    matrix = nn.Parameter(torch.ones(2, 2, dtype=dtype, device="cpu"))
    matrix.grad = torch.ones_like(matrix)
    # What concerns the device or a schedule is not the state's business.
    plain = group | {"params": [matrix], "lr": 0.1, "foreach": False, "fused": False}
    probe = cls(
        **{name: plain[name] for name in inspect.signature(cls).parameters if name in group}
    )
    _plain_step(cls)(probe)
    state = probe.state[matrix].items() if matrix in probe.state else ()
    return {
        name: value.dtype
        for name, value in state
        if isinstance(value, torch.Tensor) and value.shape == matrix.shape
    }


@torch.no_grad()
def step_away(optimizer: optim.Optimizer, items: Sequence[Item]) -> None:
    """Step the items' parameters as `optimizer.step()` would, bit for bit, where their tensors lie.

    Options are read from the optimizer's groups as they are. Afterwards its state has the entries
    that its own step would have left, with the `shown` tensors for those of the parameter's
    shape. A tensor found in its state in the place of a shown one, as after `load_state_dict`,
    counts: it is copied into the item's. Hooks on the step do not run, and wrappers of the
    optimizer's `step` are not called. If the class raises, groups and state are as they were.

    Beside the first step's new state and what the class itself allocates, an item with `lo` takes
    a float32 of the weight's size, and a gradient of another dtype one more: pass fewer items.

    Raises:
        ValueError: a parameter is not in the optimizer or twice in `items`, or the class made a
            state tensor of the parameter's shape that the item has no tensor for.
    """
    state: defaultdict[torch.Tensor, dict[str, Any]] = defaultdict(dict)
    proxies = {id(item.parameter): _proxy(item, optimizer.state) for item in items}
    groups = [
        {**group, "params": [proxies[id(p)] for p in group["params"] if id(p) in proxies]}
        for group in optimizer.param_groups
    ]
    if not len(items) == len(proxies) == sum(len(group["params"]) for group in groups):
        message = "a parameter is in a step twice, or in none of the optimizer's groups"
        raise ValueError(message)
    fused = {id(proxy) for group in groups if group.get("fused") for proxy in group["params"]}
    for item in items:
        if item.parameter in optimizer.state:
            proxy = proxies[id(item.parameter)]
            kept = optimizer.state[item.parameter]
            state[proxy] = working(item, kept, fused=id(proxy) in fused)
    twin = object.__new__(type(optimizer))
    twin.__dict__.update(optimizer.__dict__, param_groups=groups, state=state)
    _plain_step(type(optimizer))(twin)
    left = [settled(item, state.get(proxies[id(item.parameter)], {})) for item in items]
    for item, kept in zip(items, left, strict=True):
        if item.lo is not None:
            split(proxies[id(item.parameter)].data, item.weight.detach(), item.lo)
        if kept:
            optimizer.state.setdefault(item.parameter, {}).update(kept)


def _proxy(item: Item, state: Mapping[torch.Tensor, Mapping[str, Any]]) -> nn.Parameter:
    weight = item.weight.detach()
    if item.lo is not None:
        adopt_lo(item, state)
        weight = join(weight, item.lo)
    proxy = nn.Parameter(weight, requires_grad=False)
    proxy.grad = item.gradient.detach().to(proxy.dtype)
    return proxy


def adopt_lo(item: Item, state: Mapping[torch.Tensor, Mapping[str, Any]]) -> None:
    """Copy what was loaded into an optimizer's state for the item's `lo`, if anything was."""
    loaded = state[item.parameter].get(LO) if item.parameter in state else None
    if item.lo is not None and loaded is not None and loaded is not item.shown.get(LO, loaded):
        item.lo.copy_(loaded)


def working(item: Item, kept: Mapping[str, Any], *, fused: bool) -> dict[str, Any]:
    """Return the state for the step: the item's tensors, up to date, and the scalars as kept."""
    state: dict[str, Any] = {}
    for name, value in kept.items():
        if item.lo is not None and name == LO:
            continue
        if name in item.state and isinstance(value, torch.Tensor):
            if value is not item.shown[name]:
                item.state[name].copy_(value)
            state[name] = item.state[name]
        elif fused and isinstance(value, torch.Tensor):
            state[name] = value.to(item.weight.device)  # where a fused kernel wants its step count
        else:
            state[name] = value
    return state


def settled(item: Item, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state to keep after the step, what the class made copied into the item's."""
    kept: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and name in item.state:
            if value is not item.state[name]:
                item.state[name].copy_(value)
            kept[name] = item.shown[name]
        elif isinstance(value, torch.Tensor) and value.dim():
            message = (
                f"the optimizer now keeps {name!r} for a parameter of shape "
                f"{tuple(item.weight.shape)}, for which there is no room: since its state was laid "
                "out, the parameter was added (add_param_group) or an option turned on (a momentum "
                "of 0?); begin with it, or step on the CPU"
            )
            raise ValueError(message)
        else:
            kept[name] = value
    return kept | ({LO: item.shown[LO]} if item.lo is not None and LO in item.shown else {})


def _plain_step(cls: type[optim.Optimizer]) -> Callable[[optim.Optimizer], Any]:
    """Return the step of a class without what torch wraps around it to run hooks."""
    step: Any = cls.step
    while getattr(step, "hooked", False):
        step = step.__wrapped__
    plain: Callable[[optim.Optimizer], Any] = step
    return plain
