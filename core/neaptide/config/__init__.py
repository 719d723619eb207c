"""The configuration of a run: its sections, sources, formats and checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neaptide.config.convert import structure, structure_options, unstructure
from neaptide.config.fields import field
from neaptide.config.formats import TOML, Format, all_formats, by_name, by_suffix, read_text
from neaptide.config.loading import LoadedConfig, load
from neaptide.config.schema import RunConfig
from neaptide.renamed import missing_in

loads = TOML.loads
"""Parses TOML text. `all_formats()` has the other formats."""
dumps = TOML.dumps
"""Returns TOML text."""

__all__ = [
    "Format",
    "LoadedConfig",
    "RunConfig",
    "all_formats",
    "by_name",
    "by_suffix",
    "dumps",
    "field",
    "load",
    "loads",
    "read_text",
    "structure",
    "structure_options",
    "unstructure",
]

if not TYPE_CHECKING:  # for a type checker it would hide missing names
    __getattr__ = missing_in(__name__)
