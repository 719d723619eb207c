"""What a trial finds, and what it leaves as it was: settings, random numbers, arguments."""

import warnings
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import torch

from neaptide_kernels.registry import (
    KernelError,
    Kernels,
    KernelWarning,
    Op,
    OpSpec,
    Provider,
    Sample,
)

_NUMBERS = count()


def _product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y


def _random_samples(device: torch.device) -> Iterator[Sample]:
    yield Sample(name="random", arguments=tuple(torch.randn(2, 3, 3, device=device)))


@pytest.fixture
def product(kernels: Kernels) -> Op:
    """`product(x, y)` whose samples are drawn, and made in the default dtype."""
    return kernels.define(
        OpSpec(
            name=f"neaptide_test::product_{next(_NUMBERS)}",
            summary="a product of matrices",
            reference=_product,
            fake=lambda x, y: x.new_empty(x.shape[0], y.shape[1]),
            samples=_random_samples,
            large=_random_samples,
            tolerances={torch.float32: 1e-6},
        )
    )


def _float64(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x.double() * factor


def _writes(x: torch.Tensor, factor: float) -> torch.Tensor:
    result = x * factor
    x.zero_()
    return result


def _aliases(x: torch.Tensor, factor: float) -> torch.Tensor:
    if bool((x == 0).all()):
        return x
    return x * factor


@pytest.mark.parametrize(
    ("run", "found"),
    [
        (_float64, r"torch.float64 \[0\] on cpu instead of torch.float32 \[0\] on cpu"),
        (lambda x, factor: (x * factor)[None], r"float32 \[1, 0\] on cpu instead of"),
        (_writes, "on the sample '17': it wrote to x"),
        (_aliases, "on the sample '1': result 0 shares memory with x"),
        (lambda x, factor: None, "returned 0 tensors instead of 1"),
    ],
    ids=["dtype", "shape", "writes", "aliases", "nothing"],
)
def test_what_numbers_do_not_tell_is_found_too(
    kernels: Kernels, double: Op, run: Callable[..., Any], found: str
) -> None:
    kernels.add(Provider(op=double.spec.name, name="mine", run=run, priority=1))
    x = torch.ones(3)

    with pytest.warns(KernelWarning, match=found):
        result = double(x)

    assert torch.equal(torch.full((3,), 2.0), result)
    assert torch.equal(torch.ones(3), x)


def test_a_run_draws_the_same_numbers_with_and_without_a_trial(
    kernels: Kernels, product: Op
) -> None:
    kernels.add(Provider(op=product.spec.name, name="mine", run=_product, priority=1))
    torch.manual_seed(7)
    wanted = torch.rand(2)

    torch.manual_seed(7)
    product(torch.ones(3, 3), torch.ones(3, 3))
    drawn = torch.rand(2)
    assert "mine" == kernels.explain(product.spec.name, (torch.ones(3, 3),) * 2).chosen
    with kernels.using(tuning="tune"):
        torch.manual_seed(7)
        product(torch.ones(3, 3), torch.ones(3, 3))

    assert torch.equal(wanted, drawn)
    assert torch.equal(wanted, torch.rand(2))


@pytest.mark.parametrize(
    "setting",
    [
        lambda: torch.autocast("cpu", torch.bfloat16),
        torch.inference_mode,
        lambda: torch.device("meta"),
    ],
    ids=["autocast", "inference", "default device"],
)
def test_the_callers_settings_cost_nobody_a_place(
    kernels: Kernels, product: Op, setting: Callable[[], Any]
) -> None:
    kernels.add(Provider(op=product.spec.name, name="mine", run=_product, priority=1))
    x = torch.eye(3)

    with warnings.catch_warnings(), setting():
        warnings.simplefilter("error")
        product(x, x)

    assert "mine" == kernels.explain(product.spec.name, (x, x)).chosen


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_trial_is_held_in_float32_and_gives_the_default_dtype_back(
    kernels: Kernels, product: Op, dtype: torch.dtype
) -> None:
    seen = []

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append(x.dtype)
        return x @ y

    kernels.add(Provider(op=product.spec.name, name="mine", run=run, priority=1))
    x = torch.eye(3)
    torch.set_default_dtype(dtype)
    try:
        product(x, x)
        assert dtype == torch.get_default_dtype()
    finally:
        torch.set_default_dtype(torch.float32)

    assert {torch.float32} == set(seen)


def test_an_answer_that_is_neither_true_nor_a_reason(kernels: Kernels, double: Op) -> None:
    answers = {"false": False, "nothing": None, "empty": ""}
    for name, answer in answers.items():
        provider = Provider(
            op=double.spec.name,
            name=name,
            run=double.spec.reference,
            supports=lambda query, answer=answer: answer,  # type: ignore[misc]  # a stranger's
            priority=1,
        )
        kernels.add(provider)

    explained = kernels.explain(double.spec.name, (torch.ones(1),))

    assert "reference" == explained.chosen
    assert ["", *(f"its supports() returned {answer!r}" for answer in answers.values())] == [
        one.reason.split(",")[0] for one in explained.providers
    ]


@pytest.mark.parametrize("question", ["configs", "workspace_bytes"])
def test_questions_that_raise_are_a_no(kernels: Kernels, double: Op, question: str) -> None:
    def raising(_: object) -> Any:
        message = "no such table"
        raise LookupError(message)

    changes: dict[str, Any] = {question: raising}
    kernels.add(
        Provider(op=double.spec.name, name="odd", run=double.spec.reference, priority=1, **changes)
    )

    explained = kernels.explain(double.spec.name, (torch.ones(1),))

    assert torch.equal(torch.tensor([2.0]), double(torch.ones(1)))
    assert "reference" == explained.chosen
    assert f"its {question}() raised LookupError: no such table" == explained.providers[1].reason


def test_tuning_leaves_out_who_fails_on_the_calls_own_size(kernels: Kernels, double: Op) -> None:
    def small_only(x: torch.Tensor, factor: float) -> torch.Tensor:
        if x.numel() > 100:
            message = "too\nlarge"
            raise RuntimeError(message)
        return x * factor

    kernels.add(Provider(op=double.spec.name, name="small", run=small_only, priority=1))

    with (
        kernels.using(tuning="tune"),
        pytest.warns(KernelWarning, match="'small' of .* is left out of tuning: .*too large"),
    ):
        assert torch.equal(torch.full((200,), 2.0), double(torch.ones(200)))


def test_one_that_is_removed_while_it_is_asked_for(kernels: Kernels, double: Op) -> None:
    mine = Provider(op=double.spec.name, name="mine", run=double.spec.reference)
    kernels.add(mine)

    with kernels.using(**{double.spec.name: "mine"}):
        kernels.remove(mine)
        with pytest.raises(KernelError, match=r"'mine' was requested and cannot run .* it was rem"):
            double(torch.ones(1))
