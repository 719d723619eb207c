"""Copies the small files of a model and its tokenizer."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from neaptide.cli.loading import LOG
from neaptide.errors import ConfigError
from neaptide_toolkit.saved_runs.tokenizers import option, tokenizer_folder

if TYPE_CHECKING:
    from pathlib import Path

    from neaptide_toolkit.saved_runs.finding import SavedRun

_OF_THE_MODEL = ("generation_config.json", "preprocessor_config.json", "processor_config.json")
"""How the model generates, and what prepares images and sounds for it."""
_TEMPLATE = "chat_template.jinja"
_OF_THE_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    _TEMPLATE,
    "chat_template.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
)


def copy_files(base: Path, saved: SavedRun, directory: Path) -> None:
    """Copy the small files of the model, and those of the tokenizer, if there are any.

    Args:
        base: the directory of the model.
        saved: the run; its data may name another tokenizer than that of the model.
        directory: where the copies are written.

    Raises:
        ConfigError: a file is a link that leads elsewhere.
    """
    for name in _OF_THE_MODEL:
        _copy(base, name, directory)
    try:
        folder = tokenizer_folder(saved, base)
    except ConfigError as error:
        LOG.warning("exported without a tokenizer: %s", error)
        return
    for name in _OF_THE_TOKENIZER:
        _copy(folder, name, directory)
    template = option(saved, "chat_template")
    if template is not None:  # any path: what it leads to may be private
        LOG.warning(
            "the run's chat template is not exported: copy %s to %s in the exported directory",
            template,
            _TEMPLATE,
        )


def _copy(source: Path, name: str, directory: Path) -> None:
    path = source / name
    if not path.is_file():
        return
    # Hugging Face's cache has links from snapshots/COMMIT to blobs.
    home = source.resolve()
    home = home.parents[1] if home.parent.name == "snapshots" else home
    if not path.resolve().is_relative_to(home):
        msg = f"{path} is a link that leads out of {home}; put the file itself there"
        raise ConfigError(msg)
    shutil.copyfile(path, directory / name)
