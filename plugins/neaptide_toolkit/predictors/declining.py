"""Tells the run why a predictor proposes no update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neaptide import DECLINED

if TYPE_CHECKING:
    from neaptide import Run, Update


def declined(run: Run | None, name: str, reason: str) -> Update | None:
    """Return no update. Store the reason, unless a plugin around the predictor has stored one."""
    if run is not None and run.stash.get(DECLINED) is None:
        run.stash.set(DECLINED, f"{name}: {reason}")
    return None
