"""A backward of unknown values makes the tensors that it makes with values, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from neaptide_toolkit.dry_run.allocations import AllocationLog
from neaptide_toolkit.dry_run.unknown import Unknown

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = 64
KEPT: list[Any] = []


class PlusOne(torch.autograd.Function):
    """Adds to a gradient, which stays what it was."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor) -> torch.Tensor:
        return values * 2

    @staticmethod
    def backward(context: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad + torch.ones_like(grad)


def products(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return y * 2 + y.exp()


def residual(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return (y + y.exp()).exp()


def three(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return y.exp() + y.sin() + y.cos()


def of_a_view(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return (y.view(-1).view(SIZE, SIZE) + y.exp()).exp()


def by_python(x: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = PlusOne.apply(x * 2)
    return made.exp()


def by_a_hook(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.register_hook(lambda grad: grad + torch.ones_like(grad))
    return y.exp()


def held_by_a_list(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.retain_grad()
    KEPT.append(y)
    return (y + y.sin()) * y.exp()


def expanded(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return y.sum() + y.exp().sum()


def by_places(x: torch.Tensor) -> torch.Tensor:
    return x[torch.arange(3)]


def by_the_greatest(x: torch.Tensor) -> torch.Tensor:
    return x.topk(2, -1).values.exp()


def gathered(x: torch.Tensor) -> torch.Tensor:
    return x.gather(0, torch.arange(SIZE)[None])


def index_select(x: torch.Tensor) -> torch.Tensor:
    return x.index_select(0, torch.arange(3))


CODE: list[Callable[[torch.Tensor], torch.Tensor]] = [
    products,
    residual,
    three,
    of_a_view,
    by_python,
    by_a_hook,
    held_by_a_list,
    expanded,
    by_places,
    by_the_greatest,
    gathered,
    index_select,
]


def made_by_pytorch(code: Callable[[torch.Tensor], torch.Tensor]) -> int:
    """Return the bytes of all tensors that a backward makes."""
    loss = code(torch.randn(SIZE, SIZE, requires_grad=True)).sum()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        loss.backward()  # type: ignore[no-untyped-call]
    made = [
        one.nbytes() for one in found.profiler.kineto_results.events() if one.name() == "[memory]"
    ]
    return sum(one for one in made if one >= SIZE * SIZE)


@pytest.mark.parametrize("code", CODE, ids=lambda one: one.__name__)
def test_a_backward_makes_what_it_makes_with_values(
    code: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    log = AllocationLog(accelerated=False)
    mode = Unknown(log.made)
    with mode:
        values = torch.empty(SIZE, SIZE, requires_grad=True)
        mode.forget([values])
        loss = code(values).sum()
        before = len(log.changes)
        loss.backward()  # type: ignore[no-untyped-call]
        made = [one.bytes for one in log.changes[before:]]
    assert sum(one for one in made if one >= SIZE * SIZE) == made_by_pytorch(code)


def test_a_compilation_that_failed_before_changes_nothing() -> None:
    def fails(*_: Any) -> Any:
        raise ZeroDivisionError

    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
        torch.compile(products, backend=fails)(torch.ones(3))
    test_a_backward_makes_what_it_makes_with_values(products)
