"""An op whose arguments are written once, as a NamedTuple."""

from collections.abc import Sequence
from inspect import signature
from typing import NamedTuple

import pytest
import torch

from neaptide_kernels.registry import Kernels, OpSpec, Provider, Sample, takes


class Added(NamedTuple):
    tensors: Sequence[torch.Tensor]
    amount: float
    times: int = 2


@takes(Added)
def added(call: Added) -> None:
    for tensor in call.tensors:
        tensor.add_(call.amount * call.times)


@takes(Added)
def refuse_negative(call: Added) -> None:
    if call.amount < 0:
        msg = f"amount is at least 0 (got {call.amount})"
        raise ValueError(msg)


@takes(Added)
def run(call: Added, *, rounds: int = 1) -> None:
    for _ in range(rounds):
        added(call.tensors, call.amount / rounds, call.times)


def samples(device: torch.device) -> list[Sample]:
    return [Sample(name="two", arguments=([torch.ones(2, device=device)], 0.5))]


def test_reference_check_and_provider_take_them_by_position(kernels: Kernels) -> None:
    op = kernels.define(
        OpSpec(
            name="taking::added",
            summary="tensors plus a product",
            reference=added,
            fake=lambda *_: None,
            samples=samples,
            large=samples,
            mutates={"tensors"},
            check=refuse_negative,
        )
    )
    configs = [{"rounds": 4}]
    kernels.add(
        Provider(op=op.spec.name, name="slow", run=run, priority=1, configs=lambda _: configs)
    )
    x = torch.zeros(2)

    assert "(Tensor(a0!)[] tensors, float amount, SymInt times=2) -> ()" == op.spec.schema()
    assert "slow" == kernels.explain(op.spec.name, ([x], 1.5)).chosen
    op([x], 1.5)
    op([x], amount=0.5, times=4)
    assert torch.equal(torch.full((2,), 5.0), x)
    with pytest.raises(ValueError, match="amount is at least 0"):
        op([x], -1.0)
    with pytest.raises(TypeError, match="amount"):
        op.spec.reference([x])


def test_settings_of_a_provider_stay_in_its_signature() -> None:
    assert ["tensors", "amount", "times", "rounds"] == [*signature(run).parameters]
