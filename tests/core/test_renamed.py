"""A name that was changed raises one line with the new one, and every new one is there."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import neaptide
from neaptide.renamed import names
from neaptide_toolkit.testing import tiny_task

if TYPE_CHECKING:
    from pathlib import Path

MODULES, ATTRIBUTES = names("modules"), names("attributes")
IN_CLASSES = [old for old in ATTRIBUTES if old.rpartition(".")[0].rpartition(".")[2][0].isupper()]


def found(dotted: str) -> object:
    """Return the module or attribute that a dotted name stands for."""
    module, _, name = dotted.rpartition(".")
    try:
        return importlib.import_module(dotted)
    except ModuleNotFoundError:
        return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("old", MODULES)
def test_an_old_module_names_the_new_one(old: str) -> None:
    with pytest.raises(ImportError) as raised:
        importlib.import_module(old)
    assert f"{old} has another name since 0.1: {MODULES[old]}" == str(raised.value)
    assert found(MODULES[old])


@pytest.mark.parametrize("old", [old for old in ATTRIBUTES if old not in IN_CLASSES])
def test_an_old_name_of_a_module_names_the_new_one(old: str) -> None:
    module, _, name = old.rpartition(".")
    line = f"from {module} import {name}"
    with pytest.raises(ImportError, match="has another name since") as raised:
        exec(line)
    assert 1 == len(str(raised.value).splitlines())
    new = ATTRIBUTES[old].partition(",")[0]
    assert str(raised.value).endswith(ATTRIBUTES[old])
    assert found(new if "." in new else f"{module}.{new}")


def test_old_verbs_of_the_store_and_fields_of_the_run_name_the_new_ones() -> None:
    task = tiny_task()
    with neaptide.HybridTrainer(task.model, task.optimizer) as trainer:
        owners = {"ParameterStore": trainer.store, "Run": trainer.run}
        for old in IN_CLASSES:
            owner, _, name = old.rpartition(".")[0].rpartition(".")[2], "", old.rpartition(".")[2]
            with pytest.raises(AttributeError, match="has another name since"):
                getattr(owners[owner], name)
            assert hasattr(owners[owner], ATTRIBUTES[old].partition(",")[0])
        with pytest.raises(AttributeError, match="has no attribute 'rides'"):
            trainer.store.rides  # noqa: B018 - the access is what is tried


def test_what_never_was_is_missing_as_ever() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("neaptide.never_was")
    with pytest.raises(ImportError, match="'NeverWas'"):
        exec("from neaptide.api.spans import NeverWas")


def test_a_config_that_names_an_old_import_ends_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "old.toml"
    path.write_text(
        'version = 1\nmodel.name = "neaptide.testing.tiny:tiny_task"\n'
        'data.name = "builtin:digits"\ntrain.steps = 1\n'
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "neaptide",
            "run",
            str(path),
            "--set",
            f"run.dir={tmp_path / 'run'}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert 2 == done.returncode, done.stderr
    (line,) = done.stderr.splitlines()
    assert "neaptide.testing has another name since 0.1: neaptide_toolkit.testing" in line
