"""Laws of the op under the loss: its derivative, its figures, what it makes of broken numbers."""

from typing import Any

import pytest
import torch
from support import DEVICE
from torch.utils.flop_counter import FlopCounterMode

from neaptide_kernels.chunked_cross_entropy import chunked_cross_entropy, whole
from neaptide_kernels.chunked_cross_entropy.trials import arguments
from neaptide_kernels.registry import KERNELS

pytestmark = pytest.mark.usefixtures("on_device")

OP = KERNELS.ops["chunked_cross_entropy"]


def leaves(tokens: int = 9, width: int = 4, vocabulary: int = 7, **kind: Any) -> list[torch.Tensor]:
    """Return hidden, weight and bias that want gradients, and labels."""
    *given, labels = arguments(tokens, width, vocabulary, DEVICE)
    return [*(tensor.to(**kind).requires_grad_() for tensor in given), labels]


@pytest.mark.parametrize("wanted", [(True, True, True), (False, False, False)])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_torch_finds_nothing_wrong_with_its_gradients(
    wanted: tuple[bool, bool, bool], softcap: float | None
) -> None:
    given = (*leaves(), 4, -100, softcap, None, *wanted)
    torch.library.opcheck(OP.overload, given)


def test_gradients_are_those_that_torch_finds_numerically() -> None:
    *given, labels = leaves(dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda *tensors: OP(*tensors, labels, 4, -100, 2.0, None, True, True, True)[0], given
    )


def test_gradients_that_were_not_asked_for_are_computed_in_backward() -> None:
    *given, labels = leaves()
    asked = OP(*given, labels, 4, -100, None, None, True, True, True)
    expected = torch.autograd.grad(asked[0], given)
    unasked = OP(*given, labels, 4)
    assert [0, 0, 0] == [gradient.numel() for gradient in unasked[1:]]
    for right, got in zip(expected, torch.autograd.grad(unasked[0], given), strict=True):
        assert torch.equal(right, got)


def test_the_gradients_that_come_with_the_loss_have_none_themselves() -> None:
    *given, labels = leaves()
    results = OP(*given, labels, 4, -100, None, None, True, True, True)
    assert [True, False, False, False] == [result.requires_grad for result in results]


def test_second_derivatives_are_refused_whatever_the_first_was_multiplied_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(whole, "MOST", 0)
    hidden, weight, _, labels = leaves()
    loss = chunked_cross_entropy(hidden, weight, labels)
    (gradient,) = torch.autograd.grad(loss, hidden, create_graph=True)
    with pytest.raises(RuntimeError, match=r"no second derivative; .* use .*cross_entropy") as told:
        (gradient.square().sum() + weight.sum()).backward()
    assert "\n" not in str(told.value)


def test_flops_are_those_of_the_products() -> None:
    *given, labels = leaves(9, 4, 7)
    one = 2 * 9 * 4 * 7
    for wanted, products in (((False,) * 3, 1), ((True, False, False), 2), ((True,) * 3, 3)):
        with FlopCounterMode(display=False) as counter:
            OP(*given, labels, 4, -100, None, None, *wanted)
        assert products * one == counter.get_total_flops()


def test_a_label_out_of_range_makes_the_loss_nan_where_nobody_looks() -> None:
    *given, labels = arguments(9, 4, 7, DEVICE)
    labels[2] = 7
    loss, for_hidden, *_ = OP(*given, labels, 4, -100, None, None, True, False, False)
    assert loss.isnan()
    assert [2] == for_hidden.isnan().any(1).nonzero().flatten().tolist()


@pytest.mark.parametrize("provider", ["reference", "torch"])
def test_what_is_ignored_may_be_nan(provider: str) -> None:
    hidden, weight, _, labels = arguments(9, 4, 7, DEVICE)
    labels[2] = -100
    kept = torch.arange(9) != 2
    expected = OP(hidden[kept], weight, None, labels[kept], 100, -100, 2.0)[0]
    hidden[2] = torch.nan
    with KERNELS.using(chunked_cross_entropy=provider):
        results = OP(hidden, weight, None, labels, 100, -100, 2.0, None, True, False, False)
    torch.testing.assert_close(results[0], expected)
    assert results[1].isfinite().all()


def test_compiles_into_one_graph_with_its_gradients() -> None:
    torch._dynamo.reset()
    hidden, weight, bias, labels = leaves(24)
    shape = (2, 12)

    def loss(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return 3 * chunked_cross_entropy(
            hidden.view(*shape, 4), weight, labels.view(shape), bias=bias, chunk=5
        )

    given = (hidden, weight, bias)
    expected = torch.autograd.grad(loss(*given), given)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for right, got in zip(expected, torch.autograd.grad(compiled(*given), given), strict=True):
        torch.testing.assert_close(got, right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("softcap", [None, 30.0])
def test_errors_are_at_most_twice_those_of_torch(dtype: torch.dtype, softcap: float | None) -> None:
    def errors(loss: Any) -> list[float]:
        given = [tensor.detach().to(dtype).requires_grad_() for tensor in (hidden, weight)]
        got = loss(*given)
        got = [got.detach(), *torch.autograd.grad(got, given)]
        return [
            float((one.double() - right).norm() / right.norm())
            for one, right in zip(got, truth, strict=True)
        ]

    def whole(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        logits = hidden @ weight.T
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        return torch.nn.functional.cross_entropy(logits, labels)

    def chunked(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return chunked_cross_entropy(hidden, weight, labels, chunk=17, softcap=softcap)

    *rounded, _, labels = arguments(120, 32, 200, DEVICE, dtype)
    hidden, weight = (tensor.double().requires_grad_() for tensor in rounded)
    loss = whole(hidden, weight)
    truth = [loss.detach(), *torch.autograd.grad(loss, (hidden, weight))]
    for ours, torchs in zip(errors(chunked), errors(whole), strict=True):
        assert ours <= max(2 * torchs, torch.finfo(dtype).eps / 4)


def test_the_op_takes_a_matrix_and_says_so_in_one_line() -> None:
    *given, labels = arguments(6, 4, 7, DEVICE)
    with pytest.raises(ValueError, match=r"hidden \[2, 3, 4\]: the op takes \[tokens, d\]") as told:
        OP(given[0].view(2, 3, 4), *given[1:], labels.view(2, 3))
    assert "\n" not in str(told.value)
