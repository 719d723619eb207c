"""Laws of rollouts: torch's own cell, steps one by one, categories that no rounding changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import DEVICE

from neaptide_kernels.registry import KERNELS
from neaptide_kernels.registry.agreement import relative_error
from neaptide_kernels.registry.roof import unvalued, work_of
from neaptide_kernels.rssm_rollout import RolloutCall, rssm_rollout
from neaptide_kernels.rssm_rollout.op import ALLOWED, SHAPES, example

pytestmark = pytest.mark.usefixtures("on_device")

CPU = torch.device("cpu")
Shape = tuple[int, int, int, int, int, int]
SMALL: Shape = (2, 1, 3, 6, 2, 4)


def called(shape: Shape, dtype: torch.dtype, seed: int = 0) -> RolloutCall:
    return example(shape, DEVICE, dtype, seed)


def double(call: RolloutCall) -> RolloutCall:
    return RolloutCall(*(each.double() if each.is_floating_point() else each for each in call))


def logits_of(call: RolloutCall, deters: torch.Tensor) -> torch.Tensor:
    found = torch.einsum("mrd,mskd->mskr", call.head, deters) + call.head_bias[:, None, None]
    return found.unflatten(-1, (call.stoch.shape[2], -1))


@settings(max_examples=20, deadline=None)
@given(
    shape=st.tuples(
        st.integers(1, 3), st.integers(1, 3), st.integers(1, 5), st.integers(1, 20),
        st.integers(1, 4), st.integers(1, 6),
    ),
    seed=st.integers(0, 1000),
)  # fmt: skip
def test_a_step_is_torchs_gru_cell_and_the_mode_of_the_prior(shape: Shape, seed: int) -> None:
    call = called(shape, torch.float64, seed)
    deters, stochs = rssm_rollout(*call)
    members, starts, steps, size, groups, categories = shape
    drives = starts * steps
    for member in range(members):
        # The cell's inputs are the categories and the number of the drive, as zeros and a one.
        cell = torch.nn.GRUCell(groups * categories + drives, size, dtype=torch.float64)
        cell = cell.to(DEVICE)
        with torch.no_grad():
            cell.weight_ih.copy_(
                torch.cat([call.mixing[member], call.drive[member].flatten(0, 1)]).T
            )
            cell.bias_ih.zero_()
            cell.weight_hh.copy_(call.recurrent[member])
            cell.bias_hh.copy_(call.recurrent_bias[member])
        deter, stoch = call.deter[member], call.stoch[member]
        for step in range(steps):
            kinds = torch.nn.functional.one_hot(stoch, categories).flatten(1)
            at = torch.arange(starts, device=DEVICE) * steps + step
            drive = torch.nn.functional.one_hot(at, drives)
            deter = cell(torch.cat([kinds, drive], 1).double(), deter).detach()
            torch.testing.assert_close(deters[member, :, step], deter)
            logits = logits_of(call, deters)[member, :, step]
            stoch = stochs[member, :, step]
            assert torch.equal(stoch, logits.argmax(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rollout_goes_on_from_its_last_states_with_the_same_bits(dtype: torch.dtype) -> None:
    call = called((3, 2, 7, 33, 5, 6), dtype)
    whole = rssm_rollout(*call)
    first = rssm_rollout(*call._replace(drive=call.drive[:, :, :3]))
    last = {"deter": first[0][:, :, -1], "stoch": first[1][:, :, -1], "drive": call.drive[:, :, 3:]}
    second = rssm_rollout(*call._replace(**last))
    for all_steps, *parts in zip(whole, first, second, strict=True):
        assert torch.equal(all_steps, torch.cat(parts, 2))


def test_members_do_not_know_each_other() -> None:
    call = called((4, 2, 3, 9, 2, 5), torch.float64)
    together = rssm_rollout(*call)
    for member in range(4):
        alone = rssm_rollout(*(each[member : member + 1] for each in call))
        for all_members, one in zip(together, alone, strict=True):
            torch.testing.assert_close(all_members[member : member + 1], one)


def test_the_first_of_equal_categories_is_chosen() -> None:
    call = called(SMALL, torch.float32)
    equal = call._replace(head=torch.zeros_like(call.head), head_bias=call.head_bias * 0)
    _, stochs = rssm_rollout(*equal)
    assert 0 == int(stochs.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if all(shape[:3])])
def test_rounding_changes_no_category_of_a_sample(shape: Shape, dtype: torch.dtype) -> None:
    call = called(shape, dtype, SHAPES[shape])
    precise = double(call)
    deters, stochs = rssm_rollout(*precise)
    if shape[-1] > 1:
        best, second = logits_of(precise, deters).topk(2, -1).values.unbind(-1)
        assert float((best - second).min()) > 0.04
    found, kinds = rssm_rollout(*call)
    assert torch.equal(stochs, kinds)
    assert relative_error(deters, found) < ALLOWED[dtype]


def test_the_roof_counts_weights_once_and_every_product() -> None:
    spec = KERNELS.ops["rssm_rollout"].spec
    for starts, steps, sample in zip((1, 32), (40, 10), unvalued(spec, CPU), strict=True):
        work = work_of(spec, KERNELS.query(spec.name, sample.arguments), sample.arguments)
        weights = 3 * 4 * (1024 * 768 + 768 * 256 + 768 + 1024 * 256 + 1024)
        states = 3 * starts * ((1 + steps) * (4 * 256 + 8 * 32) + steps * 4 * 768)
        assert weights + states == work.moved
        assert 2 * 3 * starts * steps * (768 + 1024) * 256 == work.products


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"deter": torch.zeros(6)}, r"deter \[members, starts, size\].*got \[6\]"),
        ({"drive": torch.zeros(2, 1, 3, 17)}, r"drive is .* \[2, 1, 3, 17\].*\[2, 1, 3, 18\]"),
        ({"stoch": torch.zeros(2, 1, 2)}, r"stoch is torch.float32.*be torch.int64 \[2, 1, 2\]"),
        ({"head": torch.zeros(2, 8, 5)}, r"head is .*should be torch.float32 \[2, 8, 6\]"),
        ({"head": torch.zeros(2, 7, 6)}, r"head is .*should be torch.float32 \[2, 8, 6\]"),
        ({"head": torch.zeros(())}, r"mixing is .*should be torch.float32 \[2, 2, 18\]"),
        ({"mixing": torch.zeros(2, 8, 18).bfloat16()}, r"mixing is torch.bfloat16"),
        ({"deter": torch.zeros(2, 1, 6).long()}, r"deter is torch.int64.*should be floating"),
        ({"deter": torch.zeros(2, 1, 0)}, r"at least one unit and one group \(got 0 and 2\)"),
    ],
)
def test_what_does_not_go_together_is_one_line(given: dict[str, Any], message: str) -> None:
    call = example(SMALL, CPU, torch.float32)
    with pytest.raises(ValueError, match=message) as caught:
        rssm_rollout(*call._replace(**{name: each.cpu() for name, each in given.items()}))
    assert "\n" not in str(caught.value)


def test_a_category_that_does_not_exist_is_an_error_on_a_cpu() -> None:
    call = example(SMALL, CPU, torch.float32)
    with pytest.raises(RuntimeError, match="out of bounds"):
        rssm_rollout(*call._replace(stoch=call.stoch + 4))
