"""Loans of optimizer state: the same values, and the same training, on every store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import same_tensors, tensors_of

from neaptide import HybridTrainer
from neaptide.tensors import mapped
from neaptide_toolkit.tensors import nested_tensors
from neaptide_toolkit.testing import HOSTILE_STORE, tiny_task
from neaptide_toolkit.testing.parting import same_bits
from neaptide_toolkit.testing.tiny import tiny_loss

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import ParameterStore

STREAMED: list[dict[str, Any]] = [
    {"optimizer_on": "cpu"},
    {"optimizer_on": "device"},
    {"optimizer_on": "device", "update": "in_backward", "clip": "lagged"},
]
STORES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "resident": ([], {}),
    "hostile": ([HOSTILE_STORE], {}),
    **{
        f"streamed {number}": (["layer-streaming"], {"layer-streaming": settings})
        for number, settings in enumerate(STREAMED)
    },
}

stores = pytest.mark.parametrize("kind", STORES)


def trainer_on(kind: str) -> tuple[HybridTrainer, list[Any]]:
    """Return a trainer of the tiny task under Adam on one store, and its batches."""
    plugins, settings = STORES[kind]
    task = tiny_task(width=32)
    trained = [each for each in task.model.parameters() if each.requires_grad]
    trainer = HybridTrainer(
        task.model,
        torch.optim.Adam(trained, lr=1e-2),
        loss_fn=tiny_loss,
        config={"plugins": settings},
        plugins=plugins,
    )
    return trainer, task.batches


def state_of(store: ParameterStore) -> dict[str, dict[str, Any]]:
    """Return copies of all state, by loans."""
    found = {}
    for span in store.spans():
        with store.loan(span, "read", of="state") as state:
            found[span.name] = mapped(dict(state), torch.Tensor.clone)
    return found


def after(kind: str, action: Callable[[ParameterStore], object]) -> dict[str, torch.Tensor]:
    """Return weights and state after two steps, `action`, and two more steps."""
    trainer, batches = trainer_on(kind)
    with trainer:
        for number, batch in enumerate(batches[:4]):
            if number == 2:
                action(trainer.store)
            trainer.step(batch)
        state = {
            f"{name}: {key}": value
            for name, entry in state_of(trainer.store).items()
            for key, value in entry.items()
        }
    return {**tensors_of(trainer.model), **state}


def halve(store: ParameterStore) -> None:
    for span in store.spans():
        with store.loan(span, "write", of="state") as state:
            for tensor in nested_tensors(dict(state)):
                if tensor.dim():
                    tensor.mul_(0.5)


def halve_on_the_device(store: ParameterStore) -> None:
    for span in store.spans():
        with store.loan(span, "write", of="state", on=torch.device("cpu")) as state:
            for key in ("exp_avg", "exp_avg_sq"):
                if key in state:
                    state[key] = state[key] * 0.5


def clear(store: ParameterStore) -> None:
    for span in store.spans():
        with store.loan(span, "write", of="state") as state:
            state.clear()


def replace(store: ParameterStore) -> None:
    for span in store.spans():
        with store.loan(span, "write", of="state") as state:
            if state:
                state["exp_avg"] = torch.full_like(state["exp_avg"], 0.25)


def evict(store: ParameterStore) -> None:
    back = store.evict(store.spans(), of="state")
    halve(store)
    back()


def stays_evicted(store: ParameterStore) -> None:
    store.evict(store.spans(), of="state")
    halve(store)


ACTIONS = {
    "halve": halve,
    "halve on the device": halve_on_the_device,
    "clear": clear,
    "replace": replace,
    "evict": evict,
    "stay evicted": stays_evicted,
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("kind", [kind for kind in STORES if kind != "resident"])
def test_what_a_loan_writes_trains_on_as_on_the_resident_store(kind: str, action: str) -> None:
    expected = after("resident", ACTIONS[action])
    assert same_tensors(expected, after(kind, ACTIONS[action]))


@pytest.mark.parametrize("action", ACTIONS)
def test_what_a_loan_writes_is_trained_with(action: str) -> None:
    assert not same_tensors(after("resident", lambda _: None), after("resident", ACTIONS[action]))


@stores
def test_state_is_empty_until_the_first_step_makes_it(kind: str) -> None:
    trainer, batches = trainer_on(kind)
    with trainer:
        assert not any(state_of(trainer.store).values())
        assert not any(trainer.optimizer.state.values())
        trainer.step(batches[0])
        found = state_of(trainer.store)
        trained = {span.name for span in trainer.store.spans() if span.trainable}
        assert trained == {name for name, state in found.items() if state}
        assert all({"step", "exp_avg", "exp_avg_sq"} == found[name].keys() for name in trained)


@stores
def test_what_a_reader_changes_is_not_kept(kind: str) -> None:
    trainer, batches = trainer_on(kind)
    with trainer:
        trainer.step(batches[0])
        before = state_of(trainer.store)
        for span in trainer.store.spans():
            with trainer.store.loan(span, "read", of="state") as state:
                state["mine"] = torch.ones(2)
                state.pop("step", None)
        now = state_of(trainer.store)
        assert before.keys() == now.keys()
        assert all(same_tensors(before[name], now[name]) for name in before)


def test_hostile_state_is_nan_outside_its_loan() -> None:
    trainer, batches = trainer_on("hostile")
    with trainer:
        trainer.step(batches[0])
        (span,) = (each for each in trainer.store.spans() if each.name == "head.weight")
        parameter = trainer.store.parameters[span.name]
        with trainer.store.loan(span, "write", of="state") as state:
            kept = state["exp_avg"]
            state["mine"] = mine = torch.ones(3)
            assert bool(kept.isfinite().all())
        held = trainer.optimizer.state[parameter]
        assert bool(kept.isnan().all())
        assert bool(mine.isnan().all())
        assert bool(held["exp_avg"].isnan().all())
        assert bool(held["mine"].isnan().all())
        with trainer.store.loan(span, "read", of="state") as state:
            assert same_bits(torch.ones(3), state["mine"])


def test_a_store_that_closes_brings_everything_back() -> None:
    trainer, batches = trainer_on("resident")
    with trainer:
        trainer.step(batches[0])
        before = {name: value.data_ptr() for name, value in tensors_of(trainer.model).items()}
        trainer.store.evict(trainer.store.spans())
        trainer.store.evict(trainer.store.spans(), of="state")
        assert {"host"} == {span.tier for span in trainer.store.spans()}
    assert {"device"} == {span.tier for span in trainer.store.spans()}
    assert before.keys() == tensors_of(trainer.model).keys()
    assert {} == dict(trainer.optimizer._optimizer_step_pre_hooks)


@given(
    st.lists(st.sampled_from(["step", "halve", "clear", "evict", "back", "snapshot"]), max_size=12)
)
def test_any_order_of_loans_and_steps_is_what_the_optimizer_alone_does(order: list[str]) -> None:
    """The reference is torch's Adam, whose state is changed in place."""
    expected, actual = tiny_task(coupled=False), tiny_task(coupled=False)
    trainer = HybridTrainer(
        actual.model, actual.optimizer, loss_fn=tiny_loss, config={"train": {"clip_norm": None}}
    )
    store, backs, batches = (
        trainer.store,
        [],
        iter(zip(expected.batches, actual.batches, strict=True)),
    )
    with trainer:
        for what in order:
            if what == "step":
                one, other = next(batches)
                expected.optimizer.zero_grad()
                expected.model.train()
                loss = tiny_loss(expected.model, one)
                (loss.sum / loss.count).backward()
                expected.optimizer.step()
                trainer.step(other)
            elif what == "halve":
                for tensor in nested_tensors(dict(expected.optimizer.state)):
                    if tensor.dim():
                        tensor.mul_(0.5)
                halve(store)
            elif what == "clear":
                expected.optimizer.state.clear()
                clear(store)
            elif what == "evict":
                backs.append(store.evict(store.spans(), of="state"))
            elif what == "back" and backs:
                backs.pop()()
            elif what == "snapshot":
                store.restore(store.snapshot(optimizer=True))
        assert same_tensors(tensors_of(expected.model), tensors_of(actual.model))
