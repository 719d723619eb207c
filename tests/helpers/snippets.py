"""What it means for a block of a page to be right, for each language a block may have."""

from __future__ import annotations

import logging
import re
import shlex
import sys
import tomllib
from itertools import pairwise
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cyclopts import CycloptsError
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pages import ROOT
from torch.distributed.run import get_args_parser

from neaptide.api.kernels import KERNEL_GROUP
from neaptide.cli import verbs
from neaptide.cli.app import build_app, main
from neaptide.config import by_name, presets
from neaptide.hooks.enabling import configured
from neaptide.plugin import ENTRY_POINT_GROUP
from neaptide_verbs.convert import foreign

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from neaptide import PluginSpec

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ENVIRONMENTS = {
    name.removeprefix("testenv:")
    for name in re.findall(
        r"^\[(testenv:[\w-]+)\]", (ROOT / "tox.ini").read_text("utf-8"), re.MULTILINE
    )
} | {"py311", "py312", "py313"}

GROUPS = {ENTRY_POINT_GROUP, KERNEL_GROUP, verbs.GROUP, presets.GROUP, foreign.GROUP}

_LOOKS = {
    ("config", "schema"),
    *((noun, verb) for noun in ("plugins", "presets") for verb in ("list", "show")),
}


class WrongSnippetError(AssertionError):
    """A block says something that is not so."""


def check_configuration(text: str, notation: str, *strangers: PluginSpec) -> list[str]:
    """Check a configuration as `neaptide config check` does; return the plugins it enables.

    `strangers` are manifests of plugins that need not be installed.
    """
    table = by_name(notation).loads(text)
    table.pop("$schema", None)  # for editors
    config, _ = configured(table, strangers)
    return list(config.plugins)


def check_toml(text: str) -> None:
    """Check a configuration, or what a pyproject.toml says about a distribution."""
    table = tomllib.loads(text)
    if not {"project", "build-system", "tool"} & set(table):
        check_configuration(text, "toml")
        return
    project = table.get("project", {})
    for requirement in project.get("dependencies", ()):
        check_requirement(requirement)
    groups = set(project.get("entry-points", {}))
    if groups - GROUPS:
        msg = f"no entry points of Neaptide's: {sorted(groups)}"
        raise WrongSnippetError(msg)


def check_requirement(text: str) -> None:
    """Check that the extras asked of Neaptide exist; anything else only has to be well-formed."""
    requirement = Requirement(text)
    own = canonicalize_name(requirement.name) == PROJECT["name"]
    unknown = requirement.extras - set(PROJECT["optional-dependencies"]) if own else set()
    if unknown:
        msg = f"neaptide has no extra {sorted(unknown)}"
        raise WrongSnippetError(msg)


def check_commands(text: str) -> None:
    """Check each command of a shell block."""
    joined = text.replace("\\\n", " ")
    for line in joined.splitlines():
        for part in re.split(r"&&|;|\|", line.partition(" > ")[0]):
            words = shlex.split(part, comments=True)
            if words:
                check_command(words)


def check_command(words: Sequence[str]) -> None:
    """Check one command by the rules of its program."""
    program, *arguments = words
    if program not in PROGRAMS:
        msg = f"no rule for the program {program!r}: make it a block of `text`, or add a rule"
        raise WrongSnippetError(msg)
    PROGRAMS[program](arguments)


def _neaptide(arguments: Sequence[str]) -> None:
    """Parse by the real command line; check presets and settings as `config check` does.

    Verbs that read nothing but the installation are carried out.
    """
    try:
        build_app().parse_args(arguments, print_error=False, exit_on_error=False)
    except CycloptsError as error:
        msg = f"neaptide {shlex.join(arguments)}: {error}"
        raise WrongSnippetError(msg) from error
    if tuple(arguments[:2]) in _LOOKS and main(arguments) != 0:
        msg = f"neaptide {shlex.join(arguments)} fails"
        raise WrongSnippetError(msg)
    settings = [
        word for pair in pairwise(arguments) if pair[0] in {"--set", "--preset"} for word in pair
    ]
    if settings:
        preset = [] if "--preset" in settings else ["--preset", "tiny-cpu"]
        if main(["config", "check", *settings, *preset]) != 0:
            msg = f"neaptide {shlex.join(arguments)} is refused"
            raise WrongSnippetError(msg)


