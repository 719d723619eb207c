"""`--tokens`: batches of text of a given size, for a plan without data."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from neaptide.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

_FORM = re.compile(r"([1-9][0-9]{0,8})x([1-9][0-9]{0,8})")


def settings(model: str | None, tokens: str | None) -> Sequence[str]:
    """Return what `--model` and `--tokens` set, in the form of `--set`.

    Raises:
        ConfigError: `tokens` is not LENGTHxROWS.
    """
    found = [] if model is None else [f"model.name={json.dumps(model)}"]
    if tokens is None:
        return found
    form = _FORM.fullmatch(tokens)
    if form is None:
        msg = f"tokens are LENGTHxROWS of a batch, such as 4096x8 (got {tokens!r:.40}) @ --tokens"
        raise ConfigError(msg)
    length, rows = form.groups()
    data = f'data.name="{__name__}:batches"', f"data.options={{ length = {length} }}"
    return [*found, *data, f"train.batch_size={rows}"]


def batches(batch_size: int, length: int) -> list[dict[str, Any]]:
    """Return one batch: `input_ids` and `labels`, int64 `[batch_size, length]`."""
    import torch  # noqa: PLC0415 - the command line reads `settings` without it

    ids = torch.ones(batch_size, length, dtype=torch.int64)
    return [{"input_ids": ids, "labels": ids}]
