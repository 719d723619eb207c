"""Tests import both the scripts' modules and the helpers, so a name must stand for one of them."""

from pathlib import Path

TESTS = Path(__file__).parents[1]


def importable(folder: Path) -> set[str]:
    return {
        entry.stem
        for entry in folder.iterdir()
        if entry.suffix == ".py" or (entry.is_dir() and (entry / "__init__.py").exists())
    }


def test_no_module_of_the_scripts_has_the_name_of_a_helper() -> None:
    scripts, helpers = importable(TESTS.parent / "bench"), importable(TESTS / "helpers")

    assert scripts
    assert helpers
    assert not scripts & helpers
