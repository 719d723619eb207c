"""Findings for `neaptide doctor`: the dtypes of each device, and the recommended dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from neaptide import Finding
from neaptide.devices import api_of
from neaptide_toolkit.machine.devices import lacks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def devices() -> list[torch.device]:
    """Return the accelerators of this machine, or the CPU if there is none."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None:
        return [torch.device("cpu")]
    return [torch.device(kind.type, index) for index in range(api_of(kind).device_count())]


def findings(examined: Iterable[torch.device]) -> Iterator[Finding]:
    """Yield, for each device: its dtypes, the dtype that `auto` means, and the reason."""
    for device in examined:
        emulated = lacks(device, "bf16")
        if emulated is not None:
            name, why = "fp16", f"{emulated}; fp16 needs a loss scale, which the plugin applies"
        elif device.type == "cpu":
            why = "every CPU supports it, fast with AMX or AVX512-BF16; no loss scale is needed"
            name = "bf16"
        else:
            name, why = "bf16", "it has the range of fp32; no loss scale is needed"
        dtypes = "fp32, bf16, fp16"
        if lacks(device, "fp8") is None:
            dtypes += ", fp8 (on its tensor cores)"
        yield Finding("ok", str(device), f'{dtypes}; "auto" is {name}: {why}')
