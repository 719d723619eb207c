"""What every sweep starts from: the installed distributions are looked up once."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

import pytest

import neaptide.plugin


@pytest.fixture(autouse=True)
def _looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save a third of the time: a sweep makes thousands of trainers, each of which looks."""
    monkeypatch.setattr(neaptide.plugin, "entry_points", cache(entry_points))
