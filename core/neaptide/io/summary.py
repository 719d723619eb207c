"""The summary of a run. `trainer.fit` returns the summary, and `neaptide run` prints it."""

from __future__ import annotations

from typing import Any

from neaptide.io.units import duration, size
from neaptide.text import brief, called, table

_LINE = ("steps", "val_loss", "final_loss", "jumps", "seconds")


class Summary(dict[str, Any]):
    """The content of summary.json. `str` gives a table, `repr` one line with the main figures."""

    def __repr__(self) -> str:
        return called(self, *(f"{key}={brief(self[key])}" for key in _LINE))

    def __str__(self) -> str:
        return table(self.rows())

    def rows(self) -> list[tuple[str, str]]:
        """Return the label and text of each figure."""
        skipped = f"{self['backward_skipped']:.1%} ({self['jumps']} accepted jumps)"
        rows = [
            ("validation loss", _number(self["val_loss"])),
            ("training loss", f"{_number(self['final_loss'])} (last update)"),
            ("updates", str(self["steps"])),
            ("backward skipped", skipped),
            ("speedup", "not measured"),
            ("time", duration(self["seconds"])),
        ]
        for phase, peak in self["peak_bytes"].items():
            device = f"device {size(peak['device_bytes'])}, " if peak["device_bytes"] else ""
            rows.append((f"peak memory, {phase}", f"{device}host {size(peak['host_bytes'])}"))
        return rows


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"
