"""The forms in which lora holds frozen weights; nf4 only where bitsandbytes has kernels."""

from __future__ import annotations

import pytest
from support import DEVICE

WITH_KERNELS = pytest.mark.skipif(
    DEVICE.type != "cpu", reason="bitsandbytes has no kernels for the simulated GPU"
)
NF4 = pytest.param("nf4", marks=WITH_KERNELS)
