"""The byte model of the quickstart continues a text; other models say what they are not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from neaptide import WrongCheckpointError
from neaptide.checkpoint import checkpoints, load
from neaptide_plugins.builtin_models.byte_gpt import build
from neaptide_plugins.builtin_models.config import ByteGptOptions
from neaptide_toolkit.saved_runs.finding import find
from neaptide_toolkit.saved_runs.loading import load_weights
from neaptide_verbs.sample.by_bytes import continued

QUICKSTART = Path(__file__).resolve().parents[3] / "examples" / "quickstart.toml"
SHORT = {"train.steps": 30, "eval.every": 0, "model.options.layers": 2}
PROMPT = "def main(" + 15 * "x = 1;  "
"""The model sees 128 bytes: soon it no longer sees the first ones."""


def settings(**more: Any) -> list[str]:
    """Return the options of a short run."""
    return [
        word
        for key, value in {**SHORT, "run.dir": "quick", **more}.items()
        for word in ("--set", f"{key}={value}")
    ]


def test_the_quickstart_continues_a_text(command: Any) -> None:
    assert 0 == command("run", QUICKSTART, *settings()).code
    done = command("sample", "quick", PROMPT, "--tokens", "40")
    assert (0, "") == (done.code, done.err)
    model = build(ByteGptOptions(layers=2)).eval()
    weights = load(checkpoints(Path("quick/checkpoints"))[-1]).tensors("weights")
    model.load_state_dict(dict(weights))
    found = [*PROMPT.encode()]
    with torch.no_grad():
        for _ in range(40):
            found.append(int(model(torch.tensor([found[-128:]]))[0, -1].argmax()))
    assert bytes(found).decode(errors="replace").rstrip() == done.out.rstrip()


def test_a_seed_gives_one_text(neaptide: Any) -> None:
    assert 0 == neaptide("run", QUICKSTART, *settings()).code

    def said(*more: object) -> str:
        return str(json.loads(neaptide("sample", "quick", "a", "--json", *more).out)["text"])

    warm = ("--temperature", "2")
    assert said(*warm, "--seed", 1) == said(*warm, "--seed", 1) != said(*warm, "--seed", 2)
    assert said() == said("--seed", 9)


def test_a_low_temperature_is_that_of_zero() -> None:
    torch.manual_seed(0)
    model = build(ByteGptOptions(layers=1, context=4)).eval()
    assert continued(model, "ä tide", 20, 0.0) == continued(model, "ä tide", 20, 1e-300)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nowhere", "a"), 2, "there is no checkpoint in nowhere; give a checkpoint, a folder"),
        (("runs/tiny", "a"), 2, "'tiny_task:model' is not a language model that generates text"),
        (("runs/tiny", "a", "--tokens", "0"), 2, "give a whole number from 1 (got 0) @ --tokens"),
        (("runs/tiny", "a", "--seed", "-1"), 2, "give a whole number from 0 (got -1) @ --seed"),
        (("runs/tiny", "a", "--temperature", "nan"), 2, "from 0 (got nan) @ --temperature"),
        (("runs/tiny", "a", "--device", "tpu"), 2, "'device' must be auto, cpu, cuda[:N]"),
        (("runs/tiny", "a", "--step", "9"), 2, "runs/tiny has no checkpoint of step 9"),
        (("runs/tiny", "a\udcff"), 2, "the prompt is not valid UTF-8"),
        (("runs/tiny",), 2, "requires an argument"),
        (("runs/tiny", ""), 2, "an argument is empty"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_sampled_is_one_line(
    neaptide: Any, arguments: tuple[str, ...], code: int, said: str
) -> None:
    assert 0 == neaptide("run", "tiny.toml", "--set", "train.steps=2").code
    done = neaptide("sample", *arguments)
    line = done.err.splitlines()[-1]
    assert (code, "", True) == (done.code, done.out, said in line), line


def test_a_damaged_checkpoint_is_one_line(neaptide: Any) -> None:
    assert 0 == neaptide("run", QUICKSTART, *settings(**{"train.steps": 2})).code
    (path,) = Path("quick/checkpoints").glob("*/weights.safetensors")
    path.write_bytes(path.read_bytes()[:-1])
    done = neaptide("sample", "quick", "a")
    (line,) = done.err.splitlines()
    assert (1, "") == (done.code, done.out)
    assert "choose another with --step (neaptide ckpt list quick)" in line


def test_another_model_than_the_saved_one_is_one_line(neaptide: Any) -> None:
    assert 0 == neaptide("run", QUICKSTART, *settings(**{"train.steps": 2})).code
    checkpoint = find(Path("quick")).checkpoint
    for options, said in [
        ({"layers": 3}, "is only in the model"),
        ({"layers": 2, "context": 8}, "in the checkpoint but torch.float32 [8, 128] in the model"),
    ]:
        with pytest.raises(WrongCheckpointError, match=re.escape(said)):
            load_weights(build(ByteGptOptions(**options)), checkpoint)
