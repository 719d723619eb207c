"""Gradients of a net with and without compression of what it saves, and how far they are apart."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import nn

from neaptide_plugins.activation_compression.needs import NodeNeeds
from neaptide_plugins.activation_compression.saving import SavedBytes, Saving
from neaptide_toolkit.gradient_error import compare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SIZE = 32
"""Rows, columns and width of the small layers."""


def saving(**settings: Any) -> Saving:
    """Return a fresh session; groups of 16 and tensors of 16 elements or more unless given."""
    exclude = settings.pop("exclude", ())
    return Saving(NodeNeeds(exclude), **{"group": 16, "min_elements": 16, **settings})


@attrs.frozen(eq=False)
class Result:
    """A loss, its gradients, and what the graph held between."""

    loss: torch.Tensor
    gradients: list[torch.Tensor | None]
    held: SavedBytes | None


def differentiated(
    call: Callable[[], torch.Tensor],
    parameters: Iterable[torch.Tensor],
    session: Saving | None = None,
) -> Result:
    """Return what `call()` comes to, in `session` if one is given."""
    torch.manual_seed(2)
    with session.hooks() if session else nullcontext():
        loss = call()
        if session:
            session.finish(loss)
    held = session.held() if session else None
    with session.hooks() if session else nullcontext():
        gradients = torch.autograd.grad(loss, list(parameters), allow_unused=True)
    return Result(loss.detach(), list(gradients), held)


def both(
    call: Callable[[], torch.Tensor], parameters: Iterable[torch.Tensor], **settings: Any
) -> tuple[Result, Result]:
    """Return the exact result and the compressed one."""
    parameters = list(parameters)
    exact = differentiated(call, parameters)
    return exact, differentiated(call, parameters, saving(**settings))


def error(exact: Result, compressed: Result) -> float:
    """Return the relative error of the gradients; the same ones must be None."""
    assert [each is None for each in exact.gradients] == [
        each is None for each in compressed.gradients
    ]
    return compare(exact.gradients, compressed.gradients).relative


def linear(seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(SIZE, SIZE)


def given_x() -> torch.Tensor:
    generator = torch.Generator(device := torch.get_default_device()).manual_seed(1)
    return torch.randn(SIZE, SIZE, generator=generator, device=device)
