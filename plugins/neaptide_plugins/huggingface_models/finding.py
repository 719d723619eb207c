"""Finds the files of a model: a directory, or an id in Hugging Face's cache."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.constants import HF_HUB_CACHE
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from neaptide import ConfigError
from neaptide.errors import described

_CONFIG = "config.json"
_WEIGHTS = ["*.json", "*.safetensors", "*.py", "*.txt", "*.model"]


def directory_of(name: str, *, download: bool, weights: bool) -> Path:
    """Return the directory of a model's files.

    Args:
        name: a directory, or an id such as `meta-llama/Llama-3.2-1B`.
        download: what the cache lacks is downloaded. Without it nothing is.
        weights: whether the weights are needed, or only the configuration.

    Raises:
        ConfigError: there is no such model; one line says where it was looked for.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / _CONFIG).is_file():
            msg = f"{folder} has no {_CONFIG}; give a directory of save_pretrained @ model.name"
            raise ConfigError(msg)
        return folder
    try:
        found = snapshot_download(
            name,
            local_files_only=not download,
            allow_patterns=_WEIGHTS if weights else ["*.json", "*.py"],
        )
    except HFValidationError as error:
        msg = f"{name!r} is no directory, and no id of a model @ model.name"
        raise ConfigError(msg) from error
    except LocalEntryNotFoundError as error:
        wrong = described(error) if download else f"no model of this id in {HF_HUB_CACHE}"
        way_out = "" if download else "; to download it, set model.options.download = true"
        msg = f"{name!r} is no directory, and there is {wrong}{way_out} @ model.name"
        raise ConfigError(msg) from error
    except OSError as error:  # no connection, no permission, no such model
        msg = f"{name!r} cannot be downloaded: {described(error)} @ model.name"
        raise ConfigError(msg) from error
    if not (Path(found) / _CONFIG).is_file():
        msg = (
            f"{found} has no {_CONFIG}; to download it, set model.options.download = true "
            f"@ model.name"
        )
        raise ConfigError(msg)
    return Path(found)
