"""Counts the calls of ops."""

from __future__ import annotations

from typing import Any

import pytest

from neaptide_kernels.registry import KERNELS


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count the calls of each op."""
    counts: dict[str, int] = {}
    run = KERNELS.run

    def counted(op: str, arguments: Any) -> Any:
        counts[op] = counts.get(op, 0) + 1
        return run(op, arguments)

    monkeypatch.setattr(KERNELS, "run", counted)
    return counts
