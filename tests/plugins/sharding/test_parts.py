"""The parts of a batch: their losses and gradients, added up, are those of the whole batch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neaptide import DataError, Loss
from neaptide.api.steps import weigh
from neaptide_plugins.sharding.parts import part_of, summed, whole

pytestmark = pytest.mark.usefixtures("on_device")

Made = tuple[float, torch.Tensor]


def losses_of(batch: Any, weight: torch.Tensor, kind: str) -> Any:
    """Return a loss that `weigh` takes: a mean, or a sum of the counted targets."""
    each = (batch["x"] * weight).square().sum(1)
    if kind == "mean":
        return each.mean()
    counted = batch["counted"].to(each.dtype)
    count: Any = counted.sum()
    return Loss((each * counted).sum(), count if kind == "tensor" else count.item())


def alone(batch: Any, start: torch.Tensor, kind: str) -> Made:
    weight = start.clone().requires_grad_()
    mean = weigh(losses_of(batch, weight, kind), batch).mean
    (gradient,) = torch.autograd.grad(mean, weight)
    return mean.item(), gradient


def together(batch: Any, start: torch.Tensor, kind: str, size: int) -> list[Made]:
    made, weights = [], []
    for rank in range(size):
        weight = start.clone().requires_grad_()
        part = part_of(batch, rank, size)
        loss = weigh(losses_of(part.batch, weight, kind), part.batch)
        made.append((loss, *summed(loss, part)))
        weights.append(weight)
    sums, counts = [one[2] for one in made], [one[3] for one in made]
    found = []
    for weight, (loss, own, _, _) in zip(weights, made, strict=True):
        mean = whole(loss, own, sums, counts).mean
        (gradient,) = torch.autograd.grad(mean, weight)
        found.append((mean.item(), gradient))
    return found


@settings(max_examples=25)
@given(
    rows=st.integers(1, 9),
    size=st.integers(2, 5),
    kind=st.sampled_from(["mean", "sum", "tensor"]),
    seed=st.integers(0, 99),
)
def test_the_parts_add_up_to_the_whole(rows: int, size: int, kind: str, seed: int) -> None:
    generator = torch.Generator(device="cpu").manual_seed(seed)
    x = torch.randn(rows, 3, generator=generator, device="cpu", dtype=torch.float64)
    counted = torch.rand(rows, generator=generator, device="cpu") < 0.7
    counted[0] = True
    start = torch.randn(3, generator=generator, device="cpu", dtype=torch.float64)
    anywhere = torch.empty(0).device
    batch = {"x": x.to(anywhere), "counted": counted.to(anywhere)}
    start = start.to(anywhere)
    mean, gradient = alone(batch, start, kind)
    found = together(batch, start, kind, size)
    assert len({one for one, _ in found}) == 1
    assert math.isclose(mean, found[0][0], rel_tol=1e-12)
    torch.testing.assert_close(sum(one for _, one in found), gradient, rtol=1e-12, atol=1e-12)


def test_a_mean_whose_weight_is_unknown_is_refused() -> None:
    labels = torch.tensor([[1, 2, 3], [1, -100, -100], [1, 2, 3], [1, 2, 3]])
    batch = {"x": torch.ones(4, 3), "labels": labels}
    part = part_of(batch, 0, 2)
    loss = weigh(part.batch["x"].mean(), part.batch)
    with pytest.raises(DataError, match="different numbers of targets a sample"):
        summed(loss, part)


@pytest.mark.parametrize("batch", [{"text": "a"}, torch.ones(())])
def test_a_batch_without_samples_is_refused(batch: Any) -> None:
    with pytest.raises(DataError, match="to divide among 2 processes"):
        part_of(batch, 0, 2)


def test_a_part_without_targets_counts_zero() -> None:
    """A mean over ignored labels only is NaN."""
    weight = torch.ones(3, 2, requires_grad=True)
    x = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    labels = torch.tensor([1, -100])

    def mean(part: Any) -> Loss:
        counted = int((part["y"] != -100).sum())
        value = torch.nn.functional.cross_entropy(part["x"] @ weight.t(), part["y"])
        return Loss(value * counted, counted)

    totals, counts = [], []
    for rank in range(2):
        part = part_of({"x": x, "y": labels}, rank, 2)
        own, total, count = summed(weigh(mean(part.batch), part.batch), part)
        totals.append(total)
        counts.append(count)
        own.backward()
    assert [1.0, 0.0] == counts
    assert totals[1] == 0.0
    assert weight.grad is not None
    assert bool(torch.isfinite(weight.grad).all())
