"""A trained model of transformers says what transformers' own `generate` makes of its files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from chats_and_texts import PLAIN, save_model, save_tokenizer
from huggingface_families import saved
from support import DEVICE
from transformers import AutoModelForCausalLM, AutoTokenizer

from neaptide import HybridTrainer

ENDED = "<|user|>the tide<|end|><|assistant|>"
pytestmark = pytest.mark.usefixtures("folder")


def train(template: str | None = PLAIN, **sections: Any) -> None:
    """Train a small Llama with a tokenizer, both in `base`, in the run directory `run`."""
    save_model(Path("base"))
    save_tokenizer(Path("base"), template)
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(4, 300, (4, 16), generator=generator)
    config = {
        "model": {"name": "hf:base"},
        "run": {"dir": "run"},
        "train": {"steps": 3, "device": str(DEVICE)},
        "optimizer": {"name": "adamw", "lr": 0.02},
        **sections,
    }
    with HybridTrainer.from_config(config) as trainer:
        trainer.fit([{"input_ids": tokens, "labels": tokens}] * 3)


def expected(text: str, count: int, **how: Any) -> str:
    """Return what the exported model generates after `text`, without the special tokens."""
    model = AutoModelForCausalLM.from_pretrained("out").to(DEVICE).eval()
    tokenizer = AutoTokenizer.from_pretrained("base")
    given = tokenizer(text, return_tensors="pt")["input_ids"].to(DEVICE)
    (out,) = model.generate(
        given,
        attention_mask=torch.ones_like(given),
        max_new_tokens=count,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
        **how,
    )
    found: str = tokenizer.decode(out[given.shape[1] :], skip_special_tokens=True)
    return found


def test_a_chat_is_answered_and_a_raw_prompt_continued(neaptide: Any) -> None:
    train()
    assert 0 == neaptide("export", "run", "--to", "out").code
    done = neaptide("sample", "run", "the tide", "--tokens", "12")
    assert (0, expected(ENDED, 12, do_sample=False)) == (done.code, _text(done))
    done = neaptide("sample", "run", "the tide", "--tokens", "12", "--raw")
    assert "the tide" + expected("the tide", 12, do_sample=False) == _text(done)


@pytest.mark.parametrize(
    "data", [None, {"name": "text:texts/*.txt", "options": {"tokenizer": "base"}}]
)
def test_texts_are_continued_without_a_template(neaptide: Any, data: Any) -> None:
    train(None if data is None else PLAIN, **({} if data is None else {"data": data}))
    assert 0 == neaptide("export", "run", "--to", "out").code
    done = neaptide("sample", "run", "the tide", "--tokens", "12")
    assert "the tide" + expected("the tide", 12, do_sample=False) == _text(done)


def _text(done: Any) -> str:
    found: str = done.out
    return found.removesuffix("\n")


def test_a_seed_gives_one_text(neaptide: Any) -> None:
    train()

    def said(seed: int, temperature: float) -> str:
        done = neaptide(
            "sample", "run", "tide", "--seed", seed, "--temperature", temperature, "--json"
        )
        return str(json.loads(done.out)["text"])

    assert said(1, 1.0) == said(1, 1.0) != said(2, 1.0)
    assert said(1, 0.0) == said(2, 0.0)


def test_stdout_of_a_process_is_the_text_alone(command: Any) -> None:
    train()
    done = command("sample", "run", "the tide", "--tokens", "3")
    assert (0, "") == (done.code, done.err)
    assert done.out == command("sample", "run/checkpoints", "the tide", "--tokens", "3").out


def test_what_a_terminal_obeys_or_cannot_show_is_escaped(command: Any) -> None:
    train(None)
    done = command(
        "sample", "run", "tide \x1b[2J \u00e9", "--tokens", "1", PYTHONIOENCODING="ascii"
    )
    assert (0, "") == (done.code, done.err)
    assert done.out.startswith("tide \\u001b[2J \\xe9")


def test_the_weights_of_the_base_model_are_not_needed(neaptide: Any) -> None:
    train()
    before = neaptide("sample", "run", "tide").out
    Path("base/model.safetensors").unlink()
    assert before == neaptide("sample", "run", "tide").out


def test_a_tokenizer_and_a_template_of_the_data_come_first(neaptide: Any) -> None:
    train(data={"name": "jsonl:a", "options": {"tokenizer": "words", "chat_template": "own.jinja"}})
    save_tokenizer(Path("words"), PLAIN)
    for path in Path("base").glob("*token*"):
        path.unlink()
    Path("own.jinja").write_text("{{ messages[0]['content'] }}")
    done = neaptide("sample", "run", "the tide", "--tokens", "5")
    raw = neaptide("sample", "run", "the tide", "--tokens", "5", "--raw")
    assert (0, f"the tide{_text(done)}") == (done.code, _text(raw))


def test_a_lost_template_of_the_data_is_one_line(neaptide: Any) -> None:
    train(data={"name": "jsonl:a", "options": {"tokenizer": "base", "chat_template": "lost"}})
    done = neaptide("sample", "run", "tide")
    line = done.err.splitlines()[-1]
    assert 2 == done.code
    assert line.startswith("error: cannot read 'lost': FileNotFoundError: ")
    assert line.endswith(" @ data.options.chat_template")


def test_without_a_tokenizer_it_is_one_line(neaptide: Any) -> None:
    train()
    for path in [*Path("base").glob("*token*"), Path("base/chat_template.jinja")]:
        path.unlink()
    done = neaptide("sample", "run", "tide")
    line = done.err.splitlines()[-1]
    assert (2, "") == (done.code, done.out)
    assert line.startswith("error: there is no tokenizer in base (")
    assert line.endswith("or name another directory @ data.options.tokenizer")


def test_a_lost_tokenizer_of_the_data_is_one_line(
    neaptide: Any, caplog: pytest.LogCaptureFixture
) -> None:
    train(data={"name": "jsonl:a", "options": {"tokenizer": "words"}})
    done = neaptide("sample", "run", "tide")
    said = "the tokenizer 'words' is no directory, and not on this machine @ data.options.tokenizer"
    assert (2, f"error: {said}") == (done.code, done.err.splitlines()[-1])
    assert 0 == neaptide("export", "run", "--to", "out").code
    assert [f"exported without a tokenizer: {said}"] == caplog.messages


def test_more_tokens_than_the_model_sees_is_one_line(neaptide: Any) -> None:
    train()
    done = neaptide("sample", "run", "tide", "--tokens", "256", "--raw")
    assert 2 == done.code
    assert "tokens, and the model sees 256 together with the new ones (got 256)" in done.err


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("base", ["as-is", "int8"])
def test_a_model_with_adapters_is_sampled_with_them(neaptide: Any, base: str) -> None:
    lora = {"base": base, "r": 4}
    train(plugins={"lora": lora}, optimizer={"name": "adamw", "lr": 0.2})
    done = neaptide("sample", "run", "the tide", "--tokens", "12", "--raw")
    assert 0 == done.code
    model = AutoModelForCausalLM.from_pretrained("base")
    if base == "as-is":
        assert 0 == neaptide("export", "run", "--to", "out", "--merge").code
        assert "the tide" + expected("the tide", 12, do_sample=False) == _text(done)
    model.save_pretrained("out")
    assert "the tide" + expected("the tide", 12, do_sample=False) != _text(done)


@pytest.mark.parametrize("family", ["bert", "vit"])
def test_a_model_that_writes_no_text_is_one_line(neaptide: Any, family: str) -> None:
    from huggingface_families import batches

    saved(family, Path("base"))
    config = {
        "model": {"name": "hf:base"},
        "run": {"dir": "run"},
        "train": {"steps": 1, "device": str(DEVICE)},
    }
    with HybridTrainer.from_config(config) as trainer:
        trainer.fit(batches(family, 1))
    done = neaptide("sample", "run", "tide")
    said = "error: 'hf:base' is not a language model that generates text @ model.name"
    assert (2, "", said) == (done.code, done.out, done.err.splitlines()[-1])


def test_an_encoder_and_decoder_prints_what_it_decodes(neaptide: Any) -> None:
    from huggingface_families import batches

    saved("t5", Path("base"))
    config = {
        "model": {
            "name": "hf:base",
            "options": {"config": {"vocab_size": 300}, "from_config": True},
        },
        "run": {"dir": "run"},
        "train": {"steps": 1, "device": str(DEVICE)},
    }
    with HybridTrainer.from_config(config) as trainer:
        trainer.fit(batches("t5", 1))
    save_tokenizer(Path("words"), None)
    for path in Path("words").iterdir():
        shutil.copy(path, "base")
    done = neaptide("sample", "run", "tide", "--tokens", "4")
    assert 0 == done.code
    assert not done.out.startswith("tide")
