"""The plugin: builds the built-in data set that a run names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from neaptide import ConfigError, Data, NoConfig, Plugin, hookimpl
from neaptide.config import structure_options

from . import diagnosis, digits, text
from .config import SPEC, DigitsOptions, PythonStdlibOptions, TextFileOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from neaptide import Finding
    from neaptide.api.task import DataSpec


@attrs.define(eq=False)
class BuiltinData(Plugin[NoConfig]):
    """Builds `builtin:python-stdlib`, `builtin:text-file` and `builtin:digits`."""

    @hookimpl
    def build_data(self, spec: DataSpec) -> Data | None:
        """Build the named data set; ConfigError if its source cannot be read or is too small."""
        if spec.scheme != "builtin":
            return None
        options = structure_options(
            SPEC.options[f"data:{spec.name}"], spec.options, "data", "options"
        )
        try:
            if isinstance(options, DigitsOptions):
                data, size, unit = _digits(options, spec)
            else:
                data, size, unit = _text(options, spec)
        except (ValueError, ModuleNotFoundError) as error:
            msg = f"{error} @ data.options"
            raise ConfigError(msg) from error
        if spec.batch_size > size:
            msg = (
                f"the batch size {spec.batch_size} is larger than the training data of {size} "
                f"{unit}; lower it @ train.batch_size"
            )
            raise ConfigError(msg)
        return data

    @hookimpl
    def diagnose(self) -> Iterable[Finding]:
        """Report for each data set whether its source is on this machine."""
        return diagnosis.findings()


def _text(options: PythonStdlibOptions | TextFileOptions, spec: DataSpec) -> tuple[Data, int, str]:
    """Return the data, the amount of training data, and the unit of this amount."""
    train: Tensor
    held_out: Tensor
    if isinstance(options, TextFileOptions):
        train, held_out = text.file_bytes(options.path, options.validation_share)
    else:
        train, held_out = text.stdlib_bytes(options.validation_share)
    data = Data(
        text.ByteBatches(train, options.context, spec.batch_size, spec.seed),
        text.EvalWindows(
            held_out, options.context, spec.batch_size, spec.batch_size * spec.eval_batches
        ),
    )
    return data, len(train), "bytes"


def _digits(options: DigitsOptions, spec: DataSpec) -> tuple[Data, int, str]:
    train, held_out = digits.load(options.validation_share)
    data = Data(
        digits.DigitBatches(train, spec.batch_size, spec.seed),
        digits.EvalDigits(held_out, spec.batch_size, spec.batch_size * spec.eval_batches),
    )
    return data, len(train.labels), "images"
