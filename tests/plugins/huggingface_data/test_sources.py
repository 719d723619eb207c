"""The same documents from texts, lines, tables and saved data sets give the same batches."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import torch
from chats_and_texts import chats, write_chats, write_texts
from datasets import Dataset, DatasetDict
from pyarrow import parquet

from neaptide import ConfigError, HybridTrainer
from neaptide.api.steps import NOTES
from neaptide.run.assembly import build_data

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def built(config: Any) -> tuple[Any, str]:
    with HybridTrainer.from_config(config) as trainer:
        data = build_data(config, trainer.hooks)
        (line,) = trainer.run.stash.get(NOTES)
        return data, line


def same(one: Any, other: Any) -> bool:
    pairs = list(zip(one, other, strict=True))
    return bool(pairs) and all(torch.equal(a[name], b[name]) for a, b in pairs for name in a)


@pytest.mark.parametrize("kind", ["chats", "texts"])
def test_lines_tables_and_saved_sets_are_the_same(
    kind: str, settings: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "data.jsonl"
    _ = write_chats(path, chats(80)) if kind == "chats" else write_texts(path, 80)
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [{**json.loads(line), "id": place} for place, line in enumerate(lines)]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "data.parquet")
    Dataset.from_list(rows).save_to_disk(tmp_path / "one")
    DatasetDict(
        {"train": Dataset.from_list(rows), "test": Dataset.from_list(rows[:30])}
    ).save_to_disk(tmp_path / "several")
    data, line = built(settings(f"jsonl:{path}"))
    wanted = list(data.train)
    assert "80 documents" in line
    for name, options in (
        (f"parquet:{tmp_path}/*.parquet", {}),
        (f"hf:{tmp_path}/one", {}),
        (f"hf:{tmp_path}/several", {"validation": "test"}),
    ):
        found, line = built(settings(name, **options))
        assert same(wanted, found.train), name
        assert ("validation: " in line) == ("validation" in options)


def test_a_directory_with_files_is_a_data_set(
    settings: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf"))
    (tmp_path / "set").mkdir()
    path = write_texts(tmp_path / "set" / "train.jsonl", 50)
    assert same(
        built(settings(f"jsonl:{path}"))[0].train, built(settings(f"hf:{tmp_path}/set"))[0].train
    )


def test_a_text_is_a_document_that_ends(
    settings: Callable[..., Any], saved: Path, tmp_path: Path
) -> None:
    for place in range(5):
        (tmp_path / f"{place}.txt").write_text(f"the moon {place}\nand salt\n", encoding="utf-8")
    data, line = built(settings(f"text:{tmp_path}/*.txt", batch_size=1, shuffle=False))
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(saved)
    (batch,) = list(data.train)[:1]
    text = "".join(f"the moon {place}\nand salt\n<|end|>" for place in range(5))
    assert tokenizer.decode(batch["input_ids"][0]).startswith(text)
    assert "5 documents" in line


def test_the_line_counts_and_says_what_is_dropped(
    settings: Callable[..., Any], tmp_path: Path
) -> None:
    path = write_texts(tmp_path / "texts.jsonl", 40)
    data, line = built(settings(f"jsonl:{path}", length=32, too_long="drop"))
    batches = list(data.train)
    counted = sum(int((batch["labels"] != -100).sum()) for batch in batches)
    begun = sum(int((batch["position_ids"] == 0).sum()) for batch in batches)
    samples = sum(len(batch["labels"]) for batch in batches)
    assert line.startswith(f"data: {samples} samples of 40 documents, ")
    assert f"tokens, {counted} of them count for the loss; dropped documents: " in line
    assert "longer than 32 tokens" in line
    assert begun >= 1


@pytest.mark.parametrize("too_long", ["cut", "split"])
def test_the_line_says_how_many_documents_are_cut(
    settings: Callable[..., Any], tmp_path: Path, too_long: str
) -> None:
    path = write_texts(tmp_path / "texts.jsonl", 40)
    _, whole = built(settings(f"jsonl:{path}", length=1024, pack=False))
    _, line = built(settings(f"jsonl:{path}", length=32, too_long=too_long))
    assert "no document dropped" in whole
    assert " cut after" not in whole
    assert (" documents cut after 32 tokens" in line) == (too_long == "cut")


def test_a_share_is_held_out_whatever_the_seed(
    settings: Callable[..., Any], tmp_path: Path
) -> None:
    import attrs

    path = write_texts(tmp_path / "texts.jsonl", 50)
    config = settings(f"jsonl:{path}", validation=0.2)
    one, _ = built(config)
    other, _ = built(attrs.evolve(config, seed=5))
    assert same(one.validation, other.validation)
    assert not same(one.train, other.train)


def test_a_data_set_that_is_not_there_is_told(settings: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'some/set' is no directory; .*download = true @ data"):
        built(settings("hf:some/set"))
    with pytest.raises(ConfigError, match=r"cannot be loaded: .* @ data\.name"):
        built(settings(f"hf:{tmp_path}"))
    Dataset.from_list([{"text": "a tide"}]).save_to_disk(tmp_path / "one")
    with pytest.raises(ConfigError, match=r"has no split 'test'; it has train @ data\.options"):
        built(settings(f"hf:{tmp_path}/one", validation="test"))
