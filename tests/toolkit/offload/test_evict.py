"""Weights that leave the device for a while, and who hears of what is written to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from neaptide import HybridTrainer
from neaptide_toolkit.offload.evicted import InRam
from neaptide_toolkit.offload.resident_store import ResidentStore
from neaptide_toolkit.testing.allocations import Allocations, counted
from neaptide_toolkit.testing.hostile_store import HostileStore
from neaptide_toolkit.testing.tiny import tiny_loss, tiny_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import ParameterStore


def allocated_by(action: Callable[[], object]) -> int:
    """Return the bytes torch's allocator has given out in `action` and not got back."""
    with counted() as allocations:
        kept = action()
        Allocations.mark("end")
    del kept
    return allocations.at_marks()["end"][-1]


def store_of(model: nn.Module) -> ResidentStore:
    return ResidentStore(model, torch.optim.SGD(model.parameters(), lr=0.1))


def written(store: ParameterStore, value: float) -> None:
    for span in store.spans():
        with store.loan(span, "write") as weight:
            weight.add_(value)


def test_loans_lend_what_was_evicted_and_back_is_bit_for_bit() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.Conv2d(3, 5, 2).to(memory_format=torch.channels_last))
    expected = {name: weight + 0.25 for name, weight in model.state_dict().items()}
    strides = [parameter.stride() for parameter in model.parameters()]
    store = store_of(model)
    back = store.evict(store.spans())
    assert {"host"} == {span.tier for span in store.spans()}
    written(store, 0.25)
    back()
    assert {"device"} == {span.tier for span in store.spans()}
    assert all(torch.equal(expected[name], now) for name, now in model.state_dict().items())
    assert strides == [parameter.stride() for parameter in model.parameters()]


def test_what_is_named_twice_or_put_back_twice_is_so_once() -> None:
    model = nn.Linear(8, 4, bias=False)
    store = store_of(model)
    (span,) = store.spans()
    back = store.evict([span, span])
    written(store, 1.0)
    expected = model.weight.clone()
    back()
    assert torch.equal(expected, model.weight)
    again = store.evict([span])
    back()
    assert ["host"] == [each.tier for each in store.spans()]
    again()
    back = store.keep(span, Copied(model.weight))
    back()
    written(store, 1.0)
    back()
    assert torch.equal(expected + 1, model.weight)


def test_the_device_holds_nothing_of_what_is_evicted() -> None:
    def built() -> tuple[ResidentStore, Callable[[], None]]:
        model = nn.Linear(512, 512, bias=False)
        store = store_of(model)
        return store, store.evict(store.spans())

    def back_again() -> ResidentStore:
        store, back = built()
        back()
        return store

    assert allocated_by(built) < 100  # the store has a scalar of its own
    assert 512 * 512 * 4 == allocated_by(back_again) - allocated_by(built)


def test_a_parameter_that_shares_its_memory_stays() -> None:
    whole = torch.randn(2, 8)
    model = nn.ParameterList([nn.Parameter(whole[0]), nn.Parameter(whole[1])])
    store = store_of(model)
    assert [] == store.evictable(store.spans()[:1]).storages
    back = store.evict(store.spans())
    assert {"device"} == {span.tier for span in store.spans()}
    back()
    assert whole[0].data_ptr() == model[0].data_ptr()


def test_training_goes_on_bitwise_afterwards() -> None:
    def trained(*, evicted: bool) -> dict[str, torch.Tensor]:
        task = tiny_task(steps=6)
        with HybridTrainer(task.model, task.optimizer, loss_fn=tiny_loss) as trainer:
            for batch in task.batches:
                trainer.step(batch)
                if evicted:
                    trainer.store.evict(trainer.store.spans())()
        return task.model.state_dict()

    expected, actual = trained(evicted=False), trained(evicted=True)
    assert all(torch.equal(expected[name], actual[name]) for name in expected)


@pytest.mark.parametrize("kind", [ResidentStore, HostileStore])
def test_callbacks_hear_of_each_write_once(kind: type[ParameterStore]) -> None:
    model = nn.Linear(2, 2)
    store = kind(model, torch.optim.SGD(model.parameters(), lr=0.1))  # type: ignore[call-arg]  # as both stores take
    heard: list[str] = []
    leave = store.on_write(lambda span: heard.append(span.name))
    weight, bias = sorted(store.spans(), key=lambda span: span.name, reverse=True)
    with store.loan(weight, "read"), store.loan(bias, "write"):
        assert [] == heard
    with store.loan(bias, "write", of="gradient"):
        pass
    assert ["bias"] == heard
    with pytest.raises(KeyError), store.loan(weight, "write"):
        raise KeyError
    assert ["bias", "weight"] == heard
    leave()
    written(store, 1.0)
    assert ["bias", "weight"] == heard


class Copied:
    """Keeps a weight as it is; `fails` has it refuse to be read."""

    def __init__(self, weight: torch.Tensor, *, fails: bool = False) -> None:
        self.weight, self.fails = weight.detach().clone(), fails

    def read(self) -> torch.Tensor:
        if self.fails:
            raise MemoryError
        return self.weight.clone()

    def write(self, weight: torch.Tensor) -> None:
        self.weight = weight.clone()


def test_a_kept_parameter_shows_nan_and_whoever_held_its_memory_has_it_still() -> None:
    model = nn.Linear(8, 4, bias=False)
    store, held = store_of(model), model.state_dict()
    expected = held["weight"].clone()
    (span,) = store.spans()
    back = store.keep(span, Copied(model.weight))
    assert model.weight.isnan().all()
    assert torch.equal(expected, held["weight"])
    with pytest.raises(ValueError, match="'weight' shares its memory, or is already"):
        store.keep(span, Copied(model.weight))
    back()
    assert torch.equal(expected, model.weight)


def test_an_update_that_cannot_begin_changes_no_kept_weight() -> None:
    model = nn.Sequential(nn.Linear(8, 4, bias=False), nn.Linear(4, 4, bias=False))
    store = store_of(model)
    keepers = [Copied(model[0].weight), Copied(model[1].weight, fails=True)]
    expected = [keeper.weight.clone() for keeper in keepers]
    for span, keeper in zip(store.spans(), keepers, strict=True):
        store.keep(span, keeper)
    with pytest.raises(MemoryError):
        store.step()
    assert all(map(torch.equal, expected, (keeper.weight for keeper in keepers)))
    assert all(parameter.isnan().all() for parameter in model.parameters())


def test_a_refuge_that_cannot_be_read_takes_no_weights() -> None:
    class Hidden(InRam):
        readable = False

    model = nn.Linear(8, 4)
    store = store_of(model)
    with pytest.raises(ValueError, match="weights need a refuge in which they can be read"):
        store.evict(store.spans(), refuge=Hidden())
    assert {"device"} == {span.tier for span in store.spans()}
