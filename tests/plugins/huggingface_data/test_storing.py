"""Tokens are made once, kept whole or not at all, and made again if they are damaged."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from chats_and_texts import MARKED, chats, save_tokenizer, write_chats, write_texts

from neaptide import DataError, HybridTrainer
from neaptide.run.assembly import build_data
from neaptide_plugins.huggingface_data import tokenizing
from neaptide_plugins.huggingface_data.storing import directory_of, opened

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of documents of each chunk that was tokenized."""
    from neaptide_plugins.huggingface_data import processes

    chunks: list[int] = []

    def noted(raws: Any, *given: Any) -> Any:
        chunks.append(len(raws))
        return tokenizing.encode(raws, *given)

    monkeypatch.setattr(processes, "encode", noted)
    return chunks


def batches(config: Any, count: int = 30) -> list[dict[str, torch.Tensor]]:
    with HybridTrainer.from_config(config) as trainer:
        return list(build_data(config, trainer.hooks).train)[:count]


def same(one: list[dict[str, torch.Tensor]], other: list[dict[str, torch.Tensor]]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a[name], b[name]) for a, b in zip(one, other, strict=True) for name in a
    )


def test_tokens_are_made_once(
    settings: Callable[..., Any], encoded: list[int], saved: Path, tmp_path: Path
) -> None:
    path = write_texts(tmp_path / "texts.jsonl", 300)
    first = batches(settings(f"jsonl:{path}"))
    assert [256, 44] == encoded
    shutil.copy(path, tmp_path / "copy.jsonl")  # the same content in another place
    shutil.copytree(saved, tmp_path / "copied")
    again = batches(settings(f"jsonl:{tmp_path}/copy.jsonl", tokenizer=str(tmp_path / "copied")))
    batches(settings(f"jsonl:{path}", length=32, pack=False, batch_size=2, validation=0.2))
    assert [256, 44] == encoded
    assert same(first, again)


def test_other_files_fields_tokenizers_and_templates_give_other_tokens(
    settings: Callable[..., Any], encoded: list[int], tmp_path: Path
) -> None:
    path = write_chats(tmp_path / "chats.jsonl", chats(60))
    batches(settings(f"jsonl:{path}"))
    save_tokenizer(tmp_path / "marked", MARKED)
    batches(settings(f"jsonl:{path}", tokenizer=str(tmp_path / "marked")))
    (tmp_path / "mine.jinja").write_text(MARKED + " ", encoding="utf-8")
    batches(settings(f"jsonl:{path}", chat_template=str(tmp_path / "mine.jinja")))
    write_chats(path, chats(60, seed=1))
    batches(settings(f"jsonl:{path}"))
    path.write_text(path.read_text().replace('"messages"', '"turns"'), encoding="utf-8")
    batches(settings(f"jsonl:{path}", messages="turns"))
    assert [60] * 5 == encoded


@pytest.mark.parametrize("name", ["tokens", "counted", "ends", "facts.json"])
@pytest.mark.parametrize("way", ["cut", "changed", "removed"])
def test_damaged_tokens_are_made_again_with_a_line(
    name: str,
    way: str,
    settings: Callable[..., Any],
    encoded: list[int],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = settings(f"jsonl:{write_texts(tmp_path / 'texts.jsonl', 40)}")
    first = batches(config)
    (folder,) = (tmp_path / "cache").iterdir()
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 4
    if way == "removed":
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content[:-3] if way == "cut" else content)
    caplog.clear()
    assert same(first, batches(config))
    told = [record.getMessage() for record in caplog.records if "again" in record.getMessage()]
    assert 1 == len(told)
    assert "\n" not in told[0]
    assert [40, 40] == encoded
    assert same(first, batches(config))
    assert [40, 40] == encoded
    assert opened(folder) is not None


def test_nothing_is_left_of_tokens_that_were_not_completed(
    settings: Callable[..., Any], tmp_path: Path
) -> None:
    path = write_texts(tmp_path / "texts.jsonl", 400)
    with path.open("a", encoding="utf-8") as file:
        file.write("{broken\n")
    with pytest.raises(DataError, match="line 401 is no JSON"):
        batches(settings(f"jsonl:{path}"))
    assert [] == list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize("kind", ["chats", "texts"])
def test_any_number_of_processes_makes_the_same_tokens(
    kind: str, settings: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "data.jsonl"
    _ = write_chats(path, chats(600)) if kind == "chats" else write_texts(path, 600)
    one = batches(settings(f"jsonl:{path}"))
    several = settings(f"jsonl:{path}", workers=2, cache=str(tmp_path / "other"))
    assert same(one, batches(several))


def test_an_error_in_another_process_keeps_its_line(
    settings: Callable[..., Any], tmp_path: Path
) -> None:
    path = write_texts(tmp_path / "texts.jsonl", 300)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"messages": [{"role": "user", "content": "a"}]}) + "\n")
    with pytest.raises(DataError, match=r"no turn of the assistant.* line 301 @ data\.name"):
        batches(settings(f"jsonl:{path}", workers=2))
    assert [] == list((tmp_path / "cache").iterdir())


def test_the_directory_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NEAPTIDE_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tmp_path / "neaptide" / "data" == directory_of(None)
    monkeypatch.setenv("NEAPTIDE_CACHE_DIR", str(tmp_path / "own"))
    assert tmp_path / "own" / "data" == directory_of(None)
    assert tmp_path / "named" == directory_of(str(tmp_path / "named"))
