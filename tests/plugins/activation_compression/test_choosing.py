"""What is compressed and what is not, and the same tensor saved twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from compressed import SIZE, both, error, given_x, linear, saving
from torch import nn
from torch.nn import functional

from neaptide_kernels.attention import attention
from neaptide_plugins.activation_compression.needs import CODES, EXACT, Need, NodeNeeds
from neaptide_plugins.activation_compression.saving import Saving

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("on_device")

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


@pytest.mark.usefixtures("on_cpu")  # on a GPU nobody looks whether floats are a mask
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


@pytest.mark.usefixtures("on_cpu")  # of which the kernel is
def test_a_bias_of_attention_is_exact() -> None:
    query = given_x().view(1, 1, SIZE, SIZE).requires_grad_()
    node = functional.scaled_dot_product_attention(query, query, query).grad_fn
    assert "ScaledDotProductFlashAttentionForCpuBackward0" == type(node).__name__
    needs = [NodeNeeds().need(node, place=place) for place in range(4)]
    assert [CODES, CODES, CODES, EXACT] == needs
    assert EXACT is NodeNeeds().need(node, output=1), "logsumexp"
    assert EXACT is NodeNeeds(("attention",)).need(node, place=0)


def test_parts_of_one_split_are_told_apart() -> None:
    places = []

    class Noting(NodeNeeds):
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


def test_the_results_of_the_op_attention_are_exact() -> None:
    layer, x = nn.Linear(SIZE, 3 * SIZE), given_x()

    def call() -> torch.Tensor:
        query, key, value = layer(x).view(1, SIZE, 3, 4, 8).permute(2, 0, 3, 1, 4)
        return attention(query, key, value, causal=True).square().sum()

    exact, compressed = both(call, layer.parameters())
    assert 0.0 == error(exact, compressed)
