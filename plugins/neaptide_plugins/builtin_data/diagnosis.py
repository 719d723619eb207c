"""Findings for `neaptide doctor`: whether the data sets' sources are on this machine."""

from __future__ import annotations

import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from neaptide import Finding

from .text import source_files

if TYPE_CHECKING:
    from collections.abc import Iterator


def findings(stdlib: Path | None = None) -> Iterator[Finding]:
    """Yield a finding on Python's sources, then a finding on scikit-learn.

    `stdlib` is the folder of the sources, by default the folder of the running Python.
    """
    root = stdlib or Path(sysconfig.get_path("stdlib"))
    count = len(source_files(root))
    if count:
        yield Finding("ok", "python-stdlib", f"{count} source files in {root}")
    else:
        detail = f"no .py sources in {root}"
        advice = 'use a Python that ships its sources, or name = "builtin:text-file"'
        yield Finding("warning", "python-stdlib", detail, advice)
    if find_spec("sklearn") is None:
        detail = "scikit-learn, which ships the images, is not installed"
        yield Finding("note", "digits", detail, 'pip install "neaptide[digits]"')
    else:
        yield Finding("ok", "digits", "scikit-learn is installed")
