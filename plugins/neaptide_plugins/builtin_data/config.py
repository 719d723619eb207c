"""The plugin's manifest, and one class of options for each built-in data set."""

from __future__ import annotations

import attrs
from attrs.validators import and_, ge, gt, lt, min_len

from neaptide.plugin import PluginSpec

_share = and_(gt(0.0), lt(1.0))
_context_help = {
    "help": "Largest number of bytes that the model sees before the byte it predicts; a window is "
    "one byte longer."
}


@attrs.frozen(kw_only=True)
class PythonStdlibOptions:
    """Options of `builtin:python-stdlib`."""

    context: int = attrs.field(default=128, validator=ge(1), metadata=_context_help)
    validation_share: float = attrs.field(
        default=0.1,
        validator=_share,
        metadata={"help": "Share of the files, chosen by name, kept for validation."},
    )


@attrs.frozen(kw_only=True)
class TextFileOptions:
    """Options of `builtin:text-file`."""

    path: str = attrs.field(
        validator=min_len(1), metadata={"help": "File to read; its bytes may be anything."}
    )
    context: int = attrs.field(default=128, validator=ge(1), metadata=_context_help)
    validation_share: float = attrs.field(
        default=0.1,
        validator=_share,
        metadata={"help": "Share of the bytes, at the file's end, kept for validation."},
    )


@attrs.frozen(kw_only=True)
class DigitsOptions:
    """Options of `builtin:digits`."""

    validation_share: float = attrs.field(
        default=0.2,
        validator=_share,
        metadata={"help": "Share of each digit's images kept for validation."},
    )


SPEC = PluginSpec(
    name="builtin-data",
    load="neaptide_plugins.builtin_data.plugin:BuiltinData",
    schemes={"data:builtin"},
    summary="Built-in data without a download: python-stdlib, text-file and digits.",
    options={
        "data:python-stdlib": PythonStdlibOptions,
        "data:text-file": TextFileOptions,
        "data:digits": DigitsOptions,
    },
)
