"""Samples without values, and the least time of a call."""

import pytest
import torch

from neaptide_kernels import catalogue
from neaptide_kernels.registry import KERNELS, Op
from neaptide_kernels.registry.roof import DeviceSpeed, Roof, Work, roof_of, unvalued, work_of

assert catalogue.triton_providers()
OPS = [pytest.param(op, id=name) for name, op in KERNELS.ops.items()]
CPU = torch.device("cpu")


@pytest.mark.parametrize("op", OPS)
def test_samples_without_values_have_the_facts_of_samples(op: Op) -> None:
    name = op.spec.name
    right, got = next(iter(op.spec.large(CPU))), next(unvalued(op.spec, CPU))
    one, two = (KERNELS.query(name, op.spec.complete(each.arguments)) for each in (right, got))
    assert (one.dtypes, one.bucket) == (two.dtypes, two.bucket)
    assert [facts and facts.shape for _, facts in one.tensors] == [
        facts and facts.shape for _, facts in two.tensors
    ]


@pytest.mark.parametrize("op", OPS)
def test_every_op_moves_bytes(op: Op) -> None:
    for sample in unvalued(op.spec, torch.device("meta")):
        arguments = op.spec.complete(sample.arguments)
        work = work_of(op.spec, KERNELS.query(op.spec.name, arguments), arguments)
        assert work.moved > 0
        # A mask may hide every product of attention.
        assert (
            work.products + work.others > 0
            or op.spec.name == "encode_state"
            or op.spec.least_flops is not None
        )


@pytest.mark.parametrize(
    ("moved", "products", "dtype", "expected"),
    [
        (1000, 0, torch.float32, Roof(seconds=10.5, bound="memory")),
        (0, 4000, torch.float32, Roof(seconds=4.5, bound="arithmetic")),
        (0, 4000, torch.bfloat16, Roof(seconds=1.5, bound="arithmetic")),
        (1, 1, None, Roof(seconds=0.51, bound="launch")),
    ],
)
def test_the_slowest_part_decides(
    moved: int, products: int, dtype: torch.dtype | None, expected: Roof
) -> None:
    work = Work(moved=moved, products=products, others=0, dtype=dtype)
    speed = DeviceSpeed(bandwidth=100.0, half=4000.0, single=1000.0, launch=0.5)
    assert expected == roof_of(work, speed)
