"""A folder with a tokenizer and a model, and the settings of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from chats_and_texts import save_model, save_tokenizer

from neaptide.hooks.enabling import configured

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer and a model that fits it."""
    folder = tmp_path_factory.mktemp("saved")
    save_tokenizer(folder)
    save_model(folder)
    return folder


@pytest.fixture
def settings(saved: Path, tmp_path: Path) -> Callable[..., Any]:
    """Return the configuration of a run on the data of this name."""

    def made(name: str, *, batch_size: int = 4, plugins: Any = None, **options: Any) -> Any:
        given = {
            "model": {"name": f"hf:{saved}"},
            "data": {
                "name": name,
                "options": {
                    "tokenizer": str(saved),
                    "length": 64,
                    "cache": str(tmp_path / "cache"),
                    **options,
                },
            },
            "train": {"batch_size": batch_size, "clip_norm": None},
            "optimizer": {"name": "sgd", "lr": 1e-2},
            "plugins": plugins or {},
        }
        return configured(given)[0]

    return made
