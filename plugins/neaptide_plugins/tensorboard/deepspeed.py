"""Converts DeepSpeed's `tensorboard` section to settings of this plugin."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neaptide_toolkit.foreign import Source


def convert(source: Source) -> dict[str, Any] | None:
    """Return the settings of the plugin, or None if DeepSpeed writes no events."""
    source.note("tensorboard", "has no effect unless tensorboard.enabled is true")
    if not source.take("tensorboard.enabled", bool):
        return None
    folder = source.take("tensorboard.output_path", str)
    job = source.take("tensorboard.job_name", str)
    if not folder:
        source.note("tensorboard.job_name", "not used: events go to the run directory")
        return {}
    return {"log_dir": str(PurePath(folder, job or ""))}
