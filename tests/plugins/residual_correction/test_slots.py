"""Compressed residuals alone: the error bound, the layout, the same bits in RAM and in a file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neaptide.api.spans import Span
from neaptide.errors import RunDirectoryError
from neaptide.io.folder import Folder
from neaptide_plugins.residual_correction.slots import GROUP, DiskSlots, HostSlots, layout

if TYPE_CHECKING:
    from pathlib import Path

SHAPES = ((3, 5), (0, 4), (700,), (), (16, 16))


def span(number: int, shape: tuple[int, ...]) -> Any:
    return Span(name=f"w{number}", shape=shape, dtype=torch.float32, tier="host", trainable=True)


SPANS = [span(*each) for each in enumerate(SHAPES)]


def normal(shape: tuple[int, ...], seed: int, size: float = 1.0) -> torch.Tensor:
    generator = torch.Generator(device="cpu").manual_seed(seed)
    return size * torch.randn(shape, generator=generator, device="cpu")


@given(st.integers(0, 999), st.floats(1e-12, 1e6))
def test_the_error_is_at_most_half_a_scale_of_the_group(seed: int, size: float) -> None:
    parts, whole = layout(SPANS)
    slots = HostSlots(parts, whole, 2)
    for each in SPANS:
        slots.write(1, each.name, normal(each.shape, seed, size))
    for each in SPANS:
        given_, found = normal(each.shape, seed, size), slots.read(1, each.name)
        assert found.shape == given_.shape
        flat, error = given_.reshape(-1), (found - given_).abs().reshape(-1)
        for group, wrong in zip(flat.split(GROUP), error.split(GROUP), strict=True):
            if len(group):
                bound = float(group.abs().max()) / 127 / 2
                assert float(wrong.max()) <= bound * (1 + 1e-5)
    assert not slots.held[0].any()


def test_a_residual_takes_a_byte_and_a_64th_an_element() -> None:
    _, whole = layout([span(0, (1024, 1024))])
    assert 1024 * 1024 * (1 + 4 / GROUP) == whole


def test_a_file_holds_the_same_bits(tmp_path: Path) -> None:
    parts, whole = layout(SPANS)
    host, disk = HostSlots(parts, whole, 3), DiskSlots(parts, whole, Folder(tmp_path))
    for slot in (2, 0):
        for each in SPANS:
            for slots in (host, disk):
                slots.write(slot, each.name, normal(each.shape, slot))
    for slot in (0, 2):
        assert torch.equal(host.get(slot, 0, whole), disk.get(slot, 0, whole))
        for each in SPANS:
            assert torch.equal(host.read(slot, each.name), disk.read(slot, each.name))
    os.truncate(tmp_path / "residuals", whole)
    with pytest.raises(RunDirectoryError, match="is shorter than it was written"):
        disk.read(2, "w2")
    disk.close()
