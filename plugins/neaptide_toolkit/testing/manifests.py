"""The laws (rules) for a plugin's manifest and settings. Their check needs no run."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import attrs

from neaptide import config as configs
from neaptide.hooks.enabling import configured
from neaptide.hooks.registry import installed_plugins

from .failures import require

if TYPE_CHECKING:
    from .subject import Subject

_WITH_TORCH = 79
"""An exit code that Python itself does not use."""


def manifest_is_light(subject: Subject) -> None:
    """The manifest has a summary and can be imported without torch."""
    spec, attempt = subject.spec, subject.attempt
    attempt.tries("read its manifest")
    require(
        bool(spec.summary), "it has no summary", "describe it in one line: PluginSpec(summary=…)"
    )
    found = installed_plugins().installed.get(spec.name)
    if found is None:
        return
    module = found.target.partition(":")[0]
    attempt.tries(f"import {module} in a new Python process")
    code = f"import sys, {module}; sys.exit({_WITH_TORCH} if 'torch' in sys.modules else 0)"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)  # noqa: S603 - our own interpreter
    require(
        done.returncode != _WITH_TORCH,
        "the import loads torch",
        f"import nothing in {module} that imports torch; let `load` name the class as "
        f"'package.module:Class', which is imported later",
    )
    last = "".join(done.stderr.splitlines()[-1:])
    require(
        done.returncode == 0,
        f"exit code {done.returncode}: {last}",
        f"make {module} importable alone, before any other module of Neaptide",
    )


def config_round_trips(subject: Subject) -> None:
    """The plugin's settings are equal after writing and reading, in every file format.

    Each setting has a default and a help text.
    """
    attempt, spec = subject.attempt, subject.spec
    form = "let `config` be an attrs.frozen(kw_only=True) class whose fields have defaults"
    attempt.tries(f"build its settings from {dict(subject.settings)}", form)
    full, _ = configured(subject.config(), subject.plugins())
    table = configs.unstructure(full)
    for name, notation in configs.all_formats().items():
        attempt.tries(f"write its settings as {name} and read them again", form)
        again, _ = configured(notation.loads(notation.dumps(table)), subject.plugins())
        require(
            again == full,
            f"{again.plugins[spec.name]} instead of {full.plugins[spec.name]}",
            "use types that a file can hold: bool, int, float, str, lists, tables, None",
        )
    attempt.tries("inspect each of its settings", form)
    for field in attrs.fields(spec.config):
        require(
            field.default is not attrs.NOTHING,
            f"setting {field.name!r} has no default",
            f"give {field.name!r} a default: a user may write an empty table",
        )
        require(
            "help" in field.metadata,
            f"setting {field.name!r} has no help",
            f'declare it as {field.name} = neaptide.field(default, help="…")',
        )
