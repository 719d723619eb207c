"""Operations on unknown tensors: their shapes, and what stays known."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neaptide.errors import ModelError
from neaptide_toolkit.dry_run.unknown import Unknown

if TYPE_CHECKING:
    from collections.abc import Callable

LARGE = 2**22


def ignored(*_: Any) -> None:
    """Take a storage."""


def unknown(mode: Unknown, *shape: int) -> torch.Tensor:
    made = torch.zeros(*shape)
    mode.forget([made])
    return made


def convolved(x: torch.Tensor, *, images_last: bool, weight_last: bool) -> Any:
    """Return a convolution and its gradients; `x` is of shape [rows, columns]."""
    one = x[:1, :1].reshape(1, 1, 1, 1)
    images, weight = one.expand(2, 6, 5, 5).clone(), one.expand(4, 6, 3, 3)
    if images_last:
        images = images.to(memory_format=torch.channels_last)
    weight = weight.contiguous(
        memory_format=torch.channels_last if weight_last else torch.contiguous_format
    )
    images, weight = images.detach().requires_grad_(), weight.detach().requires_grad_()
    made = torch.nn.functional.conv2d(images, weight, padding=1)
    return made.detach(), *torch.autograd.grad(made.sum(), (images, weight))


OPERATIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "a product": lambda x: x @ x.mT,
    "a view": lambda x: x.transpose(0, 1)[1:],
    "in place": lambda x: x.mul_(2).add_(1),
    "in place, of a view": lambda x: x[0].zero_(),
    "two results": lambda x: torch.max(x, dim=1),
    "a list": lambda x: torch.split(x, 1),
    "a convolution": partial(convolved, images_last=False, weight_last=False),
    "a convolution of channels last": partial(convolved, images_last=True, weight_last=False),
    "a convolution by channels last": partial(convolved, images_last=False, weight_last=True),
    "another dtype": lambda x: x.to(torch.bfloat16).softmax(-1, dtype=torch.float32),
    "a factory": lambda x: x.new_zeros(x.shape[1], 2),
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(
        x[None, None], x[None, None], x[None, None]
    ),
    "foreach": lambda x: torch._foreach_add([x, x], 1),
    "in place by foreach": lambda x: torch._foreach_mul_([x], 2),
    "out": lambda x: torch.mul(x, x, out=torch.empty_like(x)),
    "statistics that change": lambda x: torch.nn.functional.batch_norm(
        x, torch.zeros(x.shape[1]), torch.ones(x.shape[1]), training=True
    ),
}


def shapes(value: Any) -> Any:
    leaves, form = torch.utils._pytree.tree_flatten(value)
    return form, [(one.shape, one.stride(), one.dtype, one.storage_offset()) for one in leaves]


@pytest.mark.parametrize("name", OPERATIONS)
@given(rows=st.integers(2, 5), columns=st.integers(2, 5))
def test_shapes_are_those_of_the_operation(name: str, rows: int, columns: int) -> None:
    real = OPERATIONS[name](torch.randn(rows, columns))
    mode = Unknown(ignored)
    with mode:
        made = OPERATIONS[name](unknown(mode, rows, columns))
    assert shapes(real) == shapes(made)


def test_what_is_on_meta_takes_no_memory_and_no_time() -> None:
    made: list[torch.UntypedStorage] = []
    ran: list[Any] = []
    mode = Unknown(lambda storage, *_: made.append(storage), lambda call, *_: ran.append(call))
    with mode:
        source = unknown(mode, LARGE)
        made.clear()
        ran.clear()
        like = torch.empty_like(source, device="meta")
        more = torch.zeros_like(like).add_(1)
        with torch.device("meta"):
            layer = torch.nn.Linear(LARGE, 1)
        assert all(one.is_meta for one in (like, more, like[1:], layer.weight))
        assert (made, ran) == ([], [])
        back = torch.empty_like(like, device="cpu")
    assert not back.is_meta
    assert [one.nbytes() for one in made] == [back.nbytes]


def test_memory_is_not_written() -> None:
    process = psutil.Process()
    mode = Unknown(ignored)
    with mode:
        before = process.memory_info().rss
        weight = torch.nn.Linear(2**15, 2**15)  # 4 GiB
        loss = weight(torch.zeros(8, 2**15)).square().mean()
        loss.backward()
        torch.optim.AdamW(weight.parameters()).step()
        assert process.memory_info().rss - before < 2**28


def test_small_known_values_are_computed() -> None:
    with Unknown(ignored):
        assert torch.arange(4).sum().item() == sum(range(4))
        assert (torch.ones(3) * 2).tolist() == [2.0] * 3


def test_an_unknown_value_reads_as_one_and_a_check_of_it_passes() -> None:
    mode = Unknown(ignored)
    with mode:
        values = unknown(mode, 3)
        assert values.sum().item() == 1.0
        assert math.isfinite(values.mean())
        assert torch.isfinite(values).all()
        assert torch.equal(values, values * 2)


def test_what_is_large_is_unknown() -> None:
    with Unknown(ignored):
        assert torch.linspace(2, 3, LARGE).sum().item() == 1.0


def test_gradients_have_the_shapes_of_the_weights() -> None:
    mode = Unknown(ignored)
    with mode:
        model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 1))
        mode.forget(model.parameters())
        model(torch.ones(2, 4)).sum().backward()
    assert [p.shape for p in model.parameters()] == [p.grad.shape for p in model.parameters()]  # type: ignore[union-attr]


def test_each_storage_is_told_once_until_it_is_freed() -> None:
    told: list[int] = []
    with Unknown(lambda storage, *_: told.append(storage.nbytes())):
        made = torch.zeros(4)
        made.view(2, 2).t()
        del made
    assert told == [16]


def test_an_operation_without_a_shape_is_refused_in_one_line() -> None:
    mode = Unknown(ignored)
    with mode, pytest.raises(ModelError, match="without the values; such a model") as raised:
        torch.bincount(unknown(mode, 3).long())
    assert "\n" not in str(raised.value)


def test_operations_without_autograd_are_those_with_it() -> None:
    def named(context: Any) -> list[str]:
        names: list[str] = []
        mode = Unknown(ignored, lambda operation, *_: names.append(str(operation)))
        with context, mode:
            x, weight = unknown(mode, 8, 4), unknown(mode, 3, 4).bfloat16()
            torch.nn.functional.linear(x.bfloat16(), weight).float().reshape(-1)
        return names

    expected = named(torch.no_grad())
    assert "aten.mm.default" in expected
    assert named(torch.inference_mode()) == expected


def test_an_operation_with_a_kernel_is_not_composed() -> None:
    names: list[str] = []
    mode = Unknown(ignored, lambda operation, *_: names.append(str(operation)))
    with mode:
        x = unknown(mode, 8, 4).requires_grad_()
        torch.nn.functional.silu(x).sum().backward()
    assert "aten.silu_backward.default" in names
