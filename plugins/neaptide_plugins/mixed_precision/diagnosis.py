"""Findings for `neaptide doctor`: the dtypes of each device, and the recommended dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neaptide import Finding
from neaptide_toolkit.low_precision import FP8_TENSOR_CORES

from .precision import DTYPES, recommend

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def capabilities() -> dict[str, tuple[int, int] | None]:
    """Return the compute capability of each CUDA device, or `{"cpu": None}` if there is none."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found = {f"cuda:{index}": torch.cuda.get_device_capability(index) for index in range(count)}
    return {**found} or {"cpu": None}


def findings(devices: Mapping[str, tuple[int, int] | None]) -> Iterator[Finding]:
    """Yield, for each device: its dtypes, the dtype that `auto` means, and the reason.

    The compute capability of the device determines the dtypes.
    """
    for device, capability in devices.items():
        dtype = recommend(capability)
        name = next(name for name, known in DTYPES.items() if known is dtype)
        if dtype is torch.float16:
            why = "bf16 would be emulated; fp16 needs a loss scale, which the plugin applies"
        elif capability is None:
            why = "every CPU supports it, fast with AMX or AVX512-BF16; no loss scale is needed"
        else:
            why = "it has the range of fp32; no loss scale is needed"
        dtypes = "fp32, bf16, fp16"
        if capability is not None and capability >= FP8_TENSOR_CORES:
            dtypes += ", fp8 (on its tensor cores)"
        yield Finding("ok", device, f'{dtypes}; "auto" is {name}: {why}')
