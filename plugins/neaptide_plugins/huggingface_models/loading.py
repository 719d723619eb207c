"""Builds a model of transformers from the files of a directory."""

from __future__ import annotations

import json
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoConfig

from neaptide import ConfigError
from neaptide.errors import described, suggest
from neaptide_toolkit.machine.collecting import only_new_objects
from neaptide_toolkit.machine.pretended import is_pretended
from neaptide_toolkit.offload.disk.file_spans import reads_directly
from neaptide_toolkit.offload.disk.mapped_tensors import MappedTensors

from .finding import directory_of
from .reading import are_mapped, files_of, fit_in_memory, read_ahead, read_ends

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .config import HuggingFaceOptions

_CLASSES = {
    "causal-lm": transformers.AutoModelForCausalLM,
    "masked-lm": transformers.AutoModelForMaskedLM,
    "seq2seq": transformers.AutoModelForSeq2SeqLM,
    "sequence-classification": transformers.AutoModelForSequenceClassification,
    "image-classification": transformers.AutoModelForImageClassification,
}
_SHOWN = 3
_TRUST = "trust_remote_code"
_ERRORS = (
    OSError,
    ValueError,
    KeyError,
    ImportError,
    RuntimeError,
    AttributeError,
    SafetensorError,
)
"""What transformers raises if files are damaged, or if options do not fit the model."""


def load(name: str, options: HuggingFaceOptions, *, placed: bool = False) -> torch.nn.Module:
    """Return a model in train mode, on the CPU. A dry run reads no weights.

    Args:
        name: a directory, or an id such as `meta-llama/Llama-3.2-1B`.
        options: see `HuggingFaceOptions`.
        placed: another plugin reads the values; leave them in the files, mapped, if they are there.

    Raises:
        ConfigError: there is no such model, or it cannot be built. The message has one line.
    """
    random = options.from_config or is_pretended()
    folder = directory_of(name, download=options.download, weights=not random)
    try:
        config = _config(folder, options)
        with only_new_objects():
            model: torch.nn.Module = (
                _random(config, options)
                if random
                else _read(folder, config, options, placed=placed)
            )
    except ConfigError:
        raise
    except _ERRORS as error:
        msg = f"{name!r} cannot be loaded: {described(error)} @ model.name"
        if _TRUST in str(error) and not options.trust_remote_code:
            msg = (
                f"{name!r} needs Python code of its own, from {folder}; read it, and set "
                f"{_TRUST} = true to run it @ model.options"
            )
        raise ConfigError(msg) from error
    model.train()
    return model


def _config(folder: Path, options: HuggingFaceOptions) -> Any:
    if options.trust_remote_code:
        _tell_of_code(folder, options)
    config = AutoConfig.from_pretrained(folder, trust_remote_code=options.trust_remote_code)
    for key, value in options.config.items():
        if not hasattr(config, key):
            msg = (
                f"{type(config).__name__} has no {key!r}{suggest(key, vars(config))} "
                f"@ model.options.config"
            )
            raise ConfigError(msg)
        setattr(config, key, value)
    if hasattr(config, "use_cache"):
        config.use_cache = False  # a cache holds keys and values that no training reads
    return config


def _tell_of_code(folder: Path, options: HuggingFaceOptions) -> None:
    """Say that Python code of the model runs, if it has some; check before that what can be."""
    saved: Any = {}
    with suppress(OSError, ValueError):  # transformers says what is wrong with the file
        saved = json.loads((folder / "config.json").read_bytes())
    if "auto_map" in saved:
        _class(saved.get("architectures"), options)
        warnings.warn(f"Python code that comes with the model runs, from {folder}", stacklevel=2)


def _class(architectures: Sequence[str] | None, options: HuggingFaceOptions) -> Any:
    """Return what builds the model: the class of the task, or the one that the files name."""
    if options.task is not None:
        return _CLASSES[options.task]
    named = [*(architectures or ())]
    found = getattr(transformers, named[0], None) if len(named) == 1 else None
    if found is None:
        msg = (
            f"config.json names the architectures {named}, which transformers "
            f"{transformers.__version__} does not have; write what the model is for: "
            f"{', '.join(_CLASSES)} @ model.options.task"
        )
        raise ConfigError(msg)
    return found


def _settings(options: HuggingFaceOptions) -> dict[str, Any]:
    dtype = "auto" if options.dtype == "saved" else getattr(torch, options.dtype)
    attention = {"attn_implementation": options.attention} if options.attention else {}
    return {"dtype": dtype, **attention}


def _random(config: Any, options: HuggingFaceOptions) -> Any:
    settings = _settings(options)
    if settings["dtype"] == "auto":
        settings["dtype"] = config.dtype or torch.float32
    built = _class(config.architectures, options)
    if options.task is None:
        return built._from_config(config, **settings)  # noqa: SLF001 - what the Auto classes call
    trusted = {"trust_remote_code": True} if options.trust_remote_code else {}
    return built.from_config(config, **settings, **trusted)


def _read(folder: Path, config: Any, options: HuggingFaceOptions, *, placed: bool) -> Any:
    """Build the model of the files, which are read ahead of that, or after it."""
    files = files_of(folder)
    wanted = config.dtype if options.dtype == "saved" else getattr(torch, options.dtype)
    fit = fit_in_memory(files)
    after = are_mapped(files, wanted) and all(map(reads_directly, files))
    if fit and not after:
        read_ahead(files)
    read_ends(files)
    model = _saved(folder, config, options)
    if fit and after and not placed:
        with MappedTensors() as reading:
            reading.own((*model.parameters(), *model.buffers()))
    return model


def _saved(folder: Path, config: Any, options: HuggingFaceOptions) -> Any:
    model, told = _class(config.architectures, options).from_pretrained(
        folder,
        config=config,
        local_files_only=True,
        trust_remote_code=options.trust_remote_code,
        output_loading_info=True,
        **_settings(options),
    )
    if missing := sorted(told["missing_keys"]):
        shown = ", ".join(missing[:_SHOWN]) + (", …" if len(missing) > _SHOWN else "")
        if options.task is None:
            msg = f"{folder} lacks {len(missing)} tensors: {shown} @ model.name"
            raise ConfigError(msg)
        # A new head, such as one for classes, has no weights yet.
        warnings.warn(
            f"{len(missing)} tensors are not in {folder} and start with random values: {shown}",
            stacklevel=2,
        )
    return model
