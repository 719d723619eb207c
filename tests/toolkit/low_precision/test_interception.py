"""Products with weights are handed to who listens, the innermost first, and only meanwhile."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from neaptide_toolkit.low_precision import intercepting, not_a_view

if TYPE_CHECKING:
    from neaptide_toolkit.low_precision import Product

pytestmark = pytest.mark.usefixtures("on_device")


def test_only_products_with_a_matrix_of_parameters_are_handed_on() -> None:
    seen: list[Product] = []
    weight, x = nn.Parameter(torch.randn(3, 4)), torch.randn(2, 4)
    bias = torch.randn(3)
    expected = torch.addmm(bias, x, weight.t())
    with intercepting(seen.append):
        assert torch.equal(x @ weight.t() + bias, expected)
        functional.linear(x, weight.detach())
        functional.linear(x[0], weight[0])
        torch.addmm(bias, x, weight.t())
        torch.addmm(bias, x, nn.Parameter(torch.randn(4, 3)), beta=0.5)
        torch.addmm(torch.randn(2, 3), x, nn.Parameter(torch.randn(4, 3)))
        assert torch.allclose(expected, functional.linear(x, weight, bias.expand(2, 3)))
        with pytest.raises(RuntimeError, match="at least 1D"):
            functional.linear(torch.tensor(1.0), weight)
        assert seen == []
        assert torch.allclose(expected, functional.linear(x, weight, bias))
        functional.linear(input=x, weight=weight)
        torch.addmm(bias, x, nn.Parameter(torch.randn(4, 3)))
    assert [(False, True), (False, False), (True, True)] == [
        (product.transposed, product.bias is not None) for product in seen
    ]
    assert [2, 2, 2] == [product.rows for product in seen]


def test_the_innermost_is_asked_first_and_may_ask_the_others() -> None:
    weight, x = nn.Parameter(torch.eye(2)), torch.ones(1, 2)

    def doubled(product: Product) -> torch.Tensor:
        return product.compute() * 2

    def plus_one(product: Product) -> torch.Tensor:
        return product.compute() + 1

    with intercepting(doubled), intercepting(plus_one):
        assert [[3.0, 3.0]] == functional.linear(x, weight).tolist()
    with intercepting(plus_one), intercepting(doubled):
        assert [[4.0, 4.0]] == functional.linear(x, weight).tolist()
    with intercepting(doubled):
        assert [[2.0, 2.0]] == functional.linear(x, weight).tolist()
    assert [[1.0, 1.0]] == functional.linear(x, weight).tolist()


def test_listeners_of_two_threads_leave_in_any_order() -> None:
    original, weight = functional.linear, nn.Parameter(torch.eye(2))
    entered, leave = threading.Event(), threading.Event()
    counts = {"other": 0, "own": 0}

    def counting(name: str) -> Any:
        def count(_: Product) -> None:
            counts[name] += 1

        return count

    def other() -> None:
        with intercepting(counting("other")):
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait(10)
    with intercepting(counting("own")):
        functional.linear(torch.ones(1, 2), weight)
        leave.set()
        thread.join()
        functional.linear(torch.ones(1, 2), weight)
    assert {"other": 1, "own": 2} == counts
    assert original is functional.linear


def test_what_somebody_else_puts_in_its_place_meanwhile_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = functional.linear
    monkeypatch.setattr(functional, "linear", original)  # puts it back after the test
    weight, x = nn.Parameter(torch.eye(2)), torch.ones(1, 2)
    seen: list[Product] = []
    with intercepting(seen.append):
        ours = functional.linear

        def theirs(*args: Any) -> torch.Tensor:
            return ours(*args) * 3

        functional.linear = theirs
    assert functional.linear is theirs
    assert [[3.0, 3.0]] == functional.linear(x, weight).tolist()
    assert seen == []
    with intercepting(seen.append):
        assert [[3.0, 3.0]] == functional.linear(x, weight).tolist()


def test_what_a_function_returns_can_be_written_to() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return not_a_view((2 * x).view(2, 3, 4))

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return 2 * gradient.reshape(6, 4)

    x = torch.randn(6, 4, requires_grad=True)
    out = torch.relu_(Doubled.apply(x))
    out.sum().backward()
    assert torch.equal(2.0 * (x > 0), x.grad)
    whole = torch.ones(2)
    assert not_a_view(whole) is whole
