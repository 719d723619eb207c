"""The value that a choice is: what a plan takes where a configuration says `"auto"`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping


@attrs.frozen(kw_only=True)
class Tried:
    """A choice that was not taken.

    Attributes:
        settings: as tables.
        why: what it lacks, in one line.
        can_run: False if it is no question of memory.
    """

    settings: Mapping[str, Any]
    why: str
    can_run: bool


@attrs.frozen(kw_only=True)
class Choice:
    """What a plan chose where the configuration says `"auto"`.

    Attributes:
        settings: as tables.
        tried: other choices, in order.
    """

    settings: Mapping[str, Any]
    tried: tuple[Tried, ...] = ()
