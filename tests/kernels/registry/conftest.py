"""A registry of its own for every test, with one small op."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import torch

from neaptide_kernels.registry import Kernels, Op, OpSpec, Sample

_NUMBERS = count()


def doubled(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    return x * factor


def added(x: torch.Tensor, amount: torch.Tensor) -> None:
    x.add_(amount)


def _samples(device: torch.device) -> Iterator[Sample]:
    for elements in (0, 1, 17):
        yield Sample(name=f"{elements}", arguments=(torch.arange(elements, device=device) * 0.5,))


def _in_place_samples(device: torch.device) -> Iterator[Sample]:
    yield Sample(name="3", arguments=(torch.ones(3, device=device), torch.ones(3, device=device)))


@pytest.fixture
def kernels(tmp_path: Path) -> Kernels:
    return Kernels(tmp_path / "kernels.json")


@pytest.fixture
def double(kernels: Kernels) -> Op:
    """`double(x, factor=2.0)`; torch keeps every op for good, so each test has its own name."""
    return kernels.define(
        OpSpec(
            name=f"neaptide_test::double_{next(_NUMBERS)}",
            summary="x times a factor",
            reference=doubled,
            fake=lambda x, factor=2.0: torch.empty_like(x),
            samples=_samples,
            large=_samples,
        )
    )


@pytest.fixture
def add(kernels: Kernels) -> Op:
    """`add(x, amount)`, in place."""
    return kernels.define(
        OpSpec(
            name=f"neaptide_test::add_{next(_NUMBERS)}",
            summary="x plus an amount, in place",
            reference=added,
            fake=lambda x, amount: None,
            mutates={"x"},
            samples=_in_place_samples,
            large=_in_place_samples,
        )
    )


Raising = Callable[..., torch.Tensor]
