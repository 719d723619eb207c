"""Copies a first-party plugin's folder out, makes it a stranger's distribution and checks it.

    python tests/template/check_template.py ema

In a new virtual environment that sees this one's packages: the copy gets another name, its own
pyproject, is installed with pip, and has to be listed and to keep the contract.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PYPROJECT = """\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "strangers-{name}"
version = "0.1.0"
dependencies = ["neaptide"]

[project.entry-points."neaptide.plugins"]
strangers-{name} = "strangers_{module}:SPEC"

[tool.hatch.build.targets.wheel]
packages = ["strangers_{module}"]
"""


def main(name: str) -> int:
    """Return 0 when the copied plugin works on its own."""
    module = name.replace("-", "_")
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        package = project / f"strangers_{module}"
        source = ROOT / "plugins" / "neaptide_plugins" / module
        shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
        rename(package, name, module)
        (project / "pyproject.toml").write_text(PYPROJECT.format(name=name, module=module))
        python = environment(Path(folder) / "venv")
        run(python, "-m", "pip", "install", "--quiet", "--no-deps", str(project))
        run(python, "-m", "neaptide", "plugins", "show", f"strangers-{name}")
        check = (
            f"from neaptide_toolkit.testing import check_plugin; check_plugin('strangers-{name}')"
        )
        run(python, "-c", check)
    sys.stdout.write(f"strangers-{name}: installed, listed, keeps the contract\n")
    return 0


def rename(package: Path, name: str, module: str) -> None:
    """Give the copy its own plugin name; imports inside the folder are relative already."""
    for path in package.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        text = text.replace(f'"{name}"', f'"strangers-{name}"')
        text = text.replace(f"neaptide_plugins.{module}", f"strangers_{module}")
        path.write_text(text, encoding="utf-8")


def environment(path: Path) -> str:
    """Make a virtual environment that sees the packages of this one; return its Python."""
    venv.create(path, with_pip=True)
    site = next(path.glob("lib/python*/site-packages"))
    here = [entry for entry in sys.path if entry.endswith("site-packages")]
    (site / "neaptide-under-test.pth").write_text("\n".join(here) + "\n", encoding="utf-8")
    return str(path / "bin" / "python")


def run(*command: str) -> None:
    """Run a command and fail with it."""
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
