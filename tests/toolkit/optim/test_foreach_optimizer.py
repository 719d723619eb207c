"""The base of our torch optimizers: which parameters an update gets together, and in what order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from neaptide_toolkit.optim.foreach_optimizer import TOGETHER, ForeachOptimizer

if TYPE_CHECKING:
    from collections.abc import Mapping


class Counted(ForeachOptimizer):
    """Subtracts the gradient, and keeps each batch it is given."""

    def __init__(self, params: Any, *, counts: bool = True) -> None:
        self.batches: list[list[torch.Tensor]] = []
        super().__init__(params, {"counts": counts})

    def new_state(self, param: torch.Tensor, _: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        del param
        return {"step": torch.zeros(())} if self.defaults["counts"] else {}

    def update(
        self,
        params: list[torch.Tensor],
        grads: list[torch.Tensor],
        state: Mapping[str, list[torch.Tensor]],
        group: dict[str, Any],
    ) -> None:
        assert not group["counts"] or len({int(count) for count in state["step"]}) == 1
        self.batches.append(params)
        torch._foreach_sub_(params, grads)

    def out_of_range(self, group: Mapping[str, Any]) -> dict[str, bool]:
        return {"counts": not isinstance(group["counts"], bool)}


def parameters(*sizes: int, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    made = [nn.Parameter(torch.zeros(size, dtype=dtype)) for size in sizes]
    for each in made:
        each.grad = torch.ones_like(each)
    return made


def sizes(optimizer: Counted) -> list[list[int]]:
    return [[param.numel() for param in batch] for batch in optimizer.batches]


def test_a_batch_has_at_most_the_stated_elements_or_one_parameter() -> None:
    half = TOGETHER // 2
    optimizer = Counted(parameters(half, half, 1, 2 * TOGETHER, 3, 0))
    optimizer.step()
    assert [[half, half], [1], [2 * TOGETHER], [3, 0]] == sizes(optimizer)


@pytest.mark.parametrize("counts", [True, False])
def test_a_batch_has_one_dtype_and_one_count(counts: bool) -> None:  # noqa: FBT001 - a case
    early, late = parameters(2, 3)
    (half,) = parameters(4, dtype=torch.float16)
    late.grad = None
    optimizer = Counted([early, late, half], counts=counts)
    optimizer.step()
    late.grad = torch.ones_like(late)
    optimizer.step()
    second = [[2], [3], [4]] if counts else [[2, 3], [4]]
    assert [[2], [4], *second] == sizes(optimizer)
    assert torch.equal(early, torch.full((2,), -2.0))
    assert torch.equal(late, torch.full((3,), -1.0))


def test_a_sparse_gradient_is_refused_before_anything_changes() -> None:
    dense, other = parameters(2, 2)
    other.grad = torch.ones(2).to_sparse()
    optimizer = Counted([dense, other])
    with pytest.raises(ValueError, match=r"^Counted takes dense gradients .*; set sparse=False$"):
        optimizer.step()
    assert not dense.any()
    assert not optimizer.state[dense]


def test_a_group_that_does_not_fit_is_not_added() -> None:
    optimizer = Counted(parameters(2))
    with pytest.raises(ValueError, match=r"^Counted: counts is out of range \(got 3\)$"):
        optimizer.add_param_group({"params": parameters(2), "counts": 3})
    with pytest.raises(ValueError, match=r"parameter 0 of group 1, torch.complex64 \[2\], has no"):
        optimizer.add_param_group({"params": parameters(2, dtype=torch.complex64)})
    assert 1 == len(optimizer.param_groups)


class Placed(Counted):
    """Keeps the numbers of the parameters that it is given; has a state by group."""

    placed = True

    def new_state(self, param: torch.Tensor, group: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        return super().new_state(param, group) | {"more": param.new_zeros(group["more"])}

    def update(
        self,
        params: list[torch.Tensor],
        grads: list[torch.Tensor],
        state: Mapping[str, list[torch.Tensor]],
        group: dict[str, Any],
    ) -> None:
        assert [group["more"]] * len(params) == [more.numel() for more in state["more"]]
        self.numbers = [*getattr(self, "numbers", []), *group["places"]]
        super().update(params, grads, state, group)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_update_may_get_numbers_and_a_state_by_group(dtype: torch.dtype) -> None:
    first, second, third = parameters(2, 3, 4, dtype=dtype)
    second.grad = None
    groups = [{"params": [first, second], "more": 1}, {"params": [third], "more": 5}]
    optimizer = Placed(groups)
    for group in optimizer.param_groups:
        group["rounding"] = "stochastic"
    optimizer.step()
    assert [0, 2] == optimizer.numbers
    assert all("places" not in group for group in optimizer.param_groups)

    again = Placed(groups)
    again.load_state_dict(optimizer.state_dict())
    assert (5,) == again.state[third]["more"].shape


def test_a_loaded_state_adds_no_option_to_the_groups() -> None:
    """torch adds a default of its own when it loads; the digest of a run has the groups."""
    optimizer = Counted(parameters(3))
    optimizer.step()
    saved = optimizer.state_dict()
    again = Counted(parameters(3))
    again.load_state_dict(saved)
    assert saved["param_groups"] == again.state_dict()["param_groups"]
