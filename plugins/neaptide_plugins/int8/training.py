"""int8 training: weights are stored only as codes; each updated weight is rounded to codes.

The rounding is stochastic.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional
from torch.utils._pytree import tree_map_only

from neaptide_toolkit.low_precision import not_a_view

from .grid import round_to_grid
from .weight import Int8Weight

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .scheme import Scheme, WeightCodes
    from .targets import Target

_LINEAR = functional.linear
"""torch's own function. Other code may temporarily replace `functional.linear`."""


class TrainedWeight(Int8Weight):
    """An `Int8Weight` whose gradients are accumulated in its parameter.

    In the backward, `linear` decodes the weight again. Other operations may keep the values that
    were decoded in the forward. A read returns decoded values, because no full weight exists.
    """

    def __new__(cls, codes: Any, parameter: torch.nn.Parameter, device: torch.device) -> Any:  # noqa: D102 - as the parent's
        made = super().__new__(cls, codes, parameter, device)
        return made.requires_grad_(parameter.requires_grad)

    def __init__(
        self, codes: WeightCodes, parameter: torch.nn.Parameter, device: torch.device
    ) -> None:
        super().__init__(codes, parameter, device)
        if self.requires_grad:
            self.register_post_accumulate_grad_hook(_hand_over)  # type: ignore[no-untyped-call]  # torch leaves it so

    def whole(self) -> torch.nn.Parameter:
        """Return a parameter with the decoded values."""
        return torch.nn.Parameter(self.decoded(), self.requires_grad)

    @property
    def grad(self) -> torch.Tensor | None:
        """The parameter's gradient."""
        return self.parameter.grad

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        self.parameter.grad = value

    @classmethod
    def __torch_function__(  # type: ignore[override]  # the parent disables it
        cls, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace `linear` by `_Linear`, also in a recomputation inside `torch.autograd.grad`."""
        kwargs = kwargs or {}
        if function is torch.autograd.grad:
            # If `grad` gets a weight, it disables `__torch_function__` during the backward. If
            # `grad` gets the weight's gradient edge instead, `__torch_function__` stays enabled.
            args, kwargs = tree_map_only(TrainedWeight, get_gradient_edge, (args, kwargs))
            return function(*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            own = function is _LINEAR and torch.is_grad_enabled()
            if own and not torch._C._are_functorch_transforms_active():
                x, weight, bias = _linear_arguments(*args, **kwargs)
                if isinstance(weight, TrainedWeight):
                    return _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]  # torch leaves it so
            return function(*args, **kwargs)


def _linear_arguments(
    input: torch.Tensor,  # noqa: A002 - torch's name
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    return input, weight, bias


class _Linear(torch.autograd.Function):
    """Like the `linear` function, but saves only the input for the backward."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: TrainedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.has_bias = weight, bias is not None
        ctx.dtypes = x.dtype, weight.dtype, None if bias is None else bias.dtype
        return not_a_view(functional.linear(x, weight.decoded(), bias))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.dtypes
        flat = gradient.reshape(-1, gradient.shape[-1])
        x_gradient = weight_gradient = bias_gradient = None
        if ctx.needs_input_grad[0]:
            x_gradient = (gradient @ ctx.weight.decoded().to(gradient.dtype)).to(of_x)
        if ctx.needs_input_grad[1]:
            weight_gradient = (flat.t() @ x.reshape(-1, x.shape[-1]).to(flat.dtype)).to(of_weight)
        if ctx.has_bias and ctx.needs_input_grad[2]:
            bias_gradient = flat.sum(0).to(of_bias)
        return x_gradient, weight_gradient, bias_gradient


class KeptCodes:
    """Lets the parameter store read and write a weight that is stored as codes.

    Args:
        weight: the weight of the modules; each write replaces its codes.
        seeds: returns the seed of the next rounding.
    """

    def __init__(self, weight: TrainedWeight, seeds: Callable[[], int]) -> None:
        self._weight, self._seeds = weight, seeds

    def read(self) -> torch.Tensor:
        """Return the decoded weight."""
        return self._weight.decoded()

    def write(self, weight: torch.Tensor) -> None:
        """Round `weight` to the grid, and store its codes."""
        codes = self._weight.codes
        self._weight.codes = round_to_grid(weight, codes.group, self._seeds(), codes.channel)


class Training:
    """Replaces weights by codes between `begin` and `end`.

    Args:
        targets: the weights, of dtypes in `grid.TRAINABLE`.
        scheme: defines the groups that share a scale.
        device: the device of the weights.
        read: returns a context in which a target's full weight can be read.
        keep: `keep(target, codes)` makes the parameter store use `codes` to read and write the
            weight of `target`; returns a function that undoes this.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        scheme: Scheme,
        device: torch.device,
        read: Callable[[Target], Any],
        keep: Callable[[Target, KeptCodes], Callable[[], None]],
    ) -> None:
        self.moment = 0
        """Part of each seed. It increases by 1 at the start and at the end of every update."""
        self._targets, self._scheme, self._device = list(targets), scheme, device
        self._read, self._keep = read, keep
        self._begun: list[tuple[Target, Callable[[], None]]] = []

    @property
    def begun(self) -> bool:
        """True if the weights are replaced by codes now."""
        return bool(self._begun)

    def begin(self) -> None:
        """Round the weights to codes and replace them."""
        if self._begun:
            return
        try:
            for place, target in enumerate(self._targets):
                self._begin(target, place)
        except BaseException:
            self.end()
            raise

    def _begin(self, target: Target, place: int) -> None:
        group = self._scheme.group(target.parameter.shape, target.channel)
        with self._read(target) as full:
            codes = round_to_grid(full, group, self._seed(place), target.channel)
        weight = TrainedWeight(codes, target.parameter, self._device)
        back = self._keep(target, KeptCodes(weight, lambda: self._seed(place)))
        for module, attribute in target.sites:
            module._parameters[attribute] = weight  # type: ignore[assignment]  # it replaces one
        self._begun.append((target, back))

    def _seed(self, place: int) -> int:
        # The seed depends on `moment`, not on the number of writes: an evaluation, a refused jump
        # and a resume also write, but must not change the rounding of later updates.
        return self.moment * len(self._targets) + place

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Change the seeds at the start of the context, and change them again at its end."""
        self.moment += 1
        try:
            yield
        finally:
            self.moment += 1

    def end(self) -> None:
        """Restore the parameters; their values are decoded from the codes.

        If a parameter cannot be restored, the error is raised after all others are restored. A
        second call then tries again to restore the failed parameters.
        """
        begun, self._begun = self._begun, []
        failed: BaseException | None = None
        for target, back in begun[::-1]:
            try:
                back()
            except BaseException as error:  # noqa: BLE001 - raised below
                failed = failed or error
                self._begun.insert(0, (target, back))
                continue
            for module, attribute in target.sites:
                module._parameters[attribute] = target.parameter
        if failed is not None:
            raise failed


def _hand_over(weight: torch.Tensor) -> None:
    """Move a weight's gradient into its parameter's gradient."""
    assert isinstance(weight, TrainedWeight), "only trained weights have this hook"
    own: Any = torch.Tensor.grad
    parameter, gradient = weight.parameter, own.__get__(weight)
    own.__set__(weight, None)
    if gradient is None:
        return
    if parameter.grad is None:
        parameter.grad = gradient
    else:
        parameter.grad += gradient
