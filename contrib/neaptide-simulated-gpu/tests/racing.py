"""How a test commits a race."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from simulated_gpu import RaceError, detect_races

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def raced(pattern: str) -> Iterator[pytest.ExceptionInfo[RaceError]]:
    """Expect a race that is told with this text."""
    with pytest.raises(RaceError, match=pattern) as told, detect_races():
        yield told
