"""Reading what is installed: real distributions, sound ones and broken ones."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from support import environment

if TYPE_CHECKING:
    from pathlib import Path

SOUND = """
from neaptide.plugin import Plugin, PluginSpec, hookimpl
SPEC = PluginSpec(name={name!r}, load="{module}:Thing", summary="sound", schemes={schemes!r})
class Thing(Plugin):
    @hookimpl
    def after_step(self):
        pass
"""


def distribution(
    site: Path, name: str, source: str, *, plugin: str | None = None, target: str = "SPEC"
) -> None:
    """Install a distribution `name` that ships one module and one entry point into `site`."""
    module = name.replace("-", "_")
    (site / f"{module}.py").write_text(source.replace("{module}", module), encoding="utf-8")
    information = site / f"{module}-1.2.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n", encoding="utf-8"
    )
    (information / "entry_points.txt").write_text(
        f"[neaptide.plugins]\n{plugin or name} = {module}:{target}\n", encoding="utf-8"
    )


def sound(name: str, schemes: tuple[str, ...] = ()) -> str:
    """Return the source of a plugin that works."""
    return SOUND.replace("{name!r}", repr(name)).replace("{schemes!r}", repr(set(schemes) or ()))


def python(site: Path, code: str, **more: str) -> Any:
    """Run `code` with `site` on the path; return what it prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", f"import json\n{code}"],
        env=environment(site, **more),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


PROBLEMS = """
from neaptide.hooks.registry import installed_plugins
found = installed_plugins().installed
print(json.dumps({name: found[name].problem for name in found if name.startswith("x-")}))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a site with every kind of broken plugin beside a sound one."""
    folder = tmp_path_factory.mktemp("site")
    distribution(folder, "x-sound", sound("x-sound"))
    distribution(folder, "x-import", "import no_such_module_anywhere")
    distribution(folder, "x-raises", "raise OSError('out of paper')")
    distribution(folder, "x-exits", "raise SystemExit(3)")
    distribution(folder, "x-syntax", "def (:")
    distribution(folder, "x-no-spec", "SPEC = {'name': 'x-no-spec'}")
    distribution(folder, "x-missing", "OTHER = 1")
    distribution(folder, "x-renamed", sound("something-else"))
    distribution(folder, "x-no-class", sound("x-no-class").replace("class Thing", "class Thong"))
    inexact = sound("x-inexact").replace("summary=", "numerics='approx', summary=")
    distribution(folder, "x-inexact", inexact)
    distribution(folder, "x-Named", sound("x-Named"))
    distribution(folder, "x-one", sound("x-twice"), plugin="x-twice")
    distribution(folder, "x-two", sound("x-twice"), plugin="x-twice")
    return folder


def test_each_broken_manifest_has_its_reason(site: Path) -> None:
    assert {
        "x-sound": None,
        "x-no-class": None,
        "x-import": "importing 'x_import:SPEC' raised ModuleNotFoundError: No module named "
        "'no_such_module_anywhere'",
        "x-raises": "importing 'x_raises:SPEC' raised OSError: out of paper",
        "x-exits": "importing 'x_exits:SPEC' raised SystemExit: 3",
        "x-syntax": "importing 'x_syntax:SPEC' raised SyntaxError: invalid syntax "
        "(x_syntax.py, line 1)",
        "x-no-spec": "'x_no_spec:SPEC' must be a PluginSpec (got dict)",
        "x-missing": "importing 'x_missing:SPEC' raised AttributeError: module 'x_missing' has no "
        "attribute 'SPEC'",
        "x-renamed": "its PluginSpec is named 'something-else' but the entry point 'x-renamed'",
        "x-inexact": "importing 'x_inexact:SPEC' raised PluginError: numerics must be one of "
        "exact, tolerance, changes-training (got 'approx')",
        "x-Named": "importing 'x_Named:SPEC' raised PluginError: name must be small letters, "
        "digits and hyphens (got 'x-Named')",
        "x-twice": "x-one 1.2 and x-two 1.2 both ship a plugin of this name; uninstall one",
    } == python(site, PROBLEMS)


TRAIN = """
import torch
from torch import nn
from neaptide import HybridTrainer
from neaptide.errors import NeaptideError
model = nn.Linear(2, 1)
def attempt(*plugins):
    try:
        with HybridTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1),
                loss_fn=lambda model, batch: model(batch).mean(), plugins=plugins) as trainer:
            trainer.step(torch.ones(3, 2))
            return list(trainer.hooks.plugins)
    except NeaptideError as error:
        return f"{type(error).__name__}: {error}"
"""


def test_a_broken_plugin_hurts_only_who_enables_it(site: Path) -> None:
    names = ["x-sound", "x-import", "x-twice", "x-no-class", "x-soud"]
    found = python(site, f"{TRAIN}\nprint(json.dumps([attempt(name) for name in {names!r}]))")
    assert ["x-sound"] == found[0]
    assert found[1].startswith("PluginError: plugin 'x-import' from x-import 1.2 cannot be used: ")
    assert found[2].startswith("PluginError: plugin 'x-twice' from ")
    assert (
        "PluginError: plugin 'x-no-class': 'x_no_class:Thing' raised AttributeError: module "
        "'x_no_class' has no attribute 'Thing'"
    ) == found[3]
    assert "plugin 'x-soud' is not installed" in found[4]
    assert "did you mean 'x-sound'?" in found[4]


def test_the_environment_blocks_plugins(site: Path) -> None:
    code = f"{TRAIN}\nprint(json.dumps(attempt('x-sound', 'ema')))"
    assert ["ema"] == python(site, code, NEAPTIDE_DISABLED_PLUGINS=" x-sound, other ")


def test_reading_manifests_does_not_import_torch(site: Path) -> None:
    code = (
        "import sys\nfrom neaptide.hooks.registry import installed_plugins\n"
        "len(installed_plugins())\nprint(json.dumps('torch' in sys.modules))"
    )
    assert python(site, code) is False


def test_a_scheme_has_one_builder(tmp_path: Path) -> None:
    distribution(tmp_path, "x-a", sound("x-a", ("model:zoo", "model:ark")))
    distribution(tmp_path, "x-b", sound("x-b", ("model:zoo",)))
    code = """
from neaptide.errors import PluginError
from neaptide.hooks.registry import installed_plugins
def ask(scheme):
    try:
        return installed_plugins().for_scheme(scheme, "model.name").name
    except PluginError as error:
        return str(error)
print(json.dumps([ask("model:ark"), ask("model:zoo"), ask("model:arc")]))
"""
    ark, zoo, arc = python(tmp_path, code)
    assert "x-a" == ark
    assert "'x-a' and 'x-b' both build 'zoo'; disable one of them @ model.name" == zoo
    assert arc.startswith("no installed plugin builds 'arc:' (did you mean 'ark'?); there is ark, ")
