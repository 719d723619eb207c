"""Continues a text, or answers a chat, with a model and a tokenizer of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoTokenizer, GenerationConfig

from neaptide.errors import ConfigError, described
from neaptide_toolkit.saved_runs.tokenizers import option, tokenizer_folder

if TYPE_CHECKING:
    from neaptide_toolkit.saved_runs.finding import SavedRun

_PLAIN_TEXTS = "text:"
"""Names of data that have no chats."""


def generated(
    model: Any, saved: SavedRun, prompt: str, count: int, temperature: float, *, raw: bool
) -> str:
    """Return the answer to a chat whose first turn is `prompt`, or the prompt and what follows.

    Raises:
        ConfigError: there is no tokenizer, or the prompt is too long for the model.
    """
    base = Path(model.config.name_or_path)
    tokenizer = _tokenizer(saved, base)
    chat = not raw and bool(tokenizer.chat_template) and _may_have_chats(saved)
    text = _as_chat(tokenizer, prompt) if chat else prompt
    # The template has written the special tokens.
    given = tokenizer(text, return_tensors="pt", add_special_tokens=not chat)["input_ids"]
    given = given.to(model.device)
    seen = given.shape[1]
    if not seen:
        msg = f"the prompt {prompt!r:.40} has no tokens; write more"
        raise ConfigError(msg)
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    together = max(seen, count) if model.config.is_encoder_decoder else seen + count
    if isinstance(most, int) and together > most:
        msg = (
            f"the prompt has {seen} tokens, and the model sees {most} together with the new ones "
            f"(got {count}); shorten the prompt or lower --tokens"
        )
        raise ConfigError(msg)
    with torch.inference_mode():
        (out,) = model.generate(
            given,
            attention_mask=torch.ones_like(given),
            generation_config=_settings(model, base, tokenizer, count, temperature),
        )
    if model.config.is_encoder_decoder:
        return str(tokenizer.decode(out, skip_special_tokens=True))
    if chat:
        return str(tokenizer.decode(out[seen:], skip_special_tokens=True))
    # Decoded together, because a decoder may drop a space before the first token.
    before = tokenizer.decode(out[:seen], skip_special_tokens=True)
    return prompt + str(tokenizer.decode(out, skip_special_tokens=True))[len(before) :]


def _tokenizer(saved: SavedRun, base: Path) -> Any:
    folder = tokenizer_folder(saved, base)
    trusted = saved.model["options"].get("trust_remote_code") is True
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trusted
        )
    except Exception as error:  # whatever transformers raises of missing or damaged files
        msg = (
            f"there is no tokenizer in {folder} ({described(error):.200}); put its files there, "
            f"or name another directory @ data.options.tokenizer"
        )
        raise ConfigError(msg) from error
    template = option(saved, "chat_template")
    if template is not None:
        try:
            tokenizer.chat_template = Path(template).expanduser().read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            msg = f"cannot read {template!r}: {described(error)} @ data.options.chat_template"
            raise ConfigError(msg) from error
    return tokenizer


def _may_have_chats(saved: SavedRun) -> bool:
    return not str(saved.data["name"]).startswith(_PLAIN_TEXTS)


def _as_chat(tokenizer: Any, prompt: str) -> str:
    turns = [{"role": "user", "content": prompt}]
    try:
        return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # a template may raise anything
        msg = f"the chat template refuses the prompt: {described(error):.200}; give --raw"
        raise ConfigError(msg) from error


def _settings(
    model: Any, base: Path, tokenizer: Any, count: int, temperature: float
) -> GenerationConfig:
    """Return how to generate: the model's own tokens that end a text, and no cut of the choices."""
    if (base / "generation_config.json").is_file():
        known = GenerationConfig.from_pretrained(base)
    else:
        known = model.generation_config
    ends = known.eos_token_id
    ends = tokenizer.eos_token_id if ends is None else ends
    first = ends[0] if isinstance(ends, list) else ends
    pad = tokenizer.pad_token_id if known.pad_token_id is None else known.pad_token_id
    choice = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    return GenerationConfig(
        max_new_tokens=count,
        use_cache=True,
        bos_token_id=known.bos_token_id,
        eos_token_id=ends,
        pad_token_id=first if pad is None else pad,
        decoder_start_token_id=known.decoder_start_token_id,
        **(choice if temperature else {"do_sample": False}),
    )