def _pip(arguments: Sequence[str]) -> None:
    verb, *rest = arguments
    if verb != "install":
        msg = f"pip {verb}"
        raise WrongSnippetError(msg)
    words = iter(rest)
    for word in words:
        if word in {"-c", "-r"}:
            _exists(next(words))
        elif match := re.fullmatch(r"\.\[(.+)\]", word):
            check_requirement(f"neaptide[{match[1]}]")
        elif word not in {"-e", "."}:
            check_requirement(word)


def _tox(arguments: Sequence[str]) -> None:
    asked = {name for name in arguments if not name.startswith("-")}
    if asked - ENVIRONMENTS:
        msg = f"no tox environment {sorted(asked - ENVIRONMENTS)}"
        raise WrongSnippetError(msg)


def _python(arguments: Sequence[str]) -> None:
    match list(arguments):
        case ["-m", "neaptide", *rest]:
            _neaptide(rest)
        case ["-m", "venv" | "pip" | "pytest", *_]:
            pass
        case [script, *_]:
            _exists(script)


def _torchrun(arguments: Sequence[str]) -> None:
    """Parse the options by torchrun's own parser, and what it starts as `python` would be."""
    try:
        parsed = get_args_parser().parse_args([*arguments])
    except SystemExit as error:
        msg = f"torchrun {shlex.join(arguments)}: {error}"
        raise WrongSnippetError(msg) from error
    own = ["-m"] if parsed.module else []
    _python([*own, parsed.training_script, *parsed.training_script_args])


def _srun(arguments: Sequence[str]) -> None:
    """Check what SLURM starts; its own options are not known here."""
    check_command(arguments[arguments.index("python") :])


def _exists(path: str) -> None:
    if not (ROOT / path).exists():
        msg = f"{path} does not exist"
        raise WrongSnippetError(msg)


def _harmless(arguments: Sequence[str]) -> None:
    """Accept a program of the shell whose arguments nothing here could check."""
    del arguments


PROGRAMS: dict[str, Callable[[Sequence[str]], None]] = {
    "neaptide": _neaptide,
    "pip": _pip,
    "tox": _tox,
    "python": _python,
    "torchrun": _torchrun,
    "srun": _srun,
    "sphinx-build": _harmless,
    "pytest": _harmless,
    **dict.fromkeys((".", "cd", "cp", "export", "ls", "rm", "tensorboard", "touch"), _harmless),
}

CHECKS: dict[str, Callable[[str], Any]] = {
    "toml": check_toml,
    "yaml": lambda text: check_configuration(text, "yaml"),
    "json": lambda text: check_configuration(text, "json"),
    "sh": check_commands,
}
"""By language. Python runs, page by page; `text` is the rest, which nobody can run."""


def run_page(path: Path, snippets: Sequence[tuple[int, str]]) -> None:
    """Run a page's Python as one script, each block seeing what those before it defined.

    Handlers and levels of loggers are put back, since a page may show how to set them.
    """
    script = ModuleType("__main__")
    before, loggers = sys.modules["__main__"], (logging.root, logging.getLogger("neaptide"))
    states = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    sys.modules["__main__"] = script
    try:
        for line, text in snippets:
            exec(compile("\n" * (line - 1) + text, str(path), "exec"), vars(script))
    finally:
        sys.modules["__main__"] = before
        for logger, level, handlers in states:
            logger.setLevel(level)
            logger.handlers[:] = handlers
