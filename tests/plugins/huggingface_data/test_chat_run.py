"""A whole run on chats from a file, as a user starts it; and the same run in two parts."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

from chats_and_texts import chats, save_model, save_tokenizer, write_chats
from pages import ROOT, blocks
from snippets import run_page
from support import environment

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
import warm

SFT = """\
version = 1
model.name = "hf:model"
data.name = "jsonl:chats.jsonl"
train = { steps = 32, batch_size = 4 }
optimizer = { name = "adamw", lr = 3e-3 }
eval = { every = 16, batches = 2 }
[data.options]
tokenizer = "model"
length = 128
validation = 0.1
"""
STATE = [
    "weights.safetensors",
    "optimizer.safetensors",
    "rng.safetensors",
    "data.json",
    "training.json",
]


def run(folder: Path, directory: str, *more: str) -> str:
    words = ["-m", "neaptide", "run", "sft.toml", "--set", f"run.dir={directory}", *more]
    env = environment(NEAPTIDE_CACHE_DIR=str(folder / "cache"))
    done = warm.run(words, cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def state(folder: Path) -> dict[str, bytes]:
    (last,) = (folder / "checkpoints").glob("step-*32")
    return {name: (last / name).read_bytes() for name in STATE}


def test_a_short_file_trains_on_chats_and_a_run_in_two_parts_ends_the_same(tmp_path: Path) -> None:
    assert len(SFT.splitlines()) <= 15
    (tmp_path / "sft.toml").write_text(SFT, encoding="utf-8")
    save_tokenizer(tmp_path / "model")
    save_model(tmp_path / "model")
    write_chats(tmp_path / "chats.jsonl", chats(200))

    said = run(tmp_path, "whole")
    assert "data: 94 samples of 180 documents, 11,522 tokens, 4,217 of them count" in said
    assert "validation: 14 samples of 20 documents" in said
    with (tmp_path / "whole" / "steps.csv").open(encoding="utf-8") as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file)]
    assert losses[-1] < 0.7 * losses[0]

    run(tmp_path, "parts", "--set", "train.steps=13")  # an epoch has 24 batches
    run(tmp_path, "parts", "--resume", "auto", "--allow-changes")
    assert state(tmp_path / "whole") == state(tmp_path / "parts")


def test_the_configuration_on_the_page_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "hugging-face.md"
    found = blocks(page)
    run_page(page, [(block.line, block.text) for block in found if block.language == "python"])
    (configuration,) = (block for block in found if block.file)
    (tmp_path / str(configuration.file)).write_text(configuration.text, encoding="utf-8")
    assert " of them count for the loss" in run(tmp_path, "here")
