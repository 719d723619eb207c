"""What is exported of a model of transformers, its `from_pretrained` loads as it was trained."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from huggingface_families import FAMILIES, batches, saved
from safetensors import safe_open
from support import DEVICE, same_tensors
from trained_models import STEPS, logits, trained

from neaptide import HybridTrainer
from neaptide.checkpoint import load
from neaptide_verbs.export import for_transformers

if TYPE_CHECKING:
    from collections.abc import Iterable

SHARD = "0.00002"  # GB


def stored(folder: str) -> dict[str, torch.Tensor]:
    """Return all tensors in the files of a directory."""
    found: dict[str, torch.Tensor] = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return found


def loaded(family: str, folder: str, **how: Any) -> Any:
    """Return the model that transformers loads; it must miss nothing and find nothing more."""
    cls = getattr(transformers, FAMILIES[family][1])
    model, told = cls.from_pretrained(folder, output_loading_info=True, **how)
    assert not any(told.values()), told
    return model.eval()


def lines(text: str) -> list[str]:
    """Return the lines of stderr without the progress bars of the models that the tests make."""
    return [line for line in text.splitlines() if line and "%|" not in line]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("family", FAMILIES)
def test_from_pretrained_gives_the_logits_and_the_files_of_save_pretrained(
    neaptide: Any, family: str
) -> None:
    expected = trained(family)
    done = neaptide("export", "run", "--to", "out", "--max-shard", SHARD)
    assert (0, []) == (done.code, lines(done.err))
    model = loaded(family, "out")
    assert torch.equal(logits(expected, family), logits(model, family))
    assert same_tensors(expected.state_dict(), model.state_dict())
    assert same_tensors(stored("theirs"), stored("out"))
    index = json.loads(Path("out/model.safetensors.index.json").read_text())
    assert {*index["weight_map"]} == {*stored("out")}
    theirs, ours = (
        json.loads(Path(folder, "config.json").read_text()) for folder in ("theirs", "out")
    )
    assert theirs == ours


def test_a_process_of_its_own_prints_one_line(command: Any, folder: Path) -> None:
    expected = trained("llama")
    done = command("export", "run")
    (line,) = done.out.splitlines()
    assert (0, True) == (done.code, line.startswith(f"run-step-{STEPS}: step {STEPS}, 1 file, "))
    assert torch.equal(
        logits(expected, "llama"), logits(loaded("llama", line.split(":")[0]), "llama")
    )
    assert {"base", "theirs", "run", f"run-step-{STEPS}", "tiny.toml", "tiny_task.py"} == {
        path.name for path in folder.iterdir()
    }


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("master", ["weights", "split"])
def test_a_streamed_model_is_exported_as_it_was_trained(neaptide: Any, master: str) -> None:
    streaming = {"layer-streaming": {"resident": 0, "master": master}}
    expected = trained("qwen2", options={"dtype": "bfloat16"}, plugins=streaming)
    assert 0 == neaptide("export", "run", "--to", "out").code
    model = loaded("qwen2", "out")
    assert torch.bfloat16 == model.dtype
    assert torch.equal(logits(expected, "qwen2"), logits(model, "qwen2"))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)],
)
def test_weights_are_converted(neaptide: Any, name: str, dtype: torch.dtype) -> None:
    trained("llama").to(dtype).save_pretrained("theirs")
    expected = loaded("llama", "theirs")
    assert 0 == neaptide("export", "run", "--to", "out", "--dtype", name).code
    model = loaded("llama", "out")
    assert same_tensors(expected.state_dict(), model.state_dict())
    assert torch.equal(logits(expected, "llama"), logits(model, "llama"))


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_average_of_the_weights_is_exported(neaptide: Any, dtype: str) -> None:
    model = trained("qwen2", options={"dtype": dtype}, plugins={"ema": {"decay": 0.9}})
    assert 0 == neaptide("export", "run", "--to", "out", "--average").code
    assert "average of the plugin ema" in Path("out/README.md").read_text()
    assert 0 == neaptide("export", "run", "--to", "plain").code
    averages = _averages()
    found, weights = loaded("qwen2", "out"), stored("plain")
    for weight, (name, parameter) in zip(weights, model.named_parameters(), strict=True):
        del weight
        assert torch.equal(averages[name].to(parameter.dtype), dict(found.named_parameters())[name])
        assert not torch.equal(parameter, dict(found.named_parameters())[name])


def _averages() -> dict[str, torch.Tensor]:
    checkpoint = load(Path(f"run/checkpoints/step-{STEPS:08}"))
    averages: dict[str, torch.Tensor] = checkpoint.section("plugins")["ema"]["averages"]
    return averages


@pytest.mark.usefixtures("folder")
def test_frozen_weights_beside_the_checkpoint_are_exported(neaptide: Any) -> None:
    saved("llama", Path("base"))
    config: dict[str, Any] = {
        "model": {"name": "hf:base"},
        "run": {"dir": "run", "frozen": "reference"},
        "train": {"steps": STEPS, "device": str(DEVICE)},
    }
    with HybridTrainer.from_config(config) as trainer:
        for name, parameter in trainer.model.named_parameters():
            parameter.requires_grad_("norm" in name)
        trainer.fit(batches("llama", STEPS))
        state = {name: value.cpu() for name, value in trainer.model.state_dict().items()}
    assert [*Path("run/checkpoints").glob("frozen-*")]
    assert 0 == neaptide("export", "run", "--to", "out").code
    assert same_tensors(state, loaded("llama", "out").state_dict())


@pytest.mark.usefixtures("folder")
def test_the_configuration_is_the_models_with_what_the_run_replaced(neaptide: Any) -> None:
    changed = {"config": {"rms_norm_eps": 1e-3}}
    trained("llama", options=changed)
    assert 0 == neaptide("export", "run", "--to", "out").code
    config = json.loads(Path("out/config.json").read_text())
    assert (1e-3, True) == (config["rms_norm_eps"], config["use_cache"])


BUFFERED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "resnet": (
        "ResNetConfig",
        "ResNetForImageClassification",
        {
            "embedding_size": 8,
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "layer_type": "basic",
            "num_labels": 3,
        },
    ),
    "bart": (
        "BartConfig",
        "BartForConditionalGeneration",
        {
            "vocab_size": 96,
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "max_position_embeddings": 32,
        },
    ),
}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("family", BUFFERED)
def test_persistent_buffers_are_exported(neaptide: Any, family: str) -> None:
    settings, name, options = BUFFERED[family]
    cls = getattr(transformers, name)
    cls(getattr(transformers, settings)(**options)).save_pretrained("base")
    config = {
        "model": {"name": "hf:base"},
        "run": {"dir": "run"},
        "train": {"steps": 2, "device": str(DEVICE)},
    }
    batch = {"input_ids": torch.randint(3, 96, (2, 6)), "labels": torch.randint(3, 96, (2, 6))}
    if family == "resnet":
        batch = {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 2])}
    with HybridTrainer.from_config(config) as trainer:
        trainer.fit([batch] * 2)
        state = {key: value.cpu() for key, value in trainer.model.state_dict().items()}
        assert state.keys() & {key for key, _ in trainer.model.named_buffers()}
    assert 0 == neaptide("export", "run", "--to", "out").code
    model, told = cls.from_pretrained("out", output_loading_info=True)
    assert not any(told.values())
    assert same_tensors(state, model.state_dict())


@pytest.mark.usefixtures("folder")
def test_a_new_head_is_exported(neaptide: Any) -> None:
    saved("llama", Path("base"))
    options = {"task": "sequence-classification", "config": {"num_labels": 3}}
    config = {
        "model": {"name": "hf:base", "options": options},
        "run": {"dir": "run"},
        "train": {"steps": 1, "device": str(DEVICE)},
    }
    batch = {"input_ids": torch.ones(2, 4).long(), "labels": torch.tensor([0, 2])}
    with pytest.warns(UserWarning, match="start with random values"):
        trainer = HybridTrainer.from_config(config)
    with trainer:
        trainer.fit([batch])
        state = {name: value.cpu() for name, value in trainer.model.state_dict().items()}
    assert 0 == neaptide("export", "run", "--to", "out").code
    cls = transformers.AutoModelForSequenceClassification
    model, told = cls.from_pretrained("out", output_loading_info=True)
    assert not any(told.values())
    assert same_tensors(state, model.state_dict())
    assert 3 == model.config.num_labels


@pytest.mark.usefixtures("folder")
def test_files_of_the_generation_and_the_tokenizer_are_copied(neaptide: Any) -> None:
    trained("llama")
    names = ["generation_config.json", "tokenizer.json", "chat_template.jinja"]
    for name in names:
        Path("base", name).write_text(f'{{"file": "{name}"}}')
    assert 0 == neaptide("export", "run", "--to", "out").code
    for name in names:
        assert Path("base", name).read_bytes() == Path("out", name).read_bytes()
    card = Path("out/README.md").read_text()
    assert all(part in card for part in ("| base model | `base` |", "| run | `run` |", "sha256 "))


@pytest.mark.usefixtures("folder")
def test_the_tokenizer_of_the_data_comes_first(neaptide: Any) -> None:
    words = Path("words")
    words.mkdir()
    (words / "tokenizer.json").write_text("{}")
    trained("llama", sections={"data": {"name": "mine:data", "options": {"tokenizer": "words"}}})
    Path("base/tokenizer.json").write_text("[]")
    Path("base/preprocessor_config.json").write_text("[]")
    assert 0 == neaptide("export", "run", "--to", "out").code
    assert "{}" == Path("out/tokenizer.json").read_text()
    assert "[]" == Path("out/preprocessor_config.json").read_text()


@pytest.mark.usefixtures("folder")
def test_a_file_that_may_be_any_is_not_copied(
    neaptide: Any, caplog: pytest.LogCaptureFixture
) -> None:
    Path("secret").write_text("private")
    options = {"tokenizer": "base", "chat_template": "secret"}
    trained("llama", sections={"data": {"name": "mine:data", "options": options}})
    caplog.clear()
    assert 0 == neaptide("export", "run", "--to", "out").code
    assert not Path("out/chat_template.jinja").exists()
    (line,) = caplog.messages
    assert line.startswith("the run's chat template is not exported: copy secret to ")


@pytest.mark.usefixtures("folder")
def test_a_link_out_of_the_models_directory_is_not_copied(neaptide: Any) -> None:
    trained("llama")
    Path("secret").write_text("private")
    Path("base/tokenizer.json").symlink_to(Path("secret").resolve())
    done = neaptide("export", "run", "--to", "out")
    assert (2, False) == (done.code, Path("out").exists())
    assert "tokenizer.json is a link that leads out of " in lines(done.err)[-1]


@pytest.mark.usefixtures("folder")
def test_links_of_hugging_faces_cache_are_followed(
    neaptide: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained("llama")
    Path("base/tokenizer.json").write_text("{}")
    home = Path("hub/models--one--llama")
    for part in ("blobs", "refs", "snapshots/abc"):
        (home / part).mkdir(parents=True)
    (home / "refs/main").write_text("abc")
    for path in Path("base").iterdir():
        blob = home / "blobs" / path.name
        path.replace(blob)
        (home / "snapshots/abc" / path.name).symlink_to(Path("../../blobs") / path.name)
    Path("base").rmdir()
    Path("base").symlink_to(home / "snapshots/abc")
    del monkeypatch
    assert 0 == neaptide("export", "run", "--to", "out").code
    assert not Path("out/tokenizer.json").is_symlink()
    assert "{}" == Path("out/tokenizer.json").read_text()


@pytest.mark.usefixtures("folder")
def test_values_beyond_float16_are_refused(neaptide: Any) -> None:
    trained("llama", sections={"optimizer": {"name": "sgd", "lr": 1e9}})
    done = neaptide("export", "run", "--to", "out", "--dtype", "fp16")
    assert (2, False) == (done.code, Path("out").exists())
    assert " has values beyond 65504; choose bf16 or fp32 @ --dtype" in lines(done.err)[-1]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ({"hidden_size": 64}, " is [96, 32] in the checkpoint but [96, 64] in base; restore"),
        ({"num_hidden_layers": 1}, " is only in the checkpoint; load it into the model it was"),
    ],
)
def test_other_files_of_the_model_are_refused(
    neaptide: Any, harm: dict[str, int], said: str
) -> None:
    trained("llama")
    path = Path("base/config.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **harm}))
    done = neaptide("export", "run", "--to", "out")
    assert (2, False) == (done.code, Path("out").exists())
    assert said in lines(done.err)[-1]


@pytest.mark.usefixtures("folder")
def test_a_lost_base_model_is_one_line(neaptide: Any) -> None:
    trained("llama")
    Path("base").rename("moved")
    done = neaptide("export", "run", "--to", "out")
    assert (2, False) == (done.code, Path("out").exists())
    (line,) = lines(done.err)
    assert line.startswith("error: 'base' is no directory, and there is no model of this id in ")
    assert line.endswith("; put the files of the base model there again @ model.name")


@pytest.mark.usefixtures("folder")
def test_python_code_of_a_model_is_not_run(neaptide: Any) -> None:
    trained("llama", options={"trust_remote_code": True})
    done = neaptide("export", "run", "--to", "out")
    assert (2, False) == (done.code, Path("out").exists())
    assert "@ model.options.trust_remote_code" in lines(done.err)[-1]


@pytest.mark.parametrize("family", ["llama", "qwen2", "vit"])
def test_transformers_4_stores_the_names_of_the_model(
    folder: Path, neaptide: Any, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    del folder
    expected = trained(family)
    monkeypatch.setattr(for_transformers, "revert_weight_conversion", None)
    assert 0 == neaptide("export", "run", "--to", "out").code
    assert torch.equal(logits(expected, family), logits(loaded(family, "out"), family))


@pytest.mark.usefixtures("folder")
def test_missing_transformers_is_one_line(neaptide: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trained("llama")
    for name in [*sys.modules]:
        if name.startswith("neaptide_verbs.export."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    done = neaptide("export", "run", "--to", "out")
    assert (2, False) == (done.code, Path("out").exists())
    assert lines(done.err)[-1].endswith('pip install "neaptide[hf]" @ model.name')


def test_parts_that_cannot_be_told_keep_the_names_of_the_model(
    folder: Path, neaptide: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    del folder
    expected = trained("mixtral")

    def copied(_model: Any, state: dict[str, torch.Tensor]) -> Iterable[Any]:
        return {f"{name}.other": one + 0 for name, one in state.items()}

    monkeypatch.setattr(for_transformers, "revert_weight_conversion", copied)
    assert 0 == neaptide("export", "run", "--to", "out").code
    assert {*stored("out")} == {name for name, _ in expected.named_parameters()}
    assert torch.equal(logits(expected, "mixtral"), logits(loaded("mixtral", "out"), "mixtral"))
