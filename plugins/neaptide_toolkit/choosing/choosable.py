"""What a plan chooses, and what plugins offer for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@runtime_checkable
class Choosable(Protocol):
    """The settings of a plugin some of which a plan chooses."""

    def choices(self) -> Sequence[Mapping[str, Any]]:
        """Return settings in the place of all `"auto"`; none if nothing is to be chosen.

        A plan takes the first with which the configuration fits. The same settings must give the
        same choices, and none of these may leave something to be chosen.
        """

    def filled(self) -> str | None:
        """Return the name of a setting that a plan raises from 0 on as far as the device allows it.

        None: there is none.
        """


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
class PlanChoice:
    """What a plan chose where the configuration says `"auto"`.

    Attributes:
        settings: as tables.
        tried: other choices, in order.
    """

    settings: Mapping[str, Any]
    tried: tuple[Tried, ...] = ()
