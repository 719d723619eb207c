"""Builds the model of a saved run by the installed plugin that its configuration names."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from neaptide.errors import ConfigError, described
from neaptide.hooks.enabling import configured, split_name
from neaptide.io.logging import run_logger
from neaptide.run import assembly

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn

HUGGING_FACE = "hf"
"""The scheme of models of transformers."""
LORA = "lora"
"""The plugin that adds weights (adapters) to the model."""


@contextmanager
def needing(extra: str, where: str = "model.name") -> Iterator[None]:
    """Within this context a library that is missing is a ConfigError that names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        msg = f'{described(error)}: pip install "neaptide[{extra}]" @ {where}'
        raise ConfigError(msg) from error


def scheme_of(model: Mapping[str, Any]) -> tuple[str, str]:
    """Return the scheme and the name of `[model]`; no scheme means a function of the user."""
    name = str(model["name"])
    if not name:
        msg = "the run's model was given in Python and has no name @ model.name"
        raise ConfigError(msg)
    return split_name(name)


def build(
    model: Mapping[str, Any], adapters: Mapping[str, Any] | None = None, **changes: Any
) -> nn.Module:
    """Build the model of the table `[model]`, with `changes` of its options.

    No plugin of the run is enabled but the one that builds the model, and the one that adds
    `adapters`, if there are settings for it.
    """
    options = {**model["options"], **changes}
    plugins = {} if adapters is None else {LORA: dict(adapters)}
    config, ordered = configured(
        {"model": {"name": model["name"], "options": options}, "plugins": plugins}
    )
    hooks = assembly.create_plugins(config, ordered, run_logger())
    try:
        built = assembly.build_task(config, hooks).module
    except ConfigError as error:
        said, absent, _ = str(error).partition("; to download it")
        if not absent:
            raise
        msg = f"{said}; put the files of the base model there again @ model.name"
        raise ConfigError(msg) from error
    hooks.notify("convert_model", model=built)
    return built
