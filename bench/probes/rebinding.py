"""How autograd treats a parameter whose `.data` moves between the host and the device."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from probes.checks import first_line, outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from probes.checks import Check, Finding

ROUNDS = 3
SHAPE = (4, 4)
START = 2.0
GRADIENT = 2 * START


@dataclass(eq=False)
class Moving:
    """A parameter with one tensor on the host and one on the device. Hooks count their calls."""

    device: torch.device
    dtype: torch.dtype = torch.float32
    fired: dict[str, int] = field(default_factory=lambda: {"tensor": 0, "post-accumulate": 0})

    def __post_init__(self) -> None:
        self.home = torch.full(SHAPE, START, dtype=self.dtype)
        self.slot = torch.full(SHAPE, START, dtype=self.dtype, device=self.device)
        self.parameter = nn.Parameter(self.home)
        self.parameter.register_hook(  # type: ignore[no-untyped-call]
            partial(self._count, "tensor")
        )
        self.parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            partial(self._count, "post-accumulate")
        )

    def _count(self, hook: str, _: Tensor) -> None:
        self.fired[hook] += 1

    def bind(self, tensor: Tensor) -> None:
        """Set the parameter's data to `tensor`."""
        self.parameter.data = tensor

    def forward(self) -> Tensor:
        """Return the sum of squares of the parameter. Its gradient is twice the parameter."""
        squares: Tensor = (self.parameter * self.parameter).sum()
        return squares

    def backward(self) -> None:
        """Run forward and backward on the device where the parameter is now."""
        self.forward().backward()  # type: ignore[no-untyped-call]

    def grad(self) -> Tensor:
        """Return the parameter's gradient. Raise an error if there is none."""
        if self.parameter.grad is None:
            msg = "backward left no gradient"
            raise RuntimeError(msg)
        return self.parameter.grad


def rounds(device: torch.device, *, used_on_host: bool) -> Finding:
    """Repeat: bind to the device, run backward, bind to the host. Count the calls of hooks."""
    moving = Moving(device)
    node_calls: list[Any] = []
    if used_on_host:
        # Like data-parallel wrappers, keep a reference to autograd's node for the host tensor.
        node: Any = moving.parameter.view_as(moving.parameter).grad_fn
        node = node.next_functions[0][0]
        node.register_hook(lambda *gradients: node_calls.append(gradients))
        moving.backward()
        moving.parameter.grad = None
    right = 0
    for _ in range(ROUNDS):
        moving.bind(moving.slot)
        moving.backward()
        grad = moving.grad()
        right += int(grad.device == moving.slot.device and bool((grad == GRADIENT).all()))
        moving.parameter.grad = None
        moving.bind(moving.home)
    runs = ROUNDS + used_on_host
    summary = (
        f"{right} of {ROUNDS} gradients right and on {device}; in {runs} backward passes the "
        f"tensor hook fired {moving.fired['tensor']} times, the post-accumulate hook "
        f"{moving.fired['post-accumulate']}"
    )
    if used_on_host:
        summary += f", a hook on the host's accumulator node {len(node_calls)}"
    return {
        "summary": summary,
        "right_gradients": right,
        "backward_passes": runs,
        "fired": moving.fired,
        "accumulator_hook_fired": len(node_calls),
    }


def prebound_gradient(device: torch.device) -> Finding:
    """Accumulate into a gradient that was assigned before the backward."""
    moving = Moving(device)
    flat = torch.zeros(moving.slot.numel(), device=device)
    moving.bind(moving.slot)
    moving.parameter.grad = flat.view(SHAPE)
    moving.backward()
    moving.backward()
    in_place = moving.grad().data_ptr() == flat.data_ptr() and bool((flat == 2 * GRADIENT).all())
    leaving = outcome(lambda: moving.bind(moving.home))
    return {
        "summary": (
            f"accumulated {'in place' if in_place else 'elsewhere'}; leaving the device with that "
            f"gradient set: {leaving}; it is then on {moving.grad().device}"
        ),
        "in_place": in_place,
        "leaving": leaving,
    }


def rebound_between(device: torch.device) -> Finding:
    """Rebind the parameter between forward and backward. The graph still holds the old tensor."""
    moving = Moving(device)
    moving.bind(moving.slot)
    loss = moving.forward()
    moving.bind(moving.home)
    result = outcome(loss.backward)
    if result == "works":
        result += f"; the gradient is on {moving.grad().device}"
    return {"summary": result}


def wide_gradient(device: torch.device) -> Finding:
    """Assign a float32 gradient to a bfloat16 parameter, without and with `grad_dtype`."""
    refused = Moving(device, torch.bfloat16)
    refused.bind(refused.slot)
    wide = torch.zeros(SHAPE, device=device)

    def assign(moving: Moving) -> None:
        moving.parameter.grad = wide

    without = outcome(partial(assign, refused))
    moving = Moving(device, torch.bfloat16)
    moving.parameter.grad_dtype = torch.float32
    moving.bind(moving.slot)
    kept = moving.parameter.grad_dtype
    moving.backward()
    fresh = moving.grad().dtype
    moving.parameter.grad = None
    wide.zero_()
    prebound = outcome(partial(assign, moving))
    moving.backward()
    in_place = moving.grad().data_ptr() == wide.data_ptr() and bool((wide == GRADIENT).all())
    return {
        "summary": (
            f"float32 .grad without grad_dtype: {without}; with it: {prebound}, accumulated "
            f"{'in place' if in_place else 'elsewhere'}; a fresh gradient is {fresh}; after the "
            f"rebind grad_dtype was {kept}"
        ),
        "without": without,
        "with": prebound,
        "in_place": in_place,
        "fresh": str(fresh),
        "kept": str(kept),
    }


def optimizer_step(device: torch.device) -> Finding:
    """Make a step of an optimizer while its parameter is on the device.

    The optimizer was created when the parameter was on the host.
    """
    moving = Moving(device)
    optimizer = torch.optim.AdamW([moving.parameter], lr=0.1)
    try:
        for _ in range(ROUNDS):
            moving.bind(moving.slot)
            moving.backward()
            optimizer.step()
            optimizer.zero_grad()
            moving.bind(moving.home)
    except RuntimeError as error:
        return {"summary": f"refused: {first_line(error)}"}
    state = optimizer.state[moving.parameter]["exp_avg"]
    moved = bool((moving.slot < START).all()) and bool((moving.home == START).all())
    where = "the slot alone" if moved else "not the slot alone"
    return {
        "summary": f"works; it changed {where}; its state is on {state.device}",
        "changed_slot_alone": moved,
        "state_device": str(state.device),
    }


def checks(device: torch.device, *, size: str) -> Iterator[Check]:
    """Yield all checks; `size` has no effect, because all of them are quick."""
    del size
    yield "hooks and gradients over rebinds", partial(rounds, device, used_on_host=False)
    yield "the same after use on the host", partial(rounds, device, used_on_host=True)
    yield "gradient bound beforehand", partial(prebound_gradient, device)
    yield "rebound between forward and backward", partial(rebound_between, device)
    yield "bfloat16 parameter, float32 gradient", partial(wide_gradient, device)
    yield "AdamW made on the host, stepped on the device", partial(optimizer_step, device)
