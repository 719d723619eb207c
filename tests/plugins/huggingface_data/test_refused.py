"""What is wrong with files, tokenizers and options is told in one line, before anything trains."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from chats_and_texts import chats, save_model, save_tokenizer, write_chats, write_texts

from neaptide import ConfigError, HybridTrainer, NeaptideError
from neaptide.hooks.enabling import configured
from neaptide.run.assembly import build_data

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GOOD = json.dumps({"text": "the tide rises"})
USER = [{"role": "user", "content": "the tide"}]
LINES: dict[str, tuple[list[str], dict[str, Any], str]] = {
    "broken JSON": ([GOOD, "", '{"text": "a'], {}, r"data\.jsonl, line 3 is no JSON: Untermin"),
    "no object": ([GOOD, "[1, 2]"], {}, r"line 2 must be an object .* \(got \[1, 2\]\)"),
    "no field": (
        [GOOD, '{"body": "a", "id": 1}'],
        {},
        r"line 2 has neither the field 'messages' nor a text in 'text' \(it has 'body', 'id'\)",
    ),
    "another field": ([GOOD], {"text": "body"}, r"line 1 has neither .* 'body' \(it has 'text'\)"),
    "no text": (['{"text": 3}'], {}, r"line 1 has neither .* nor a text in 'text'"),
    "no chat": (['{"messages": "hi"}'], {}, r"a chat must be a list .*'hi'\) in .*, line 1"),
    "no message": (['{"messages": ["hi"]}'], {}, r"each message must be .* in .*, line 1"),
    "an empty message": (
        [json.dumps({"messages": [*USER, {"role": "assistant", "content": None}]})],
        {},
        r'each message must have something beside its role, such as "content" in .*, line 1',
    ),
    "no assistant": (
        [GOOD, json.dumps({"messages": USER})],
        {},
        r"no turn of the assistant, so nothing counts for the loss in .*data\.jsonl, line 2 @",
    ),
    "no line": (["", " "], {}, r"has only empty lines"),
    "empty texts": (['{"text": ""}'], {}, r"the data have documents, but no tokens"),
    "nothing fits": (
        [json.dumps({"text": "the tide rises and falls"})] * 3,
        {"length": 2, "too_long": "drop"},
        r"no document of 3 can be used: 3 longer than 2 tokens @ data\.name",
    ),
    "few documents": ([GOOD] * 9, {}, r"batch size 4 is larger than the training data of 1 samp"),
    "a small share": ([GOOD] * 9, {"validation": 0.01}, r"a share of 0\.01 of 9 documents leaves"),
    "no tokenizer": (
        [GOOD],
        {"tokenizer": "nobody/nothing"},
        r"'nobody/nothing' is no directory, and there is no tokenizer .*download = true @ data",
    ),
    "no template": ([GOOD], {"chat_template": "gone.jinja"}, r"cannot read 'gone\.jinja': File"),
    "no cache": ([GOOD], {"cache": "/dev/null/here"}, r"cannot keep tokens in /dev/null/here"),
    "no validation": (
        [GOOD],
        {"validation": "*.none"},
        r"no file matches '\*\.none' .* @ data\.op",
    ),
}


def refused(config: Any, kind: type[NeaptideError] = NeaptideError) -> str:
    with HybridTrainer.from_config(config) as trainer, pytest.raises(kind) as caught:
        build_data(config, trainer.hooks)
    assert "\n" not in str(caught.value)
    assert "@ data" in str(caught.value) or "@ train" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("case", LINES)
def test_a_wrong_file_or_option_is_told(
    case: str, settings: Callable[..., Any], tmp_path: Path
) -> None:
    lines, options, told = LINES[case]
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    assert re.search(told, refused(settings(f"jsonl:{path}", **options)))


def test_no_file_and_an_empty_file_are_told(settings: Callable[..., Any], tmp_path: Path) -> None:
    assert "no file matches" in refused(settings(f"text:{tmp_path}/*.txt"))
    (tmp_path / "a.txt").write_text("the tide", encoding="utf-8")
    (tmp_path / "b.txt").touch()
    assert "b.txt is empty" in refused(settings(f"text:{tmp_path}/*.txt"))
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe")
    assert "b.txt is no UTF-8 text" in refused(settings(f"text:{tmp_path}/*.txt"))


def test_what_is_no_parquet_is_told(settings: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("the tide", encoding="utf-8")
    assert "cannot be read as parquet" in refused(settings(f"parquet:{tmp_path}/a.parquet"))


def test_a_chat_without_a_template_is_told(settings: Callable[..., Any], tmp_path: Path) -> None:
    path = write_chats(tmp_path / "chats.jsonl", chats(5))
    save_tokenizer(tmp_path / "plain", None)
    said = refused(settings(f"jsonl:{path}", tokenizer=str(tmp_path / "plain")))
    assert "line 1 is a chat, and the tokenizer has no chat template; name a file" in said


def test_a_directory_without_a_tokenizer_is_told(
    settings: Callable[..., Any], tmp_path: Path
) -> None:
    path = write_texts(tmp_path / "texts.jsonl", 5)
    said = refused(settings(f"jsonl:{path}", tokenizer=str(tmp_path)), ConfigError)
    assert "has no tokenizer that can be loaded" in said
    save_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}', encoding="utf-8")
    said = refused(settings(f"jsonl:{path}", tokenizer=str(tmp_path)), ConfigError)
    assert "has no tokenizer that can be loaded" in said


def test_a_tokenizer_that_does_not_fit_the_model_is_told(
    settings: Callable[..., Any], tmp_path: Path
) -> None:
    path = write_texts(tmp_path / "texts.jsonl", 5)
    save_model(tmp_path / "small", vocab_size=299)
    config = settings(f"jsonl:{path}")
    config = attrs.evolve(config, model=attrs.evolve(config.model, name=f"hf:{tmp_path}/small"))
    said = refused(config, ConfigError)
    assert "largest id is 299, and the model has 299 embeddings; name the model's tok" in said
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("name", "module"),
    [("jsonl:a", "transformers"), ("parquet:a", "pyarrow"), ("hf:a", "datasets")],
)
def test_a_library_that_is_missing_is_told(
    name: str, module: str, settings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from neaptide_plugins.huggingface_data import plugin

    monkeypatch.setattr(plugin, "find_spec", lambda asked: None if asked == module else asked)
    assert f'needs {module}: pip install "neaptide[hf]" @ data.name' in refused(settings(name))


def test_wrong_options_are_told_with_the_configuration(settings: Callable[..., Any]) -> None:
    for options, told in (
        ({"length": 1}, "'length' must be >= 2 (got 1)"),
        ({"validation": 1.5}, "'validation' must be between 0 and 1 (got 1.5)"),
        ({"truncation": "cut"}, "truncation"),
        ({"too_long": "keep"}, "too_long"),
    ):
        with pytest.raises(ConfigError) as caught:
            settings("jsonl:data.jsonl", **options)
        assert told in str(caught.value)
        assert "data.options" in str(caught.value)
    with pytest.raises(ConfigError, match="tokenizer"):
        configured({"data": {"name": "jsonl:data.jsonl"}})
