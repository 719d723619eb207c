"""The loss of few logits on a CPU, which torch computes at once, beside the op's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neaptide_kernels.chunked_cross_entropy import chunked_cross_entropy, whole
from neaptide_kernels.chunked_cross_entropy.trials import arguments
from neaptide_kernels.registry import KERNELS
from neaptide_toolkit.testing import peak_of

if TYPE_CHECKING:
    from collections.abc import Callable

CPU = torch.device("cpu")


def leaves(*sizes: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Return hidden, weight and bias that want gradients, and labels."""
    *given, labels = arguments(*sizes, CPU, dtype)  # type: ignore[misc]  # three sizes
    return [*(tensor.requires_grad_() for tensor in given), labels]


def by(path: str, call: Callable[[], torch.Tensor], given: list[torch.Tensor]) -> list[Any]:
    """Return a loss and its gradients, or the message of an error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole, "MOST", 0 if path == "op" else whole.MOST)
        try:
            loss = call()
        except ValueError as error:
            return [str(error)]
        return [loss, *torch.autograd.grad(3 * loss, given)]


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(1, 9),
    vocabulary=st.integers(1, 7),
    reduction=st.sampled_from(["mean", "sum"]),
    softcap=st.sampled_from([None, 0.5]),
    with_bias=st.booleans(),
    nested=st.booleans(),
    label=st.sampled_from([None, None, 0, -1, -100, 7]),
    broken=st.sampled_from([None, None, torch.nan, torch.inf, -torch.inf]),
)
def test_loss_gradients_and_errors_are_those_of_the_op(
    tokens: int,
    vocabulary: int,
    reduction: Any,
    softcap: float | None,
    label: int | None,
    broken: float | None,
    *,
    with_bias: bool,
    nested: bool,
) -> None:
    hidden, weight, bias, labels = leaves(tokens, 3, vocabulary, dtype=torch.float64)
    if label is not None:
        labels[0] = label
    if broken is not None:
        with torch.no_grad():
            bias[-1] = broken
    given = [hidden, weight, bias] if with_bias else [hidden, weight]

    def call() -> torch.Tensor:
        return chunked_cross_entropy(
            hidden[None] if nested else hidden,
            weight,
            labels[None] if nested else labels,
            bias=bias if with_bias else None,
            reduction=reduction,
            softcap=softcap,
        )

    expected, got = by("op", call, given), by("torch", call, given)
    if isinstance(expected[0], str):
        assert expected == got
        return
    torch.testing.assert_close(got[0], expected[0], equal_nan=True)
    if bool(expected[0].isfinite()) and bool((labels != -100).any()):  # else torch has nan * 0
        for right, result in zip(expected[1:], got[1:], strict=True):
            torch.testing.assert_close(result, right)


@pytest.mark.parametrize(("vocabulary", "at_once"), [(4096, True), (4097, False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_million_logits_are_few_and_hold_what_is_said(
    dtype: torch.dtype, vocabulary: int, *, at_once: bool
) -> None:
    hidden, weight, _, labels = leaves(256, 8, vocabulary, dtype=dtype)

    def work() -> None:
        chunked_cross_entropy(hidden, weight, labels, chunk=8).backward()

    size = 4 * 256 * vocabulary
    assert (peak_of(work) > size) == at_once
    assert peak_of(work) < (3.1 if at_once else 0.3) * size


def test_a_request_autocast_float16_and_a_frozen_head_are_left_to_the_op(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    run = KERNELS.run
    monkeypatch.setattr(KERNELS, "run", lambda op, given: calls.append(op) or run(op, given))
    hidden, weight, _, labels = leaves(9, 4, 5)
    chunked_cross_entropy(hidden, weight, labels)
    with torch.no_grad():
        chunked_cross_entropy(hidden, weight.detach(), labels)
    assert not calls
    with KERNELS.using(chunked_cross_entropy="reference"):
        chunked_cross_entropy(hidden, weight, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        chunked_cross_entropy(hidden, weight, labels)
    chunked_cross_entropy(hidden.half(), weight.half(), labels)
    chunked_cross_entropy(hidden, weight.detach(), labels)
    assert calls == ["chunked_cross_entropy"] * 4


def test_an_ignored_token_that_is_nan_has_no_gradient_if_the_head_is_frozen() -> None:
    hidden, weight, _, labels = leaves(9, 4, 5)
    labels[2] = -100
    with torch.no_grad():
        hidden[2] = torch.nan
    loss = chunked_cross_entropy(hidden, weight.detach(), labels)
    loss.backward()
    assert loss.isfinite()
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()
