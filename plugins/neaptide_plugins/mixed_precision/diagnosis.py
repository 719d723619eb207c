"""What `neaptide doctor` hears of each device: the dtypes it computes in, and the one to take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neaptide import Finding
from neaptide_toolkit.low_precision import FP8_TENSOR_CORES

from .precision import DTYPES, recommend

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def capabilities() -> dict[str, tuple[int, int] | None]:
    """Return the compute capability of each CUDA device; of the CPU, None, where there is none."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found = {f"cuda:{index}": torch.cuda.get_device_capability(index) for index in range(count)}
    return {**found} or {"cpu": None}


def findings(devices: Mapping[str, tuple[int, int] | None]) -> Iterator[Finding]:
    """Say of each device, by compute capability, what `auto` is there, and why."""
    for device, capability in devices.items():
        dtype = recommend(capability)
        name = next(name for name, known in DTYPES.items() if known is dtype)
        if dtype is torch.float16:
            why = "bf16 would be emulated; fp16 needs the loss scale, which is kept"
        elif capability is None:
            why = "any CPU can, one with AMX or AVX512-BF16 fast; the loss needs no scale"
        else:
            why = "it has the range of fp32, and the loss needs no scale"
        dtypes = "fp32, bf16, fp16"
        if capability is not None and capability >= FP8_TENSOR_CORES:
            dtypes += ", fp8 (its tensor cores have it)"
        yield Finding("ok", device, f'{dtypes}; "auto" is {name}: {why}')
