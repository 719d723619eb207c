"""Changes in place, replays, leaks; values that are broken or constant; compiled modules."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from compressed import SIZE, both, differentiated, error, given_x, linear, saving
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from neaptide_toolkit.testing.allocations import counted

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("on_device")


def change(what: str, session: Any) -> None:
    layer, x = linear(), given_x()
    with session.hooks():
        a = layer(x)
        b = functional.gelu(a)
        if what == "before it is compressed":
            a.add_(1)
        c = functional.gelu(b).sum()
        session.finish(c)
        if what == "after it is compressed":
            a.add_(1)
        if what == "through a view":
            a.view(-1)[3:7].mul_(2)
    c.backward()


@pytest.mark.parametrize(
    "what", ["before it is compressed", "after it is compressed", "through a view"]
)
def test_a_change_in_place_raises_as_in_torch(what: str) -> None:
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        change(what, saving())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        change(what, saving(min_elements=10_000))
    change("nothing", saving())


def test_memory_at_an_old_address_is_not_taken_for_the_old_one() -> None:
    layer, x = linear(), given_x()

    def call() -> torch.Tensor:
        total = torch.zeros(())
        for step in range(20):
            # Freed once compressed: the next ones come to the same address.
            total = total + functional.gelu(layer(x) * (step + 1.0)).sum()
        return total

    exact, compressed = both(call, layer.parameters())
    assert error(exact, compressed) < 0.02


def test_a_graph_is_run_backward_twice() -> None:
    layer, x = linear(), given_x()
    session = saving()
    with session.hooks():
        loss = layer(functional.gelu(layer(x))).square().mean()
        session.finish(loss)
    first = torch.autograd.grad(loss, layer.weight, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(loss, layer.weight)[0])


def test_gradients_of_gradients() -> None:
    layer, x = linear(), given_x().requires_grad_()

    def call() -> torch.Tensor:
        inner = layer(functional.softplus(layer(x)).tanh()).square().mean()
        (gradient,) = torch.autograd.grad(inner, x, create_graph=True)
        return gradient.square().sum()

    assert error(*both(call, layer.parameters())) < 0.03


def test_nothing_is_held_once_the_graph_is_gone() -> None:
    layer, x = linear(), given_x()
    session = saving()
    gc.collect()
    gc.disable()  # no cycle may be needed to end it
    try:
        with session.hooks():
            a = layer(x)
            storage = StorageWeakRef(a.untyped_storage())
            b = functional.gelu(a)
            del a
            loss = functional.softmax(functional.relu(layer(b)), -1).square().sum()
            del b
            session.finish(loss)
        assert storage.expired(), "the tensor itself is freed in the forward"
        memories = [weakref.ref(memory) for memory in session._memories.values()]
        assert len(memories) > 3
        del loss
        assert [None] * len(memories) == [memory() for memory in memories]
    finally:
        gc.enable()


@pytest.mark.usefixtures("on_cpu")  # of which the allocator is
def test_the_allocator_sees_what_is_reported() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(6)))
    x = torch.randn(512, 256)
    held = {}
    for name, session in (("exact", None), ("compressed", saving(group=128))):
        with counted() as allocations:
            if session is None:
                loss = model(x).square().mean()
            else:
                with session.hooks():
                    loss = model(x).square().mean()
                    session.finish(loss)
                reported = session.held()
            allocations.mark("forward")
            loss.backward()
            del loss
            model.zero_grad()
        held[name] = allocations.at_marks()["forward"][0]
    assert pytest.approx(reported.exact - x.nbytes, rel=0.01) == held["exact"]
    assert pytest.approx(reported.compressed - x.nbytes, rel=0.01) == held["compressed"]
    assert held["compressed"] < 0.3 * held["exact"]


def test_a_part_that_is_thrown_away_keeps_nothing() -> None:
    layer, x = linear(), given_x()
    session = saving()
    with session.hooks():
        a = layer(x).tanh()
        functional.gelu(a)  # nobody takes it
        loss = functional.silu(a).sum()
        session.finish(loss)
    assert x.nbytes + SIZE * SIZE * (1 + 4 / 16) == session.held().compressed


def test_a_function_of_ones_own_gets_what_it_saved() -> None:
    given: list[torch.Tensor] = []

    class Squared(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            squared = x * x
            ctx.name = "hides the node's own"
            ctx.save_for_backward(x, squared)
            return squared

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            given.extend(ctx.saved_tensors)
            return 2 * gradient * ctx.saved_tensors[0]

    layer, x = linear(), given_x()
    outputs: list[torch.Tensor] = []

    def call() -> torch.Tensor:
        outputs.append(layer(x))
        outputs.append(Squared.apply(outputs[0]))
        return outputs[1].sum()

    differentiated(call, layer.parameters(), saving())
    assert torch.equal(given[0], outputs[0])
    assert torch.equal(given[1], outputs[1])


@pytest.mark.parametrize("reentrant", [False, True])
def test_torchs_own_checkpoint(reentrant: bool) -> None:  # noqa: FBT001
    torch.manual_seed(0)
    inner = nn.Sequential(*(nn.Sequential(nn.Linear(SIZE, SIZE), nn.GELU()) for _ in range(3)))
    head, x = linear(), given_x().requires_grad_()

    def call() -> torch.Tensor:
        return head(checkpoint(inner, x, use_reentrant=reentrant)).square().mean()

    def gradient(session: Any) -> torch.Tensor:
        inner.zero_grad()
        if session is None:
            call().backward()
        else:
            with session.hooks():
                loss = call()
                session.finish(loss)
                loss.backward()
        assert inner[0][0].weight.grad is not None
        return inner[0][0].weight.grad.clone()

    exact, compressed = gradient(None), gradient(saving())
    assert float((exact - compressed).norm() / exact.norm()) < 0.02


@pytest.mark.usefixtures("on_cpu")  # on a GPU nobody looks for them, which would be a wait
@pytest.mark.parametrize("broken", [float("inf"), float("-inf"), float("nan")])
def test_gradients_are_finite_where_the_exact_ones_are(broken: float) -> None:
    layer, x = linear(), given_x()
    noise = torch.zeros(SIZE, SIZE)
    noise[3, 5] = broken

    def call() -> torch.Tensor:
        a = layer(x) + noise
        return (functional.gelu(a) * a).sum()

    exact, compressed = both(call, layer.parameters())
    for one, other in zip(exact.gradients, compressed.gradients, strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one.isfinite(), other.isfinite())
        finite = one.isfinite()
        assert 0 < int(finite.sum()) < finite.numel()
        assert float((one - other)[finite].norm() / one[finite].norm()) < 0.02


@pytest.mark.parametrize("function", [functional.softplus, functional.logsigmoid, torch.erf])
def test_minus_infinity_where_a_function_is_flat(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    layer, x = linear(), given_x()
    above = torch.ones(SIZE, SIZE).triu(1).bool()

    def call() -> torch.Tensor:
        return function(layer(x).masked_fill(above, float("-inf"))).clamp(min=-10).square().sum()

    assert error(*both(call, layer.parameters())) < 0.02


def test_minus_infinity_in_masked_scores() -> None:
    layer, x = linear(), given_x()
    above = torch.ones(SIZE, SIZE).triu(1).bool()

    def call() -> torch.Tensor:
        scores = (layer(x) @ layer(x).t()).masked_fill(above, float("-inf"))
        return (scores.softmax(-1) @ layer(x)).square().mean()

    assert error(*both(call, layer.parameters())) < 0.02


@pytest.mark.parametrize("value", [0.0, 1e-40, 1e-30, 5.0])
def test_constant_activations(value: float) -> None:
    layer, x = linear(), torch.full((SIZE, SIZE), value)
    with torch.no_grad():
        layer.weight.fill_(value)
        layer.bias.zero_()

    def call() -> torch.Tensor:
        return (functional.gelu(layer(x)) * 3.0 + layer(x).square()).sum()

    assert error(*both(call, layer.parameters())) < 1e-3


def test_compiled_modules_keep_what_they_save() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.GELU(), nn.Linear(SIZE, SIZE))
    compiled = torch.compile(model, backend="aot_eager")
    head, x = linear(), given_x()
    parameters = [*model.parameters(), *head.parameters()]
    exact, compressed = both(lambda: head(compiled(x).tanh()).square().mean(), parameters)
    assert 0 < error(exact, compressed) < 0.02
    assert compressed.held is not None
    assert compressed.held.share > 0


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_scripted_modules_and_vmap() -> None:
    layer, x = linear(), given_x()
    scripted = torch.jit.script(nn.Sequential(layer, nn.GELU()))
    for call in (
        lambda: scripted(x).square().mean(),
        lambda: torch.vmap(lambda row: layer(row).tanh().square().sum())(x).sum(),
    ):
        assert error(*both(call, layer.parameters())) < 0.02
