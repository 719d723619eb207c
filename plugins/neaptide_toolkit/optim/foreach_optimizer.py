"""Base class of torch optimizers that update many dense parameters in one call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch

from .rounding import NARROW, ROUNDINGS, round_into, seed_of, widened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch.optim.optimizer import ParamsT

STEP = "step"
"""Name of the state tensor that counts the updates of a parameter."""
TOGETHER = 1 << 22
"""Largest number of elements in one call of `update`, unless one parameter is larger. So temporary
tensors are small."""


def ones(counts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return a one for each count; torch adds tensors to many counts sooner than a number."""
    return [counts[0].new_ones(())] * len(counts)


class ForeachOptimizer(torch.optim.Optimizer, ABC):
    """An optimizer that updates parameters in batches, by torch's `_foreach` operations.

    Every group has the options `rounding`, by default `"nearest"`, and `seed`. With
    `rounding = "stochastic"` an update of bfloat16 or float16 parameters is computed in float32 and
    rounded stochastically. The state must have a `"step"`. The random bits depend only on `seed`,
    on the parameter's place in `param_groups` and on its `"step"`; so a resumed run, and one that
    updates block by block, has the same bits.

    The parameters of a batch have the same group, device, dtype, names of state tensors and, if the
    state has a `"step"`, step count. A subclass declares `separable = True` in its own body if its
    update of a parameter reads only the parameter, its gradient and its state. `layer-streaming`
    then runs it block by block. The state tensors may have any shape. In the same way it declares
    `elementwise = True` if each value is updated by itself: then each process may update some rows.
    """

    rounded_state: tuple[str, ...] = ()
    """Names of the state tensors that are rounded stochastically, too, because their changes are
    small. The gradients are float32 then."""
    places: Mapping[torch.Tensor, int] | None = None
    """By parameter, its number in the optimizer. It is set where tensors that stand for some of the
    parameters are updated; None: the parameters of `param_groups` are numbered."""
    placed: bool = False
    """Whether `update` finds the number of each parameter of its batch in `group["places"]`, for
    random numbers of its own."""

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        super().__init__(params, {"rounding": "nearest", "seed": 0} | defaults)

    @abstractmethod
    def new_state(self, param: torch.Tensor, group: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the state of a parameter of `group` before its first update.

        All tensors are on the parameter's device, except `"step"`. A tensor `"step"` (float32, no
        dimension, on the CPU) counts the updates. `step` adds 1 to it before `update`. The names,
        shapes and dtypes depend only on the group and on the parameter's shape, strides and dtype.
        A parameter on the meta device has state on the meta device.
        """

    @abstractmethod
    def update(
        self,
        params: list[torch.Tensor],
        grads: list[torch.Tensor],
        state: Mapping[str, list[torch.Tensor]],
        group: dict[str, Any],
    ) -> None:
        """Update a batch in place.

        Args:
            params: parameters of one group, device and dtype, or float32 copies that are rounded
                afterwards.
            grads: the dense gradient of each parameter.
            state: by name, the state tensor of each parameter.
            group: the options.
        """

    def update_in_one_pass(
        self,
        params: list[torch.Tensor],
        grads: list[torch.Tensor],
        state: Mapping[str, list[torch.Tensor]],
        group: dict[str, Any],
        seeds: Sequence[int],
    ) -> bool:
        """Update a batch and round it, if a kernel does both at once; return whether one did.

        The bits are those of `update`. `seeds` has that of each parameter for `round_into`; it is
        empty if nothing is rounded stochastically. The other arguments are those of `update`.
        """
        del params, grads, state, group, seeds
        return False

    @abstractmethod
    def out_of_range(self, group: Mapping[str, Any]) -> dict[str, bool]:
        """Return for each option of a group whether its value is out of range."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; ValueError if an option or a parameter of the group does not fit."""
        super().add_param_group(param_group)
        try:
            self._check(self.param_groups[-1], len(self.param_groups) - 1)
        except ValueError:
            self.param_groups.pop()
            raise

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a saved state; each tensor gets the dtype that `new_state` gives it.

        The method of torch's base class would round all to the dtype of the weights.

        Raises:
            ValueError: the state is from another optimizer, or for parameters of other shapes.
        """
        defaults = dict(self.defaults)  # torch adds one of its own when it loads
        saved = state_dict["state"]
        groups = zip(state_dict["param_groups"], self.param_groups, strict=False)
        loaded = [
            (param, saved[number], self.new_state(torch.empty_like(param, device="meta"), now))
            for before, now in groups
            for number, param in zip(before["params"], now["params"], strict=False)
            if saved.get(number)
        ]
        for place, (_, state, made) in enumerate(loaded):
            self._check_state(place, state, made)
        super().load_state_dict(state_dict)
        for param, state, made in loaded:
            for name, like in made.items():
                if name != STEP and like.dtype != param.dtype:
                    value = state[name].to(param.device, like.dtype, copy=True)
                    self.state[param][name] = value
        for group in self.param_groups:  # a state from before an option existed lacks the option
            for option, default in defaults.items():
                group.setdefault(option, default)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; return what `closure` returns, if given.

        Args:
            closure: evaluates the model again, with gradients, and returns the loss.

        Raises:
            ValueError: a gradient is sparse. No parameter of its group is updated then.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        places = self.places if self.places is not None else self.numbered()
        for group in self.param_groups:
            pairs = [(param, param.grad) for param in group["params"] if param.grad is not None]
            for _, grad in pairs:
                self._check_gradient(grad)
            states = [self.state[param] for param, _ in pairs]
            for (param, _), state in zip(pairs, states, strict=True):
                if not state:
                    state.update(self.new_state(param, group))
            counts = [state[STEP] for state in states if STEP in state]
            if counts:
                torch._foreach_add_(counts, ones(counts))
            for batch in self._batches(pairs):
                self._update(batch, group, places)
        return loss

    def numbered(self) -> dict[torch.Tensor, int]:
        """Return the number of each parameter in the optimizer."""
        params = (param for group in self.param_groups for param in group["params"])
        return {param: place for place, param in enumerate(params)}

    def _update(
        self,
        batch: Sequence[tuple[torch.Tensor, torch.Tensor]],
        group: dict[str, Any],
        places: Mapping[torch.Tensor, int],
    ) -> None:
        params, grads = [param for param, _ in batch], [grad for _, grad in batch]
        names = self.state[params[0]]
        state = {name: [self.state[param][name] for param in params] for name in names}
        if self.placed:
            group = group | {"places": [places[param] for param in params]}
        rounding = params[0].dtype in NARROW and group["rounding"] == "stochastic"
        counted = zip(params, state[STEP], strict=True) if rounding else ()
        seeds = [seed_of(group["seed"], int(step), places[param], 0) for param, step in counted]
        if self.update_in_one_pass(params, grads, state, group, seeds):
            return
        if not rounding:
            self.update(params, grads, state, group)
            return
        wide_params = widened(params)
        wide = {name: widened(state[name]) for name in self.rounded_state if name in state}
        self.update(wide_params, widened(grads) if wide else grads, state | wide, group)
        changed = [(params, wide_params), *((state[name], wide[name]) for name in wide)]
        for index, param in enumerate(params):
            step = int(self.state[param][STEP])
            for part, (tensors, values) in enumerate(changed):
                seed = seed_of(group["seed"], step, places[param], part)
                round_into(tensors[index], values[index], seed)

    def _batches(
        self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]
    ) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
        alike: dict[tuple[Any, ...], list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for param, grad in pairs:
            state = self.state[param]
            count = int(state[STEP]) if STEP in state else None
            key = (count, tuple(state), param.device, param.dtype)
            alike.setdefault(key, []).append((param, grad))
        for each in alike.values():
            batch: list[tuple[torch.Tensor, torch.Tensor]] = []
            size = 0
            for param, grad in each:
                if batch and size + param.numel() > TOGETHER:
                    yield batch
                    batch, size = [], 0
                batch.append((param, grad))
                size += param.numel()
            yield batch

    def _check(self, group: dict[str, Any], place: int) -> None:
        name, lr = type(self).__name__, group.get("lr")
        if isinstance(lr, torch.Tensor) and lr.numel() != 1:
            msg = f"{name}: Tensor lr must be 1-element (got {list(lr.shape)})"
            raise ValueError(msg)
        seed = group["seed"]
        wrong = {
            "rounding": group["rounding"] not in ROUNDINGS,
            "seed": not isinstance(seed, int) or not 0 <= seed < 1 << 32,
        }
        for option, is_wrong in (self.out_of_range(group) | wrong).items():
            if is_wrong:
                msg = f"{name}: {option} is out of range (got {group[option]!r})"
                raise ValueError(msg)
        for index, param in enumerate(group["params"]):
            if not param.is_floating_point():
                msg = (
                    f"{name}: parameter {index} of group {place}, {param.dtype} "
                    f"{list(param.shape)}, has no real floating dtype; leave it out"
                )
                raise ValueError(msg)

    def _check_state(
        self, place: int, state: Mapping[str, Any], made: Mapping[str, torch.Tensor]
    ) -> None:
        name = type(self).__name__
        if not set(made) <= set(state):
            msg = (
                f"the state of parameter {place} has {', '.join(sorted(state))}, but {name} needs "
                f"{', '.join(sorted(made))}; load a state saved by {name}"
            )
            raise ValueError(msg)
        for key, like in made.items():
            shape = list(getattr(state[key], "shape", ()))
            if shape != list(like.shape):
                msg = (
                    f"{key!r} of parameter {place} is {shape} in the state; {name} needs "
                    f"{list(like.shape)}; load a state of a model with the same shapes"
                )
                raise ValueError(msg)

    def _check_gradient(self, grad: torch.Tensor) -> None:
        if grad.layout != torch.strided:
            msg = (
                f"{type(self).__name__} takes dense gradients (got {grad.layout}); set sparse=False"
            )
            raise ValueError(msg)
