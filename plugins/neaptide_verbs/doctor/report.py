"""The report of `neaptide doctor`: findings in sections, the facts behind them, and one verdict."""

from __future__ import annotations

from typing import Any

import attrs

from neaptide.api.records import LEVELS, Finding, Level


@attrs.frozen
class Section:
    """A heading and its findings, in the order of examination."""

    title: str
    findings: tuple[Finding, ...]


@attrs.frozen
class Report:
    """All findings of `neaptide doctor`."""

    sections: tuple[Section, ...]
    facts: dict[str, Any]
    """Numbers and versions behind the findings, as JSON values. Sizes are in bytes."""
    device: str
    """A description of the device on which training would run."""

    def count(self, level: Level) -> int:
        """Return the number of findings of `level`."""
        return sum(found.level == level for part in self.sections for found in part.findings)

    @property
    def exit_code(self) -> int:
        """Return 1 if there is an error, else 0."""
        return int(self.count("error") > 0)

    @property
    def level(self) -> Level:
        """Return the most severe level found; a note counts as `ok`."""
        grave: tuple[Level, ...] = ("error", "warning")
        return next((level for level in grave if self.count(level)), "ok")

    @property
    def verdict(self) -> str:
        """Return the report's last line: whether training can work here, and on which device."""
        errors, warnings = (_counted(self.count(level), level) for level in LEVELS[:1:-1])
        problems = " and ".join(filter(None, (errors, warnings)))
        if errors:
            return f"{problems}: solve the errors first"
        return f"ready to train on {self.device}" + (f", with {problems}" if problems else "")

    def structured(self) -> dict[str, Any]:
        """Return the report as `--json` prints it."""
        return {
            "ok": self.exit_code == 0,
            "verdict": self.verdict,
            "facts": self.facts,
            "findings": [
                {"section": part.title, **attrs.asdict(found)}
                for part in self.sections
                for found in part.findings
            ],
        }


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}" if number else ""
