"""Create a distribution with a working plugin or verb.

The distribution's files come from `templates/<kind>/` and `templates/common/`. The names of these
templates end in `.txt`, so that tools do not treat the templates as Python. Placeholders such as
`@name@` are replaced by their values.
"""

from __future__ import annotations

import keyword
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

from neaptide.cli.verbs import GROUP as VERBS
from neaptide.errors import ConfigError, PluginError
from neaptide.plugin import ENTRY_POINT_GROUP, shipped

_TEMPLATES = Path(__file__).with_name("templates")
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_PLACES = {"gitignore": ".gitignore", "ci.yml": ".github/workflows/ci.yml"}
_FOLDERS = {"src", "tests"}
"""Folders of every distribution. The distribution's package must have another name."""
_BUILT_IN = {"run"}
"""Verbs of the core. No distribution may ship a verb with one of these names."""


@attrs.frozen
class Kind:
    """A kind of plugin or verb to create."""

    summary: str
    """The description that `plugins list` shows."""
    group: str = ENTRY_POINT_GROUP
    target: str = "@package@:SPEC"
    """The value of the distribution's entry point."""


KINDS = {
    "observer": Kind("Writes the slowest updates of a run to a file."),
    "predictor": Kind("Predicts updates along the line between the halves of a window."),
    "optimizer": Kind("Lion: steps by the sign of an average of the gradients."),
    "memory": Kind("Holds activations as bfloat16 from the forward to the backward."),
    "verb": Kind("Shows the time of a run by phase.", VERBS, "@package@.verb:show"),
    "kernel": Kind("Applies predicted updates to lists of float32 tensors together."),
}


def write_new(name: str, kind: str, directory: Path) -> list[str]:
    """Write the distribution `name` to `directory`; return its files' paths inside `directory`.

    `directory` appears only when it is complete. Raises ConfigError or PluginError if the name
    cannot be used, or if the directory exists or cannot be written.
    """
    _check_name(name, KINDS[kind].group)
    package = name.replace("-", "_")
    _check_package(package, name)
    files = _files(name, package, kind)
    try:
        if os.path.lexists(directory):
            msg = f"{directory} exists already; name another directory with --dir, or move this one"
            raise ConfigError(msg)
        with TemporaryDirectory(prefix=f".{name}-", dir=directory.parent) as beside:
            written = Path(beside) / "new"  # only the owner may read `beside` itself
            for place, text in files.items():
                path = written / place
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8", newline="\n")
            written.rename(directory)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        if isinstance(error, ConfigError):
            raise
        reason = getattr(error, "strerror", None) or error
        msg = f"cannot write {directory}: {reason}; name another directory with --dir"
        raise ConfigError(msg) from error
    return sorted(files)


def _check_name(name: str, group: str) -> None:
    if not _NAME.fullmatch(name):
        msg = (
            f"a name consists of lower-case letters and digits in words joined by dashes, and "
            f"begins with a letter, as 'gradient-noise' (got {name!r}); choose such a name"
        )
        raise ConfigError(msg)
    what = "verb" if group == VERBS else "plugin"
    found = shipped(group).get(name)
    if found is not None:
        msg = (
            f"a {what} {name!r} is installed already, by {found.distribution}; choose another name"
        )
        raise PluginError(msg)
    if group == VERBS and name in _BUILT_IN:
        msg = f"a verb {name!r} is built into neaptide; choose another name"
        raise PluginError(msg)


def _check_package(package: str, name: str) -> None:
    if keyword.iskeyword(package):
        reason = "a keyword of Python"
    elif package in sys.stdlib_module_names:
        reason = "a module of Python's standard library"
    elif package in _FOLDERS:
        reason = "a folder of its distribution"
    elif _is_installed(package):
        reason = "a package that is installed here"
    else:
        return
    msg = f"the package of {name!r} would be {package!r}, which is {reason}; choose another name"
    raise ConfigError(msg)


def _is_installed(package: str) -> bool:
    found = find_spec(package)
    # Python imports any folder on its path. A folder without __init__.py does not count here.
    return found is not None and found.origin is not None


def _files(name: str, package: str, kind: str) -> dict[str, str]:
    """Return the text of each file by its path in the distribution."""
    chosen = KINDS[kind]
    words = {
        "target": chosen.target,  # replaced first, because its value contains @package@
        "name": name,
        "package": package,
        "Class": "".join(word.capitalize() for word in name.split("-")),
        "distribution": name if name.startswith("neaptide-") else f"neaptide-{name}",
        "summary": chosen.summary,
        "group": chosen.group,
    }
    files = {}
    for folder in (_TEMPLATES / "common", _TEMPLATES / kind):
        for path in folder.rglob("*.txt"):
            place = path.relative_to(folder).as_posix().removesuffix(".txt")
            place = re.sub(r"^src/", f"src/{package}/", _PLACES.get(place, place))
            text = path.read_text(encoding="utf-8")
            for word, value in words.items():
                text = text.replace(f"@{word}@", value)
            files[place] = text
    return files
