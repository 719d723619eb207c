"""What the doctor is told of dtypes, for devices that are here and that are not."""

from __future__ import annotations

import pytest
import torch

from neaptide_plugins.mixed_precision import diagnosis
from neaptide_plugins.mixed_precision.precision import resolve


@pytest.mark.parametrize(
    ("capability", "name", "why"),
    [
        (None, "bf16", "no loss scale is needed"),
        ((7, 5), "fp16", "bf16 would be emulated"),
        ((8, 0), "bf16", "no loss scale is needed"),
        ((12, 1), "bf16", "no loss scale is needed"),
    ],
)
def test_the_recommendation(capability: tuple[int, int] | None, name: str, why: str) -> None:
    (found,) = diagnosis.findings({"cuda:1": capability})
    assert ("ok", "cuda:1") == (found.level, found.what)
    assert f'"auto" is {name}: ' in found.detail
    assert why in found.detail


def test_fp8_is_mentioned_where_there_is_hardware_for_it() -> None:
    devices = {"cpu": None, "cuda:0": (8, 6), "cuda:1": (8, 9), "cuda:2": (10, 0)}
    found = list(diagnosis.findings(devices))
    assert ["cuda:1", "cuda:2"] == [each.what for each in found if "fp8" in each.detail]
    assert all('"auto" is bf16' in each.detail for each in found)


def test_the_devices_here_are_named_and_agree_with_training() -> None:
    devices = diagnosis.capabilities()
    assert (max(1, torch.cuda.device_count())) == len(devices)
    for device, found in zip(devices, diagnosis.findings(devices), strict=True):
        is_half = resolve("auto", torch.device(device)) is torch.float16
        assert is_half == ('"auto" is fp16' in found.detail)
