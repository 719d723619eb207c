"""AdamW over split masters on a CPU by Numba, beside the reference, to the bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neaptide_kernels.adamw_split import adamw_split_step, forms
from neaptide_kernels.adamw_split.op import scalars, values
from neaptide_kernels.adamw_split.split_master import join, split
from neaptide_kernels.registry import KERNELS

pytest.importorskip("numba")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TAKEN = [torch.bfloat16, torch.float32]
OPTIONS = (0.9, 0.999, 1e-8, 1e-2)
ODD = [torch.nan, torch.inf, -torch.inf, -0.0, 0.0, 1e-40, -1e-45, 3.4e38, -3.4e38, 2.0**-126, 1.0]
CPU = torch.device("cpu")


KNOWN = [way for way in (False, True) if forms.form(fused=way) is not None]
either_form = pytest.mark.parametrize("fused", KNOWN, ids=lambda way: "fused" if way else "eager")


def stepped(provider: str, tensors: Sequence[list[torch.Tensor]], *options: Any) -> None:
    with KERNELS.using(adamw_split_step=provider):
        adamw_split_step(*tensors, *options)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().reshape(-1)
    return flat.view({2: torch.int16, 4: torch.int32}[flat.element_size()])


def same(expected: Sequence[list[torch.Tensor]], got: Sequence[list[torch.Tensor]]) -> bool:
    """Compare bits; gradients are compared, too, because they must not change."""
    pairs = [
        pair for one, other in zip(expected, got, strict=True)
        for pair in zip(one, other, strict=True)
    ]  # fmt: skip
    return all(torch.equal(bits(right), bits(found)) for right, found in pairs)


def after(offset: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Copy to memory that starts at an element which is not aligned."""

    def place(tensor: torch.Tensor) -> torch.Tensor:
        memory = torch.empty(offset + tensor.numel(), dtype=tensor.dtype)[offset:]
        return memory.view(tensor.shape).copy_(tensor)

    return place


def gapped(tensor: torch.Tensor) -> torch.Tensor:
    memory = torch.zeros(*tensor.shape, 2, dtype=tensor.dtype)
    return memory[..., 0].copy_(tensor)


def both(
    make: Callable[[], Sequence[list[torch.Tensor]]], *options: Any
) -> Iterator[Sequence[list[torch.Tensor]]]:
    for provider in ("reference", "numba"):
        tensors = make()
        stepped(provider, tensors, *options)
        yield tensors


@either_form
@pytest.mark.parametrize("dtype", TAKEN, ids=str)
@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(
        st.integers(0, 70) | st.sampled_from([1023, 1024, 1025, 2047, 5000]), min_size=1, max_size=4
    ),
    offset=st.integers(0, 9),
    betas=st.tuples(st.floats(0, 0.999), st.floats(0, 0.9999)),
    eps=st.floats(1e-12, 1),
    decay=st.sampled_from([0.0, 1e-3, 0.5]),
    lr=st.floats(0, 1),
    step=st.integers(1, 100_000),
    tensor_lr=st.booleans(),
    maximize=st.booleans(),
)
def test_a_step_has_the_bits_of_the_reference(
    dtype: torch.dtype,
    sizes: list[int],
    offset: int,
    betas: tuple[float, float],
    eps: float,
    decay: float,
    lr: float,
    step: int,
    *,
    tensor_lr: bool,
    maximize: bool,
    fused: bool,
) -> None:
    rate, count = scalars(lr, step, CPU)
    options = (rate.float() if tensor_lr else rate, count, *betas, eps, decay, maximize, fused)
    place = after(offset)

    def make() -> list[list[torch.Tensor]]:
        return [list(map(place, each)) for each in values([(n,) for n in sizes], dtype, CPU)]

    assert same(*both(make, *options))


@either_form
@pytest.mark.parametrize("dtype", TAKEN, ids=str)
@pytest.mark.parametrize("laid_out", ["all turned", "gradients turned", "moments with gaps"])
def test_any_layout_has_the_bits_of_the_reference(
    dtype: torch.dtype, laid_out: str, *, fused: bool
) -> None:
    def make() -> list[list[torch.Tensor]]:
        hi, lo, mean, square, grads = values([(33, 70), (70, 33)], dtype, CPU)
        if laid_out == "all turned":
            return [[each.t() for each in one] for one in (hi, lo, mean, square, grads)]
        if laid_out == "gradients turned":
            return [hi, lo, mean, square, [each.t() for each in reversed(grads)]]
        return [hi, lo, list(map(gapped, mean)), list(map(gapped, square)), grads]

    assert same(*both(make, *scalars(1e-3, 3, CPU), *OPTIONS, False, fused))


