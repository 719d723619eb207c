"""histc of integers, which CUDA has and the CPU does not."""

from __future__ import annotations

import pytest
import simulated_gpu
import torch

WHOLE = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


def by_hand(values: list[int], bins: int, least: int, most: int) -> list[int]:
    counted = [0] * bins
    for value in values:
        if least <= value <= most:
            counted[min((value - least) * bins // (most - least), bins - 1)] += 1
    return counted


@pytest.mark.parametrize("dtype", WHOLE)
@pytest.mark.parametrize(("bins", "least", "most"), [(8, 0, 7), (3, 0, 7), (20, 2, 5), (1, 0, 9)])
def test_whole_numbers_are_counted(dtype: torch.dtype, bins: int, least: int, most: int) -> None:
    values = torch.randint(0, 10, (5, 20), generator=torch.Generator().manual_seed(bins))
    found = torch.histc(values.to("cuda", dtype), bins, least, most)
    assert found.dtype == dtype
    assert found.device.type == "cuda"
    assert found.cpu().tolist() == by_hand(values.flatten().tolist(), bins, least, most)


def test_tokens_of_experts_are_counted_as_by_bincount() -> None:
    experts = torch.randint(0, 8, (512,), generator=torch.Generator().manual_seed(0))
    found = torch.histc(experts.int().cuda(), bins=8, min=0, max=7)
    assert torch.equal(found.cpu().long(), torch.bincount(experts, minlength=8))


def test_without_bounds_they_are_those_of_the_values() -> None:
    values = torch.tensor([3, 5, 9, 9, 4])
    assert torch.histc(values.cuda(), 3).cpu().tolist() == by_hand(values.tolist(), 3, 3, 9)
    assert torch.histc(torch.tensor([4, 4]).cuda(), 4).cpu().tolist() == [0, 0, 2, 0]


def test_floats_get_the_cpus_counts() -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    for given in ((10,), (7, -1.0, 0.5)):
        assert torch.equal(torch.histc(values.cuda(), *given).cpu(), torch.histc(values, *given))


def test_wrong_bounds_are_refused_as_by_cuda() -> None:
    values = torch.arange(4, device="cuda")
    with pytest.raises(RuntimeError, match="max must be larger than min"):
        torch.histc(values, 4, 3, 1)
    with pytest.raises(RuntimeError, match="bins must be > 0"):
        torch.histc(values, 0)


def test_fake_data_have_its_shape() -> None:
    with simulated_gpu.fake_data():
        values = torch.empty(512, dtype=torch.int32, device="cuda")
        found = torch.histc(values, bins=8, min=0, max=7)
        assert (found.shape, found.dtype) == ((8,), torch.int32)
        del values, found
        torch.cuda.empty_cache()
