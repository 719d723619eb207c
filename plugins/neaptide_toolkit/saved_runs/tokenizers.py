"""Finds the tokenizer of a saved run: that of its data, or else that of its model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from neaptide.errors import ConfigError

if TYPE_CHECKING:
    from .finding import SavedRun

_WHERE = "@ data.options.tokenizer"


def tokenizer_folder(saved: SavedRun, base: Path) -> Path:
    """Return the directory of the tokenizer that `[data]` names, or else `base`, the model's.

    Raises:
        ConfigError: the tokenizer that `[data]` names is not on this machine.
    """
    named = option(saved, "tokenizer")
    if named is None:
        return base
    folder = Path(named).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - not every tokenizer needs it
    from huggingface_hub.errors import (  # noqa: PLC0415 - likewise
        HFValidationError,
        LocalEntryNotFoundError,
    )

    try:
        return Path(snapshot_download(named, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError) as error:
        msg = f"the tokenizer {named!r:.200} is no directory, and not on this machine {_WHERE}"
        raise ConfigError(msg) from error


def option(saved: SavedRun, name: str) -> str | None:
    """Return an option of `[data]` that is a text; None if there is none."""
    found = saved.data["options"].get(name)
    return found if isinstance(found, str) and found else None
