"""The optimizer's state before it exists: a step of the same optimizer on the meta device."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from neaptide.errors import ModelError
from neaptide_toolkit.optimizer_hooks import no_hooks_of_all
from neaptide_toolkit.tensors import nested_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_ITEM = torch.ops.aten._local_scalar_dense.default  # noqa: SLF001 - the operation of `Tensor.item`
_KINDS = ("foreach", "fused", "capturable")  # how a step computes; not what state it makes


def expected_state(optimizer: torch.optim.Optimizer) -> dict[nn.Parameter, Any]:
    """Return the state that the first update will make, on the meta device, by parameter.

    Every trainable parameter is assumed to get a gradient. The result is empty if there is state
    already. A copy of the optimizer makes a step on the meta device, which takes no memory.

    Raises:
        ModelError: such a step is not possible. The text has the reason.
    """
    if any(optimizer.state.values()):
        return {}
    try:
        return after_a_step(optimizer)
    except Exception as error:
        reason = " ".join(str(error).split())
        msg = (
            f"the state of {type(optimizer).__name__} is not known before the first update, "
            f"because a step on the meta device fails ({reason}); estimate after one update"
        )
        raise ModelError(msg) from error


def state_bytes(optimizer: torch.optim.Optimizer) -> dict[nn.Parameter, int]:
    """Return the bytes of each parameter's state: of the present state, or of the expected one.

    Raises ModelError as `expected_state` does.
    """
    state: Mapping[Any, Any] = expected_state(optimizer) or optimizer.state
    return {
        parameter: sum(tensor.nbytes for tensor in nested_tensors(held))
        for parameter, held in state.items()
    }


def after_a_step(
    optimizer: torch.optim.Optimizer, shapes: Mapping[Any, Sequence[int]] | None = None
) -> dict[nn.Parameter, Any]:
    """Return the state after a step, on the meta device. Any error means: it is not possible.

    `shapes` are those of whole parameters, if the optimizer has only parts of them.
    """
    original: dict[nn.Parameter, nn.Parameter] = {}
    groups = []
    for group in optimizer.param_groups:
        parameters = []
        for parameter in group["params"]:
            twin = nn.Parameter(_on_meta(parameter, shapes or {}), parameter.requires_grad)
            if parameter.requires_grad:
                twin.grad = torch.empty_like(twin)
            original[twin] = parameter
            parameters.append(twin)
        plain = {kind: False for kind in _KINDS if group.get(kind)}
        groups.append({**group, **plain, "params": parameters})
    copy: Any = object.__new__(type(optimizer))
    copy.__dict__ = {
        **optimizer.__dict__,
        "param_groups": groups,
        "state": defaultdict(dict),
        "_optimizer_step_pre_hooks": OrderedDict(),
        "_optimizer_step_post_hooks": OrderedDict(),
    }
    copy.__dict__.pop("step", None)  # a learning rate scheduler wraps the optimizer's own
    ones = _Ones()  # type: ignore[no-untyped-call]  # torch leaves it so
    with ones, torch.random.fork_rng(devices=()), no_hooks_of_all():
        copy.step()
    return {original[twin]: state for twin, state in copy.state.items() if twin in original}


def _on_meta(parameter: torch.Tensor, shapes: Mapping[Any, Sequence[int]]) -> torch.Tensor:
    shape = shapes.get(parameter, parameter.shape)
    if tuple(shape) == tuple(parameter.shape):
        return torch.empty_like(parameter, device="meta")
    return torch.empty(tuple(shape), dtype=parameter.dtype, device="meta")


class _Ones(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it so
    """Reads 1 from a tensor on the meta device, which has no value."""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        if func is _ITEM and args[0].is_meta:
            return torch.ones((), dtype=args[0].dtype).item()
        return func(*args, **(kwargs or {}))
