"""Reads the requirements of distributions, and finds the requirements that are not installed."""

from __future__ import annotations

import re
from importlib import metadata

import attrs

from neaptide_toolkit.machine.facts import installed

_REQUIREMENT = re.compile(r"([\w.-]+)\s*(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(?:;\s*(.*))?")
_EXTRA = re.compile(r"""extra\s*==\s*["']([\w.-]+)["']""")


@attrs.frozen
class Requirement:
    """One `Requires-Dist` line of a distribution's metadata."""

    name: str
    versions: str
    """The accepted versions, such as `>=2.11`; empty if any version is accepted."""
    extra: str | None
    """The extra that includes this requirement; None if the requirement does not depend on an
    extra."""
    conditional: bool
    """True if the requirement applies only to some systems or Python versions."""

    @property
    def text(self) -> str:
        """Return the requirement in pip's syntax."""
        return f"{self.name}{self.versions}"

    @property
    def is_missing(self) -> bool:
        """Return whether no version of the distribution is installed."""
        return installed(self.name) is None


def requirements_of(distribution: str) -> list[Requirement]:
    """Return the requirements of `distribution`, or an empty list if it is not installed."""
    try:
        lines = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return []
    return [_parsed(line) for line in lines]


def pinned(distribution: str, part: str) -> Requirement | None:
    """Return the first requirement on a distribution whose name contains `part`, or None."""
    return next((need for need in requirements_of(distribution) if part in need.name), None)


def missing_extras(distribution: str, leaving_out: frozenset[str]) -> dict[str, list[str]]:
    """Return, for each extra, the distributions that it requires and that are not installed."""
    missing: dict[str, list[str]] = {}
    for need in requirements_of(distribution):
        if need.extra and need.extra not in leaving_out and need.is_missing:
            missing.setdefault(need.extra, []).append(need.name)
    return missing


def missing_needs(distribution: str) -> list[str]:
    """Return the unconditional requirements that are not installed, in pip's syntax."""
    return [
        need.text
        for need in requirements_of(distribution)
        if need.extra is None and not need.conditional and need.is_missing
    ]


def is_older(version: str, versions: str) -> bool:
    """Return whether `version` is lower than the minimum in `versions`, such as `>=2.11`."""
    least = re.search(r">=\s*([\d.]+)", versions)
    if least is None:
        return False
    have, need = _numbers(version), _numbers(least[1])
    length = max(len(have), len(need))
    return _padded(have, length) < _padded(need, length)


def _padded(numbers: tuple[int, ...], length: int) -> tuple[int, ...]:
    return numbers + (0,) * (length - len(numbers))


def _numbers(version: str) -> tuple[int, ...]:
    leading = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, leading[0].split("."))) if leading else ()


def _parsed(line: str) -> Requirement:
    match = _REQUIREMENT.match(line)
    if match is None:
        return Requirement(line, "", None, conditional=True)
    name, versions, marker = match[1], match[2].replace(" ", ""), match[3]
    extra = _EXTRA.search(marker or "")
    return Requirement(name, versions, extra[1] if extra else None, conditional=bool(marker))
