"""The base class of `Adam8bit` and `Lion8bit`: a torch optimizer with a state of 8-bit codes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch

from .lists import WEIGHTS, check_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_BETAS = 2


class CodedOptimizer(torch.optim.Optimizer, ABC):
    """An optimizer that updates many parameters of a group in one call of an op.

    The parameters of one call have equal dtypes and the same device. As in torch's optimizers,
    changes to `param_groups` have an effect. `lr` may be a number or a 0-dim tensor. A CUDA graph
    reads the value of this tensor at each replay. Weights are float32, or bfloat16 with stochastic
    rounding. Gradients are float32 or bfloat16, and dense. The random bits depend only on `seed`,
    on the parameter's number in the optimizer and on its step count; so a resumed run, and one that
    updates some of the parameters at a time, has the same bits.

    Raises:
        ValueError: a parameter or a gradient has another dtype or layout.
    """

    state_names: tuple[str, ...]
    """Names of the state tensors in the order of the op's arguments; the last is the step count."""
    places: Mapping[torch.Tensor, int] | None = None
    """By parameter, its number in the optimizer. It is set where tensors that stand for some of the
    parameters are updated; None: the parameters of `param_groups` are numbered."""

    @abstractmethod
    def new_state(self, param: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the state of a parameter before the first step."""

    @abstractmethod
    def update(
        self,
        lists: Sequence[list[torch.Tensor]],
        lr: torch.Tensor,
        group: dict[str, Any],
        seed: int,
    ) -> None:
        """Call the op. `lists`: parameters, gradients, then one list per name in `state_names`."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; ValueError for a wrong option, or a parameter that cannot be updated."""
        super().add_param_group(param_group)
        try:
            self._check_group(self.param_groups[-1], len(self.param_groups) - 1)
        except ValueError:
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; return the result of `closure`, if given.

        Args:
            closure: evaluates the model again, with gradients, and returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        places = self.numbered() if self.places is None else self.places
        for group in self.param_groups:
            for params in _alike(group["params"]):
                self._step(params, places, group)
        return loss

    def numbered(self) -> dict[torch.Tensor, int]:
        """Return the number of each parameter in the optimizer."""
        params = (param for group in self.param_groups for param in group["params"])
        return {param: place for place, param in enumerate(params)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a saved state and keep the dtypes of the state.

        The method of torch's base class would convert codes to the dtype of the weights.

        Raises:
            ValueError: the state is from another optimizer, or for parameters of other shapes.
        """
        saved = state_dict["state"]
        groups = zip(state_dict["param_groups"], self.param_groups, strict=False)
        pairs = [
            (number, param)
            for before, now in groups
            for number, param in zip(before["params"], now["params"], strict=False)
        ]
        for number, param in pairs:
            if saved.get(number):
                self._check_state(number, saved[number], param)
        super().load_state_dict(state_dict)
        for number, param in pairs:
            for name, value in saved.get(number, {}).items():
                self.state[param][name] = value.to(param.device, copy=True)

    def _step(
        self,
        params: Sequence[torch.Tensor],
        places: Mapping[torch.Tensor, int],
        group: dict[str, Any],
    ) -> None:
        """Update parameters with equal dtypes and one device.

        An empty row stands for each other parameter, because the op takes random bits by places in
        its lists.
        """
        rows = [self._empty_row(params[0])] * (1 + max(places[param] for param in params))
        for param in params:
            rows[places[param]] = self._row(param)
        lists = [list(column) for column in zip(*rows, strict=True)]
        torch._foreach_add_([self.state[param][self.state_names[-1]] for param in params], 1.0)
        self.update(lists, _rate(group["lr"], params[0].device), group, group["seed"])

    def _check_group(self, group: dict[str, Any], place: int) -> None:
        name = type(self).__name__
        check_options(name, group)
        for index, param in enumerate(group["params"]):
            if param.requires_grad and param.dtype not in WEIGHTS:
                msg = (
                    f"{name} updates float32 and bfloat16 parameters, but parameter "
                    f"{index} of group {place} is {param.dtype}; convert it, or freeze it"
                )
                raise ValueError(msg)

    def _row(self, param: torch.Tensor) -> list[Any]:
        if not self.state[param]:
            made = self.new_state(param)
            self.state[param] = dict(zip(self.state_names, made, strict=True))
        state = self.state[param]
        return [param, param.grad, *(state[name] for name in self.state_names)]

    def _empty_row(self, param: torch.Tensor) -> list[torch.Tensor]:
        given: tuple[Any, ...] = (param, param.grad)
        weight, gradient = (tensor.new_empty(0) for tensor in given)
        return [weight, gradient, *self.new_state(weight)]

    def _check_state(self, number: int, saved: dict[str, Any], param: torch.Tensor) -> None:
        name = type(self).__name__
        if not set(self.state_names) <= set(saved):
            msg = (
                f"the state of parameter {number} has {', '.join(sorted(saved))}, but {name} "
                f"needs {', '.join(sorted(self.state_names))}; load a state saved by {name}"
            )
            raise ValueError(msg)
        made = dict(zip(self.state_names, self.new_state(param), strict=True))
        for key, tensor in made.items():
            value = saved[key]
            if (value.dtype, value.shape) != (tensor.dtype, tensor.shape):
                msg = (
                    f"{key!r} of parameter {number} is {value.dtype} {list(value.shape)} in the "
                    f"state; {name} needs {tensor.dtype} {list(tensor.shape)}"
                )
                raise ValueError(msg)


def _alike(params: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Return the parameters that have gradients, in lists with equal dtypes and one device."""
    lists: dict[tuple[Any, ...], list[torch.Tensor]] = {}
    for param in params:
        if param.grad is not None:
            key = (param.dtype, param.grad.dtype, param.device)
            lists.setdefault(key, []).append(param)
    return list(lists.values())


def _rate(lr: float | torch.Tensor, device: torch.device) -> torch.Tensor:
    if isinstance(lr, torch.Tensor):
        return lr.detach().to(device, torch.float32).reshape(())
    return torch.full((), lr, dtype=torch.float32, device=device)


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise ValueError for an option that is out of range."""
    check_rate(name, options["lr"])
    betas, seed = options["betas"], options["seed"]
    if len(betas) != _BETAS:
        msg = f"{name}: betas must be two numbers in [0, 1) (got {betas})"
        raise ValueError(msg)
    if not isinstance(seed, int) or not -(1 << 63) <= seed < 1 << 63:
        msg = f"{name}: seed must be an integer of 64 bits (got {seed})"
        raise ValueError(msg)
    numbers = {option: options[option] for option in ("eps", "weight_decay") if option in options}
    check_numbers(name, beta1=betas[0], beta2=betas[1], **numbers)


def check_rate(name: str, lr: float | torch.Tensor) -> None:
    """Raise ValueError for a learning rate that is negative, inf, NaN, or not a single number.

    The value of a tensor is not checked, because a check would make the host wait for the device.
    """
    if isinstance(lr, torch.Tensor):
        if lr.numel() != 1:
            msg = f"{name}: Tensor lr must be 1-element (got {list(lr.shape)})"
            raise ValueError(msg)
    elif not 0.0 <= lr < float("inf"):
        msg = f"{name}: lr must be finite and at least 0 (got {lr})"
        raise ValueError(msg)
