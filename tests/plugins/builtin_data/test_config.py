"""The manifest and the options of the built-in data sets."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import attrs
import pytest

from neaptide_plugins.builtin_data import SPEC
from neaptide_plugins.builtin_data.config import (
    DigitsOptions,
    PythonStdlibOptions,
    TextFileOptions,
)


def test_the_manifest_claims_the_scheme_builtin_for_data() -> None:
    assert SPEC.name == "builtin-data"
    assert SPEC.schemes == {"data:builtin"}


def test_reading_the_manifest_does_not_import_torch() -> None:
    code = "import sys, neaptide_plugins.builtin_data; sys.exit('torch' in sys.modules)"

    result = subprocess.run([sys.executable, "-c", code], check=False)

    assert result.returncode == 0


@pytest.mark.parametrize("options", [PythonStdlibOptions, TextFileOptions, DigitsOptions])
def test_every_option_has_a_help_text(options: type[Any]) -> None:
    assert all(field.metadata["help"].endswith(".") for field in attrs.fields(options))


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        (PythonStdlibOptions, {"context": 0}),
        (PythonStdlibOptions, {"validation_share": 0.0}),
        (TextFileOptions, {"path": "x", "context": 0}),
        (TextFileOptions, {"path": "x", "validation_share": 1.0}),
        (DigitsOptions, {"validation_share": 1.0}),
    ],
)
def test_an_option_out_of_range_is_refused_by_name(
    options: type[Any], setting: dict[str, Any]
) -> None:
    name = list(setting)[-1]

    with pytest.raises(ValueError, match=f"'{name}' must be"):
        options(**setting)


def test_an_empty_path_is_refused() -> None:
    with pytest.raises(ValueError, match="path"):
        TextFileOptions(path="")
