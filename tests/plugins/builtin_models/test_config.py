"""The manifest and the options of the built-in models."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import attrs
import pytest

from neaptide_plugins.builtin_models import SPEC
from neaptide_plugins.builtin_models.config import ByteGptOptions, DigitsCnnOptions, MlpOptions


def test_the_manifest_claims_the_scheme_builtin_for_models() -> None:
    assert SPEC.name == "builtin-models"
    assert SPEC.schemes == {"model:builtin"}


def test_reading_the_manifest_does_not_import_torch() -> None:
    code = "import sys, neaptide_plugins.builtin_models; sys.exit('torch' in sys.modules)"

    result = subprocess.run([sys.executable, "-c", code], check=False)

    assert result.returncode == 0


@pytest.mark.parametrize("options", [ByteGptOptions, MlpOptions, DigitsCnnOptions])
def test_every_option_has_a_help_text(options: type[Any]) -> None:
    assert all(field.metadata["help"].endswith(".") for field in attrs.fields(options))


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="heads") as caught:
        ByteGptOptions(width=100, heads=3)

    assert str(caught.value) == "'width' must be a multiple of 'heads' (got width 100, heads 3)"


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        (options, {name: 0})
        for options, names in [
            (ByteGptOptions, ["layers", "width", "heads", "context"]),
            (MlpOptions, ["inputs", "width", "layers", "outputs"]),
            (DigitsCnnOptions, ["channels", "classes"]),
        ]
        for name in names
    ]
    + [
        (ByteGptOptions, {"dropout": 1.0}),
        (ByteGptOptions, {"dropout": -0.1}),
        (MlpOptions, {"dropout": 1.0}),
    ],
)
def test_an_option_out_of_range_is_refused_by_name(
    options: type[Any], setting: dict[str, Any]
) -> None:
    (name,) = setting

    with pytest.raises(ValueError, match=f"'{name}' must be"):
        options(**setting)
