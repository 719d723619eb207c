"""Every module of torch, with every input that torch's own tests make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sweeps import swept

if TYPE_CHECKING:
    from pathlib import Path

PARTS = 20

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.filterwarnings("ignore"),  # torch warns about some cases
]


@pytest.mark.parametrize("part", range(PARTS))
def test_what_trains_in_plain_torch_is_exact_or_refused(
    part: int, tmp_path: Path, record_property: Any
) -> None:
    from sweep_modules import module_cases

    assert [] == swept(module_cases(), part, PARTS, tmp_path, record_property)
