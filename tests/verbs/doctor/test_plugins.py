"""A plugin that hangs is left behind, and the others are heard."""

from __future__ import annotations

import sys
from threading import Event
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from neaptide import Plugin, PluginSpec, hookimpl
from neaptide.hooks import registry
from neaptide_verbs.doctor import plugins

if TYPE_CHECKING:
    from collections.abc import Iterator

RELEASED = Event()


class Hanging(Plugin[Any]):
    """Waits for something that does not come by itself."""

    @hookimpl
    def diagnose(self) -> list[Any]:
        RELEASED.wait(60)
        return []


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the plugin that hangs, and let go of its thread in the end."""
    RELEASED.clear()
    module = ModuleType("hanging_module")
    module.__dict__["Hanging"] = Hanging
    monkeypatch.setitem(sys.modules, "hanging_module", module)
    spec = PluginSpec(name="hanging", load="hanging_module:Hanging")
    found = registry.Installed("hanging", "guests 2.1", "hanging_module:SPEC", spec)
    ema = registry.installed_plugins().installed["ema"]
    index = registry.Registry({"hanging": found, "ema": ema})
    monkeypatch.setattr(plugins, "installed_plugins", lambda: index)
    yield
    RELEASED.set()


@pytest.mark.usefixtures("hanging")
def test_a_plugin_that_hangs_is_an_error() -> None:
    hanging, ema = plugins.findings(patience=1.0)
    assert ("error", "hanging", "guests 2.1 did not answer within 1 s") == (
        hanging.level,
        hanging.what,
        hanging.detail,
    )
    assert "export NEAPTIDE_DISABLED_PLUGINS=hanging" == hanging.advice
    assert ("ok", "ema") == (ema.level, ema.what)


@pytest.mark.usefixtures("hanging")
def test_where_nothing_can_be_imported_only_manifests_are_read() -> None:
    found = list(plugins.findings(manifests_only=True))
    assert ["note", "note"] == [finding.level for finding in found]
