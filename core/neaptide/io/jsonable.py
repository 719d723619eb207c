"""Converts any value to plain JSON values."""

from __future__ import annotations

import math
from typing import Any


def jsonable(value: Any) -> Any:
    """Return `value` in JSON's types. Non-finite floats and unknown objects become strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)
