"""What is compressed and what is not; the same tensor saved twice; changes, replays, leaks."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from compressed import both, differentiated, error, saving
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from neaptide.testing.allocations import counted
from neaptide_plugins.activation_compression.ops import CODES, EXACT, Need, Ops
from neaptide_plugins.activation_compression.saving import Saving

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = 32


def linear(seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(SIZE, SIZE)


def given_x() -> torch.Tensor:
    return torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(1))


KEPT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "log": torch.log,
    "divided": lambda a: 1 / a,
    "normalised": lambda a: a / a.sum(1, keepdim=True),
    "square root of": lambda a: (a + 0.01).sqrt(),
    "inverse power": lambda a: a.pow(-1),
    "root by a power": lambda a: a.pow(0.5),
    "maximum": torch.max,
    "maxima": lambda a: a.amax(1),
    "larger of two": lambda a: torch.maximum(a, a.flip(0)),
    "clamp": lambda a: a.clamp(0.4, 0.6),
    "absolute value": lambda a: (a - 0.5).abs(),
    "norm": lambda a: a.norm(dim=1),
    "largest norm": lambda a: torch.linalg.vector_norm(a, ord=torch.inf, dim=1),
    "log-softmax": lambda a: a.log_softmax(1)[:, 0],
    "logsumexp": lambda a: a.logsumexp(1),
    "product": lambda a: (1 + a).prod(1),
    "distances": lambda a: torch.cdist(a, a.flip(0)),
    "arc cosine": torch.acos,
    "sine": lambda x: torch.sin(100 * x),
    "cosine": lambda x: torch.cos(100 * x),
    "sorted": lambda a: a.sort(1)[0][:, :3],
    "rounded off": lambda a: functional.hardtanh(a, 0.4, 0.6),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_divides_compares_or_exponentiates_keeps_its_tensors(name: str) -> None:
    layer, x = linear(), given_x()
    exact, compressed = both(
        # What is saved by nobody else: sums save nothing.
        lambda: KEPT[name]((0.1 * layer(x) + 0.5).abs_().clamp_(0.1, 0.9)).sum(),
        layer.parameters(),
    )
    assert 0.0 == error(exact, compressed)


SIGNS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": functional.relu,
    "relu in place": lambda a: a.relu_(),
    "leaky relu": functional.leaky_relu,
    "leaky relu in place": lambda a: functional.leaky_relu_(a, 0.2),
    "relu6": lambda a: functional.relu6(8 * a),
    "hardtanh": lambda a: functional.hardtanh(a, -0.3, 0.2),
    "hardsigmoid": lambda a: functional.hardsigmoid(5 * a),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SIGNS)
def test_rectifiers_have_exact_gradients_from_few_bits(name: str, dtype: torch.dtype) -> None:
    layer, x = linear().to(dtype), given_x().to(dtype)
    exact, compressed = both(
        lambda: SIGNS[name](layer(x) + 0).sum(), layer.parameters(), group=512, min_elements=1024
    )
    assert 0.0 == error(exact, compressed)
    held = compressed.held
    assert held is not None
    assert held.compressed - x.nbytes <= (1 + 4 / 512) * SIZE * SIZE


BENT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "elu": functional.elu,
    "selu": functional.selu,
    "celu in place": lambda a: functional.celu_(a, 2.0),
    "prelu": lambda a: functional.prelu(a, torch.full((SIZE,), 0.1, requires_grad=True)),
}


@pytest.mark.parametrize("name", BENT)
def test_where_a_function_bends_no_value_changes_its_side(name: str) -> None:
    layer, x = linear(), given_x()
    x[1:] *= 1e-4  # a step of a group is larger than nearly all its values
    with torch.no_grad():
        layer.bias.zero_()
    exact, compressed = both(
        lambda: BENT[name](layer(x).t() + 0).sum(), layer.parameters(), group=512
    )
    assert error(exact, compressed) < 0.01


def test_masks_indices_and_statistics_are_exact() -> None:
    layer, x = linear(), given_x()
    index = torch.randint(0, SIZE, (SIZE, SIZE))

    def call() -> torch.Tensor:
        a = functional.dropout(layer(x), 0.3)
        a = a.masked_fill(x > 0, 0.5).where(x < 1, 2.0).gather(1, index)
        return a.sum() + functional.max_pool1d(a, 2).sum()

    exact, compressed = both(call, layer.parameters(), exclude=("pool",))
    assert 0.0 == error(exact, compressed)
    assert compressed.held is not None
    assert x.nbytes + index.nbytes + 3 * SIZE * SIZE < compressed.held.exact
    assert compressed.held.share > 0.15, "masks are held as bits"


def test_a_tensor_needed_exactly_by_one_is_exact_for_all() -> None:
    layer, x = linear(), given_x()

    def call() -> torch.Tensor:
        a = layer(x).sigmoid()
        return (a * a).sum() + functional.gelu(a).sum() + a.log().sum()

    exact, compressed = both(call, layer.parameters())
    assert 0.0 == error(exact, compressed)


def test_a_bias_of_attention_is_exact() -> None:
    query = given_x().view(1, 1, SIZE, SIZE).requires_grad_()
    node = functional.scaled_dot_product_attention(query, query, query).grad_fn
    assert "ScaledDotProductFlashAttentionForCpuBackward0" == type(node).__name__
    needs = [Ops().need(node, place=place) for place in range(4)]
    assert [CODES, CODES, CODES, EXACT] == needs
    assert EXACT is Ops().need(node, output=1), "logsumexp"
    assert EXACT is Ops(("attention",)).need(node, place=0)


def test_parts_of_one_split_are_told_apart() -> None:
    places = []

    class Noting(Ops):
        def need(self, node: Any, *, output: int | None = None, place: int = 0) -> Need:
            if type(node).__name__ == "AddcmulBackward0":
                places.append(place)
            return super().need(node, output=output, place=place)

    session = Saving(Noting(), group=16, min_elements=16)
    with session.hooks():
        parts = (linear()(given_x()) * 1.0).chunk(4)[:3]
        session.finish(torch.addcmul(*parts).sum())
    assert [1, 2] == sorted(places)


def test_the_same_memory_is_encoded_once() -> None:
    layer, x = linear(), given_x()
    session = saving()
    with session.hooks():
        a = layer(x).tanh()
        b = (a * a).sum()
        c = (
            functional.gelu(a).sum()
            + functional.silu(a.t()).sum()
            + functional.gelu(a.view(-1)).sum()
        )
        session.finish(b + c)
    held = session.held()
    # Codes and scales of `a` alone, beside the input.
    assert x.nbytes + SIZE * SIZE * (1 + 4 / 16) == held.compressed
    assert 2 * x.nbytes == held.exact


def test_views_with_gaps_are_packed() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(SIZE, 3 * SIZE), given_x()

    def call() -> torch.Tensor:
        query, key, value = layer(x).view(4, 8, 3, 2, SIZE // 2).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(query, key, value).square().sum()

    exact, compressed = both(call, layer.parameters())
    assert error(exact, compressed) < 0.02
    assert compressed.held is not None
    assert compressed.held.share > 0.54


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
        blocks = [weakref.ref(block) for block in session._blocks.values()]
        assert len(blocks) > 3
        del loss
        assert [None] * len(blocks) == [block() for block in blocks]
    finally:
        gc.enable()


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
