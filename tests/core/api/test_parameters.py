"""The laws of a parameter store, on the resident one and on one that hides everything."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from neaptide.api.spans import Span
from neaptide_toolkit.offload.resident_store import ResidentStore
from neaptide_toolkit.testing import HostileStore, tiny_task
from neaptide_toolkit.testing.parting import same_bits
from neaptide_toolkit.testing.tiny import tiny_loss

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide.api.parameters import ParameterStore

STORES = [ResidentStore, HostileStore]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]

stores = pytest.mark.parametrize("kind", STORES)


class Bag(nn.Module):
    """Parameters of given shapes and dtypes."""

    def __init__(self, shapes: list[tuple[tuple[int, ...], torch.dtype]]) -> None:
        super().__init__()
        for index, (shape, dtype) in enumerate(shapes):
            self.register_parameter(f"p{index}", nn.Parameter(torch.randn(shape).to(dtype)))


def trained(kind: type, steps: int = 2) -> tuple[Any, Any, Any]:
    """Return store, task and true weights after a few updates; gradients are in place."""
    task = tiny_task()
    store: ParameterStore = kind(task.model, task.optimizer)
    for index, batch in enumerate(task.batches[:steps]):
        if index:
            store.zero_gradients()
        with store.compute():
            loss = tiny_loss(task.model, batch)
            (loss.sum / loss.count).backward()
            task.optimizer.step()
    return store, task, weights(store)


def weights(store: ParameterStore) -> dict[str, torch.Tensor]:
    """Return a copy of every weight, through loans."""
    found = {}
    for span in store.spans():
        with store.loan(span, "read") as weight:
            found[span.name] = weight.clone()
    return found


def disturb(store: ParameterStore) -> None:
    """Write something else into every trainable weight."""
    for span in store.spans():
        if span.trainable:
            with store.loan(span, "write") as weight:
                weight.mul_(-2.0).add_(1.0)


def span_named(store: ParameterStore, name: str) -> Span:
    """Return one span."""
    return next(span for span in store.spans() if span.name == name)


@stores
def test_spans_name_every_parameter_once(kind: type) -> None:
    task = tiny_task()
    store = kind(task.model, task.optimizer)
    names = [span.name for span in store.spans()]
    assert sorted(dict(task.model.named_parameters())) == sorted(names)


@stores
def test_tied_parameters_are_one_span_with_all_their_names(kind: type) -> None:
    task = tiny_task()
    span = span_named(kind(task.model, task.optimizer), "blocks.0.shared.weight")
    assert tuple(f"blocks.{index}.shared.weight" for index in (1, 2, 3)) == span.tied


@stores
def test_a_frozen_parameter_is_lent_but_not_trainable(kind: type) -> None:
    task = tiny_task()
    before = task.model.first.weight.detach().clone()
    store = kind(task.model, task.optimizer)
    assert not span_named(store, "first.weight").trainable
    assert same_bits(before, weights(store)["first.weight"])


def test_a_spans_bytes_are_its_elements_times_their_size() -> None:
    span = Span("w", (3, 5), torch.bfloat16, "device", trainable=True)
    assert span.bytes == 30


@stores
def test_what_is_written_stays(kind: type) -> None:
    store, _, before = trained(kind)
    disturb(store)
    after = weights(store)
    for span in store.spans():
        expected = before[span.name] * -2.0 + 1.0 if span.trainable else before[span.name]
        assert same_bits(expected, after[span.name])


@stores
def test_a_read_loan_changes_nothing(kind: type) -> None:
    store, _, before = trained(kind)
    for span in store.spans():
        with store.loan(span, "read"):
            pass
    assert all(same_bits(value, before[name]) for name, value in weights(store).items())


@stores
def test_a_loan_elsewhere_is_written_back(kind: type) -> None:
    store, _, _ = trained(kind)
    span = span_named(store, "head.bias")
    # The only second device every machine has keeps no data: what arrives there is the shape.
    with store.loan(span, "read", on=torch.device("meta")) as away:
        assert (torch.device("meta"), span.shape) == (away.device, tuple(away.shape))
    with store.loan(span, "write", on=torch.device("cpu")) as weight:
        weight.fill_(3.0)
    assert same_bits(torch.full((8,), 3.0), weights(store)["head.bias"])


@stores
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a second device")
def test_a_loan_on_the_gpu_is_written_back(kind: type) -> None:
    store, _, before = trained(kind)
    span = span_named(store, "head.bias")
    with store.loan(span, "write", on=torch.device("cuda")) as away:
        away.add_(1.0)
    assert same_bits(before["head.bias"] + 1.0, weights(store)["head.bias"])


@stores
def test_snapshot_and_restore_are_bitwise(kind: type) -> None:
    store, _, before = trained(kind)
    snapshot = store.snapshot()
    disturb(store)
    store.restore(snapshot)
    assert all(same_bits(value, before[name]) for name, value in weights(store).items())


@stores
def test_a_snapshot_is_a_copy(kind: type) -> None:
    store, _, before = trained(kind)
    snapshot = store.snapshot()
    disturb(store)
    assert "first.weight" not in snapshot.weights
    assert all(same_bits(before[name], value) for name, value in snapshot.weights.items())


@stores
def test_a_snapshot_takes_the_optimizer_along(kind: type) -> None:
    store, task, before = trained(kind)
    snapshot = store.snapshot(optimizer=True)
    expected = continued(store, task)
    store.restore(snapshot)
    assert all(same_bits(value, before[name]) for name, value in weights(store).items())
    store.zero_gradients()
    again = continued(store, task)
    assert all(same_bits(value, again[name]) for name, value in expected.items())


def continued(store: ParameterStore, task: Any) -> dict[str, torch.Tensor]:
    """Return the weights after one more update, without dropout."""
    task.model.eval()
    store.zero_gradients()
    with store.compute():
        tiny_loss(task.model, task.batches[5]).sum.backward()
        task.optimizer.step()
    return weights(store)


shapes = st.lists(
    st.tuples(st.lists(st.integers(0, 4), max_size=3).map(tuple), st.sampled_from(DTYPES)),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("kind", STORES)
@given(shapes=shapes, special=st.sampled_from([math.nan, math.inf, -0.0, 1e-40, 1.0]))
def test_any_shape_dtype_and_value_comes_back(
    kind: type, shapes: list[Any], special: float
) -> None:
    model = Bag(shapes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.view(-1)[:1].fill_(special)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    store = kind(model, torch.optim.SGD(model.parameters(), lr=0.1))
    snapshot = store.snapshot()
    disturb(store)
    store.restore(snapshot)
    assert all(same_bits(before[name], value) for name, value in weights(store).items())


@stores
def test_gradient_norm_has_torchs_bits(kind: type) -> None:
    store, task, _ = trained(kind)
    with store.compute():
        expected = torch.nn.utils.get_total_norm(
            [value.grad for value in task.model.parameters() if value.grad is not None]
        )
    assert same_bits(expected, store.gradient_norm())


@stores
@given(
    dtypes=st.lists(
        st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.complex64]),
        min_size=1,
        max_size=12,
    ),
    max_norm=st.sampled_from([1e-3, 1.0, 1e6]),
)
@settings(max_examples=30)
def test_clipping_has_torchs_bits_for_every_dtype(
    kind: type, dtypes: list[torch.dtype], max_norm: float
) -> None:
    model = Bag([((7, 3), dtype) for dtype in dtypes])
    generator = torch.Generator().manual_seed(len(dtypes))
    for parameter in model.parameters():
        parameter.grad = torch.randn(7, 3, generator=generator).to(parameter.dtype)
    twins = [nn.Parameter(torch.zeros_like(parameter)) for parameter in model.parameters()]
    for twin, parameter in zip(twins, model.parameters(), strict=True):
        twin.grad = parameter.grad.clone()
    store = kind(model, torch.optim.SGD(model.parameters(), lr=0.1))

    norm = store.gradient_norm()
    store.clip_gradients(max_norm, norm)

    assert same_bits(torch.nn.utils.clip_grad_norm_(twins, max_norm), norm)
    clipped = gradients(store)
    assert all(same_bits(twin.grad, clipped[f"p{place}"]) for place, twin in enumerate(twins))


def test_gradient_norm_is_the_same_bits_resident_and_on_loans() -> None:
    resident, hostile = trained(ResidentStore)[0], trained(HostileStore)[0]
    assert same_bits(resident.gradient_norm(), hostile.gradient_norm())


@stores
def test_gradient_norm_without_gradients_is_zero(kind: type) -> None:
    task = tiny_task()
    assert float(kind(task.model, task.optimizer).gradient_norm()) == 0.0


@stores
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradient_norm_does_not_overflow_in_half_precision(kind: type, dtype: torch.dtype) -> None:
    model = Bag([((64,), dtype)])
    model.p0.grad = torch.full((64,), 1024.0, dtype=dtype)
    store = kind(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert float(store.gradient_norm()) == 8192.0


@stores
@pytest.mark.parametrize("factor", [0.25, torch.tensor(0.25)])
def test_scaling_multiplies_every_gradient(kind: type, factor: Any) -> None:
    store, _, _ = trained(kind)
    before = gradients(store)
    store.scale_gradients(factor)
    after = gradients(store)
    assert before.keys() == after.keys() != set()
    assert all(same_bits(value * 0.25, after[name]) for name, value in before.items())


@stores
def test_scaling_does_not_round_the_factor_to_the_gradients_dtype(kind: type) -> None:
    model = Bag([((50,), torch.bfloat16)])
    store = kind(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model.p0.grad = torch.randn(50).bfloat16()
    expected = (model.p0.grad.float() * (1 / 1.75)).bfloat16()
    store.scale_gradients(1 / 1.75)
    assert same_bits(expected, gradients(store)["p0"])


def gradients(store: ParameterStore) -> dict[str, torch.Tensor]:
    """Return a copy of every gradient, through loans."""
    found = {}
    for span in store.spans():
        if store.has_gradient(span):
            with store.loan(span, "read", of="gradient") as gradient:
                found[span.name] = gradient.clone()
    return found


@stores
def test_zeroed_gradients_are_gone(kind: type) -> None:
    store, _, _ = trained(kind)
    store.zero_gradients()
    assert gradients(store) == {}


@stores
def test_reading_a_gradient_that_is_not_there_is_a_key_error(kind: type) -> None:
    task = tiny_task()
    store = kind(task.model, task.optimizer)
    span = span_named(store, "head.bias")
    with pytest.raises(KeyError, match=r"head\.bias"), store.loan(span, "read", of="gradient"):
        pass


@stores
def test_writing_a_gradient_that_is_not_there_makes_it_from_zeros(kind: type) -> None:
    task = tiny_task()
    store = kind(task.model, task.optimizer)
    span = span_named(store, "head.bias")
    with store.loan(span, "write", of="gradient") as gradient:
        gradient.add_(2.0)
    assert same_bits(torch.full((8,), 2.0), gradients(store)["head.bias"])


@stores
def test_callbacks_see_every_trainable_span_once_an_update(kind: type) -> None:
    store, _, true = trained(kind)
    seen: dict[str, torch.Tensor] = {}
    leave = store.on_update(lambda span, weight, delta: seen.update({span.name: weight.clone()}))
    store.finish_update()
    leave()
    expected = {span.name for span in store.spans() if span.trainable}
    assert expected == seen.keys()
    assert all(same_bits(true[name], value) for name, value in seen.items())
    seen.clear()
    store.finish_update()
    assert seen == {}


@stores
def test_callbacks_are_given_the_delta_of_a_jump_and_none_of_an_update(kind: type) -> None:
    store, _, _ = trained(kind)
    deltas: list[Any] = []
    store.on_update(lambda span, weight, delta: deltas.append(delta))
    store.finish_update()
    assert {None} == set(deltas)
    deltas.clear()
    store.notify_update(
        lambda span, _weight: torch.ones(span.shape) if span.name == "head.bias" else None
    )
    assert [8.0] == [float(delta.sum()) for delta in deltas if delta is not None]


@stores
def test_callbacks_for_several_spans_see_what_callbacks_for_one_see(kind: type) -> None:
    store, _, _ = trained(kind)
    one: list[tuple[Any, ...]] = []
    several: list[tuple[Any, ...]] = []
    leave_one = store.on_update(
        lambda span, weight, delta: one.append((span.name, weight.clone(), delta))
    )

    def listed(spans: list[Any], weights: list[torch.Tensor], deltas: list[Any]) -> None:
        assert len({(weight.dtype, weight.device) for weight in weights}) == 1
        names = [span.name for span in spans]
        several.extend(zip(names, [each.clone() for each in weights], deltas, strict=True))

    leave_several = store.on_updates(listed)
    store.finish_update()
    store.notify_update(lambda span, _weight: torch.ones(span.shape))
    leave_one()
    leave_several()
    store.finish_update()
    assert len(one) == 2 * sum(span.trainable for span in store.spans())
    for (name, weight, delta), (other, value, change) in zip(one, several, strict=True):
        assert name == other
        assert same_bits(weight, value)
        assert (delta is None) == (change is None)


@stores
def test_two_callbacks_share_one_pass_and_end_separately(kind: type) -> None:
    store, _, _ = trained(kind)
    order: list[str] = []

    def callback(name: str) -> Callable[..., None]:
        return lambda span, weight, delta: order.append(name)

    leave = store.on_update(callback("first"))
    store.on_update(callback("second"))
    store.finish_update()
    trainable = sum(span.trainable for span in store.spans())
    assert ["first", "second"] * trainable == order
    leave()
    order.clear()
    store.finish_update()
    assert ["second"] * trainable == order


@stores
def test_loading_optimizer_state_keeps_its_dtypes(kind: type) -> None:
    model = Bag([((4,), torch.bfloat16)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    exact = torch.tensor([1.0 + 2.0**-20, 0.1, -3.0, 1e-30])
    state = {
        "state": {0: {"momentum_buffer": exact.clone()}},
        "param_groups": optimizer.state_dict()["param_groups"],
    }
    store = kind(model, optimizer)
    store.load_optimizer_state_dict(state)
    with store.optimizer_state() as state:
        assert same_bits(exact, state["state"][0]["momentum_buffer"])


@stores
def test_loaded_optimizer_state_is_a_copy(kind: type) -> None:
    store, task, _ = trained(kind)
    saved = store.snapshot(optimizer=True).optimizer
    assert saved is not None
    expected = saved["state"][0]["exp_avg"].clone()
    store.load_optimizer_state_dict(saved)
    continued(store, task)
    assert same_bits(expected, saved["state"][0]["exp_avg"])


def test_hostile_weights_are_nan_outside_their_loans() -> None:
    store, task, _ = trained(HostileStore)
    assert all(bool(value.isnan().all()) for value in task.model.parameters())
    with store.compute():
        assert not any(bool(value.isnan().any()) for value in task.model.parameters())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_one_bad_gradient_is_found_and_then_forgotten(dtype: torch.dtype, bad: float) -> None:
    module = nn.ParameterList([nn.Parameter(torch.ones(3, dtype=dtype)) for _ in range(3)])
    store = ResidentStore(module, torch.optim.SGD(module.parameters(), lr=0.1))
    assert not store.has_nonfinite_gradients()  # there are none yet
    for parameter in module:
        parameter.grad = torch.full((3,), 1e-30, dtype=dtype)
    before = [parameter.grad.clone() for parameter in module]
    assert not store.has_nonfinite_gradients()
    assert all(same_bits(old, new.grad) for old, new in zip(before, module, strict=True))
    module[1].grad[2] = bad
    assert store.has_nonfinite_gradients()
    module[1].grad[2] = 0.0
    assert not store.has_nonfinite_gradients()


def test_bad_sparse_gradients_are_found() -> None:
    embedding = nn.Embedding(4, 2, sparse=True)
    store = ResidentStore(embedding, torch.optim.SGD(embedding.parameters(), lr=0.1))
    embedding(torch.tensor([1, 3])).sum().backward()
    assert not store.has_nonfinite_gradients()
    (embedding(torch.tensor([2])) * math.nan).sum().backward()
    assert store.has_nonfinite_gradients()


@given(st.lists(st.floats(width=32), min_size=1, max_size=20), st.data())
def test_the_check_agrees_with_isfinite(values: list[float], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(values)))
    module = nn.ParameterList(
        [nn.Parameter(torch.zeros(cut)), nn.Parameter(torch.zeros(len(values) - cut))]
    )
    store = ResidentStore(module, torch.optim.SGD(module.parameters(), lr=0.1))
    module[0].grad, module[1].grad = torch.tensor(values[:cut]), torch.tensor(values[cut:])
    assert store.has_nonfinite_gradients() is not all(map(math.isfinite, values))
