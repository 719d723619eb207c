"""What the doctor is told of dtypes, for devices that are here and that are not."""

from __future__ import annotations

import pytest
import torch

from neaptide_plugins.mixed_precision import diagnosis
from neaptide_plugins.mixed_precision.precision import resolve


@pytest.mark.parametrize(
    ("capability", "name", "why"),
    [
        ((7, 5), "fp16", "emulates bf16; fp16 needs a loss scale"),
        ((8, 0), "bf16", "no loss scale is needed"),
        ((12, 1), "bf16", "no loss scale is needed"),
    ],
)
def test_the_recommendation(
    capability: tuple[int, int], name: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    (found,) = diagnosis.findings([torch.device("cuda:1")])
    assert ("ok", "cuda:1") == (found.level, found.what)
    assert f'"auto" is {name}: ' in found.detail
    assert why in found.detail


def test_fp8_is_mentioned_where_there_is_hardware_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    capabilities = [(8, 6), (8, 9), (10, 0)]
    monkeypatch.setattr(
        torch.cuda, "get_device_capability", lambda device: capabilities[device.index]
    )
    devices = [torch.device(name) for name in ("cpu", "cuda:0", "cuda:1", "cuda:2", "xpu")]
    found = list(diagnosis.findings(devices))
    assert ["cuda:1", "cuda:2"] == [each.what for each in found if "fp8" in each.detail]
    assert all('"auto" is bf16' in each.detail for each in found)


def test_the_devices_here_are_named_and_agree_with_training() -> None:
    devices = diagnosis.devices()
    assert (max(1, torch.cuda.device_count())) == len(devices)
    for device, found in zip(devices, diagnosis.findings(devices), strict=True):
        is_half = resolve("auto", device) is torch.float16
        assert is_half == ('"auto" is fp16' in found.detail)