@either_form
@pytest.mark.parametrize("dtype", TAKEN, ids=str)
def test_the_number_of_threads_changes_no_bit(dtype: torch.dtype, *, fused: bool) -> None:
    def make() -> tuple[list[torch.Tensor], ...]:
        return values([(7,), (600_003,)], dtype, CPU)

    options = (*scalars(1e-3, 3, CPU), *OPTIONS, False, fused)
    before, found = torch.get_num_threads(), []
    made = [make() for _ in range(4)]  # torch's powers in `values` depend on the threads
    stepped("reference", made[0], *options)
    try:
        for threads, tensors in zip((1, 2, 3), made[1:], strict=True):
            torch.set_num_threads(threads)
            stepped("numba", tensors, *options)
            found.append(tensors)
    finally:
        torch.set_num_threads(before)
    assert all(same(made[0], tensors) for tensors in found)


@either_form
@pytest.mark.parametrize("dtype", TAKEN, ids=str)
@pytest.mark.parametrize("maximize", [False, True])
def test_inf_nan_and_denormals_are_as_in_the_reference(
    dtype: torch.dtype, *, maximize: bool, fused: bool
) -> None:
    odd = torch.tensor(ODD)

    def make() -> list[list[torch.Tensor]]:
        mean, square, gradient, master = (
            one.flatten() for one in torch.meshgrid(odd, odd.abs(), odd, odd, indexing="ij")
        )
        hi, lo = split(master.contiguous())
        state = [mean.clone()], [square.clone()]
        return [[hi], [lo], *state, [gradient.to(dtype)]]

    options = (*scalars(0.1, 2, CPU), *OPTIONS, maximize, fused)
    expected, got = (
        [join(*(each[0] for each in one[:2])), one[2][0], one[3][0]] for one in both(make, *options)
    )
    for right, found in zip(expected, got, strict=True):
        assert torch.equal(right.isnan(), found.isnan())
        assert bool(((bits(right) == bits(found)) | right.isnan()).all())


@either_form
@pytest.mark.parametrize("dtype", [*TAKEN, torch.float16, torch.float64], ids=str)
def test_it_runs_what_it_takes_without_being_asked_for(dtype: torch.dtype, *, fused: bool) -> None:
    tensors = values([(3,)], dtype, CPU)
    arguments = (*tensors, *scalars(1e-3, 1, CPU), *OPTIONS, False, fused)
    told = KERNELS.explain("adamw_split_step", arguments)
    assert told.chosen == ("numba" if dtype in TAKEN else "reference")


@either_form
def test_gradients_of_several_dtypes_are_taken_each_as_it_is(*, fused: bool) -> None:
    def make() -> list[list[torch.Tensor]]:
        *state, grads = values([(300,)] * 3, torch.float32, CPU)
        kinds = (torch.float32, torch.bfloat16, torch.float16)
        return [*state, [one.to(kind) for one, kind in zip(grads, kinds, strict=True)]]

    assert same(*both(make, *scalars(1e-3, 1, CPU), *OPTIONS, False, fused))


@either_form
def test_where_torch_rounds_otherwise_the_reference_runs(
    monkeypatch: pytest.MonkeyPatch, *, fused: bool
) -> None:
    monkeypatch.setattr(forms, "_fused", lambda factor, other, term: factor * other + term)
    forms.form.cache_clear()
    try:
        tensors = values([(3,)], torch.float32, CPU)
        arguments = (*tensors, *scalars(1e-3, 1, CPU), *OPTIONS, False, fused)
        told = KERNELS.explain("adamw_split_step", arguments)
    finally:
        forms.form.cache_clear()
    assert told.chosen == "reference"
    (reason,) = [each.reason for each in told.providers if each.provider == "numba"]
    assert reason == "torch rounds AdamW on this CPU in a way that it does not know"


def test_roots_that_nobody_knows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "_address_of_root", lambda: None)
    monkeypatch.setattr(forms, "_root", lambda numbers: numbers.sqrt().nextafter(numbers))
    forms.form.cache_clear()
    try:
        assert forms.form(fused=False) is None
        monkeypatch.setattr(forms, "_root", torch.sqrt)
        forms.form.cache_clear()
        assert forms.form(fused=False) == forms.Form()
    finally:
        forms.form.cache_clear()
