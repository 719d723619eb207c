"""Reading what distributions ask for."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest

from neaptide_verbs.doctor import requirements
from neaptide_verbs.doctor.requirements import Requirement

if TYPE_CHECKING:
    from pathlib import Path

LINES = [
    "numpy>=1.26",
    "absent-a (>=2,<3)",
    "absent-b[more] == 1.0 ; python_version < '4'",
    "absent-c~=1.2; extra == 'more'",
    'triton==3.7.1; platform_system == "Linux"',
    "pytest; extra == 'more'",
    "absent-d; extra == 'test'",
]


@pytest.fixture(autouse=True)
def asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the distribution `asking`, which needs what LINES say."""
    info = tmp_path / "asking-1.0.dist-info"
    info.mkdir()
    needs = "".join(f"Requires-Dist: {line}\n" for line in LINES)
    text = f"Metadata-Version: 2.1\nName: asking\nVersion: 1.0\n{needs}"
    (info / "METADATA").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


def test_every_line_is_read() -> None:
    assert [
        Requirement("numpy", ">=1.26", None, conditional=False),
        Requirement("absent-a", ">=2,<3", None, conditional=False),
        Requirement("absent-b", "==1.0", None, conditional=True),
        Requirement("absent-c", "~=1.2", "more", conditional=True),
        Requirement("triton", "==3.7.1", None, conditional=True),
        Requirement("pytest", "", "more", conditional=True),
        Requirement("absent-d", "", "test", conditional=True),
    ] == requirements.requirements_of("asking")


def test_what_is_missing_is_named_as_pip_takes_it() -> None:
    assert ["absent-a>=2,<3"] == requirements.missing_needs("asking")
    assert {"more": ["absent-c"]} == requirements.missing_extras("asking", frozenset({"test"}))


def test_a_pin_is_found_by_part_of_a_name() -> None:
    pin = requirements.pinned("asking", "triton")
    assert ("triton==3.7.1", None) == (pin and pin.text, requirements.pinned("asking", "torch"))


def test_who_is_not_installed_asks_for_nothing() -> None:
    assert ([], []) == (
        requirements.requirements_of("nobody"),
        requirements.missing_needs("nobody"),
    )


@pytest.mark.parametrize(
    ("found", "versions", "older"),
    [
        ("2.13.0+cpu", ">=2.11", False),
        ("2.9.1", ">=2.11", True),
        ("2.11", ">=2.11", False),
        ("2.11", ">=2.11.0", False),
        ("2.11", ">=2.11.1", True),
        ("2", ">=2.0.0", False),
        ("3.0", ">=2.11", False),
        ("2.11.0a0", ">=2.11", False),
        ("1.0", "", False),
    ],
)
def test_versions_compare_by_number(found: str, versions: str, *, older: bool) -> None:
    assert older == requirements.is_older(found, versions)


def test_the_installed_torch_is_new_enough() -> None:
    needed = requirements.pinned("neaptide", "torch")
    assert needed is not None
    assert not requirements.is_older(version("torch"), needed.versions)
