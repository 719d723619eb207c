"""The kernel registry is whichever one is installed; only plugins that bring kernels ask for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import warm
from distributions import install
from support import environment

if TYPE_CHECKING:
    from pathlib import Path

REGISTRY = """
class Scope:
    ops = {}
    def close(self):
        print("closed")

def open_scope():
    print("opened")
    return Scope()
"""
RUN = """
from neaptide import hookimpl
from neaptide.errors import NeaptideError
from support import plugin_with, stranger, tiny_trainer

def register_kernels(self, kernels):
    print("given", type(kernels).__name__)

plugin = stranger(plugin_with(register_kernels=hookimpl(register_kernels)))
for plugins in ((), (plugin,)):
    try:
        trainer, batches = tiny_trainer(plugins=plugins)
        with trainer:
            trainer.step(batches[0])
        print("stepped")
    except NeaptideError as error:
        print(f"{type(error).__name__}: {error}")
"""
WITHOUT = """
from importlib import metadata
real = metadata.Distribution.entry_points.fget
metadata.Distribution.entry_points = property(lambda self: metadata.EntryPoints(
    entry for entry in real(self) if (entry.group, entry.name) != ("neaptide.kernels", "registry")
))
"""


def lines(site: Path, code: str = "") -> list[str]:
    """Return what a run without kernels and one with them print."""
    done = warm.run(["-c", code + RUN], env=environment(site))
    assert 0 == done.returncode, done.stderr
    return done.stdout.splitlines()


def test_without_a_registry_only_plugins_with_kernels_are_refused(tmp_path: Path) -> None:
    """The entry point that ships is taken out of what the process finds installed."""
    problem = "exactly one distribution must have an entry point of 'neaptide.kernels' (got none)"
    assert ["stepped", f"PluginError: {problem}"] == lines(tmp_path, WITHOUT)


def test_a_strangers_registry_serves(tmp_path: Path) -> None:
    install(
        tmp_path,
        "x-ops",
        {"neaptide.kernels": {"mine": "x_ops:open_scope"}},
        {"x_ops.py": REGISTRY},
    )
    assert ["stepped", "opened", "given Scope", "closed", "stepped"] == lines(tmp_path, WITHOUT)


@pytest.mark.parametrize("name", ["mine", "registry"])
def test_of_two_registries_none_is_taken(tmp_path: Path, name: str) -> None:
    install(tmp_path, "x-ops", {"neaptide.kernels": {name: "x_ops:open_scope"}})
    without, refused = lines(tmp_path)
    assert "stepped" == without
    assert refused.startswith("PluginError: ")
    assert "x-ops 1.0" in refused
    assert "neaptide 0" in refused


def test_a_registry_that_cannot_be_imported_is_one_line(tmp_path: Path) -> None:
    install(tmp_path, "x-ops", {"neaptide.kernels": {"mine": "x_nowhere:open_scope"}})
    problem = "importing 'x_nowhere:open_scope' raised ModuleNotFoundError: No module named"
    without, refused = lines(tmp_path, WITHOUT)
    assert "stepped" == without
    assert refused.startswith(f"PluginError: {problem}")
