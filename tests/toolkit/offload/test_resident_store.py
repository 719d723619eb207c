"""The callbacks of an update get small weights together, within a bound, and one kind at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import DEVICE
from torch import nn

from neaptide_toolkit.offload.resident_store import ResidentStore

pytestmark = pytest.mark.usefixtures("on_device")

MIB = 1 << 20


def store_of(*weights: torch.Tensor) -> ResidentStore:
    model = nn.ParameterList(nn.Parameter(weight.to(DEVICE)) for weight in weights)
    return ResidentStore(model, torch.optim.SGD(model.parameters(), lr=0.1))


def calls_of(store: ResidentStore) -> list[list[str]]:
    """Return the names of the weights of each call after an update."""
    calls: list[list[str]] = []
    leave = store.on_updates(lambda spans, *_: calls.append([span.name for span in spans]))
    store.finish_update()
    leave()
    return calls


class Kept:
    """Keeps a weight as it is."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight.clone()

    def read(self) -> torch.Tensor:
        return self.weight.clone()

    def write(self, weight: torch.Tensor) -> None:
        self.weight.copy_(weight)


def test_neighbours_of_one_dtype_are_together() -> None:
    one, half = torch.ones(3), torch.ones(3, dtype=torch.bfloat16)
    assert [["0", "1"], ["2"], ["3"]] == calls_of(store_of(one, one, half, one))


def test_a_call_has_at_most_32_mib_or_one_weight() -> None:
    sizes = (20, 12, 1, 33, 1)
    store = store_of(
        *(torch.zeros(size * MIB, dtype=torch.uint8).view(torch.float16) for size in sizes)
    )
    assert [["0", "1"], ["2"], ["3"], ["4"]] == calls_of(store)


def test_what_changes_between_updates_is_seen() -> None:
    store = store_of(*(torch.ones(3) for _ in range(3)))
    assert [["0", "1", "2"]] == calls_of(store)
    store.parameters["1"].requires_grad_(requires_grad=False)
    assert [["0", "2"]] == calls_of(store)
    store.parameters["1"].requires_grad_()
    store.parameters["2"].data = torch.ones(3, dtype=torch.float64, device=DEVICE).float()
    store.parameters["0"].data = torch.ones(3, dtype=torch.bfloat16, device=DEVICE)
    assert [["0"], ["1", "2"]] == calls_of(store)


def test_a_weight_of_a_keeper_comes_alone_with_its_value() -> None:
    store = store_of(*(torch.full((3,), float(value)) for value in range(4)))
    assert 1 == len(calls_of(store))
    keeper = Kept(store.parameters["1"].detach())
    back = store.keep(store.spans()[1], keeper)
    seen: list[tuple[int, Any]] = []
    leave = store.on_updates(
        lambda spans, weights, _: seen.append((len(spans), [float(each[0]) for each in weights]))
    )
    store.finish_update()
    leave()
    assert [(1, [0.0]), (1, [1.0]), (2, [2.0, 3.0])] == seen
    back()
    assert 1 == len(calls_of(store))


def test_without_callbacks_nothing_is_computed_for_a_jump() -> None:
    def change(*_: Any) -> torch.Tensor:
        raise ZeroDivisionError

    store_of(torch.ones(3)).notify_update(change)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam])
def test_a_gradient_of_other_strides_makes_the_same_fused_step(kind: Any) -> None:
    found = []
    for other in (False, True):
        model = nn.ParameterList([nn.Parameter(torch.ones(5, 7, device=DEVICE))])
        store = ResidentStore(model, kind(model.parameters(), lr=0.1, fused=True))
        gradient = (
            torch.randn(7, 5, generator=torch.Generator().manual_seed(0), device="cpu")
            .to(DEVICE)
            .t()
        )
        model[0].grad = gradient if other else gradient.contiguous()
        store.step()
        found.append(model[0].detach().clone())
    assert torch.equal(*found)


def test_a_list_of_spans_may_be_changed() -> None:
    store = store_of(*(torch.ones(3) for _ in range(3)))
    store.spans().clear()
    assert [["0", "1", "2"]] == calls_of(store)
