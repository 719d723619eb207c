"""Models of transformers by name: their weights, their training, and what is wrong with a name."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import disks
import pytest
import torch
from huggingface_families import FAMILIES, batches, saved
from support import DEVICE
from transformers import LlamaConfig, LlamaForCausalLM

from neaptide import ConfigError, HybridTrainer
from neaptide.hooks.enabling import configured
from neaptide_plugins.huggingface_models.config import HuggingFaceOptions
from neaptide_plugins.huggingface_models.loading import load
from neaptide_toolkit.machine.mappings import cached_part
from neaptide_toolkit.offload.disk.file_spans import reads_directly

if TYPE_CHECKING:
    from collections.abc import Iterator


def config(folder: Path, *, plugins: dict[str, Any] | None = None, **options: Any) -> Any:
    given = {
        "version": 1,
        "model": {"name": f"hf:{folder}", "options": options},
        "optimizer": {"name": "adamw", "lr": 1e-3},
        "plugins": plugins or {},
    }
    return configured(given, ())[0]


def trained(family: str, settings: Any) -> tuple[list[float], str]:
    with HybridTrainer.from_config(settings) as trainer:
        losses = [trainer.step(batch).loss for batch in batches(family, 3)]
        return losses, trainer.digest()


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_and_losses_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    expected = saved(family, tmp_path).train().to(DEVICE)
    with HybridTrainer.from_config(config(tmp_path)) as trainer:
        model = trainer.model
        assert type(model) is type(expected)
        assert model.training
        weights, wanted = model.state_dict(), expected.state_dict()
        assert weights.keys() == wanted.keys()
        assert all(torch.equal(weights[name], wanted[name]) for name in wanted)
        batch = {name: values.to(DEVICE) for name, values in batches(family, 1)[0].items()}
        assert trainer.step(batch).loss == pytest.approx(expected(**batch).loss.item(), rel=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_streamed_model_trains_to_the_bits_of_a_resident_one(family: str, tmp_path: Path) -> None:
    saved(family, tmp_path)
    streaming = {"layer-streaming": {"resident": 0}}
    resident = trained(family, config(tmp_path))
    assert resident == trained(family, config(tmp_path, plugins=streaming))


@pytest.fixture
def cold() -> Iterator[Path]:
    """Yield a model of 52 MiB in two files, of which the page cache has nothing."""
    with TemporaryDirectory(dir=disks.folder()) as made:
        folder = Path(made)
        config = LlamaConfig(
            vocab_size=1024,
            hidden_size=1024,
            intermediate_size=1024,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=True,
        )
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="40MB")
        for path in folder.glob("*.safetensors"):
            with path.open("rb") as file:
                os.fsync(file)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if not reads_directly(path):
                pytest.skip("this file system keeps its files in RAM, or has no O_DIRECT")
        yield folder


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="only Linux reads past its cache")
@pytest.mark.parametrize(
    "plugins",
    [
        {},
        {"layer-streaming": {"resident": 0}},
        {"layer-streaming": {"resident": 1, "update": "in_backward"}},
        {"lora": {"base": "int8"}},
        {"lora": {"base": "int8"}, "layer-streaming": {"resident": 0}},
    ],
)
def test_a_cold_model_is_read_past_the_page_cache_to_the_same_bits(
    cold: Path, plugins: dict[str, Any]
) -> None:
    def run() -> tuple[list[float], str]:
        with HybridTrainer.from_config(config(cold, plugins=plugins)) as trainer:
            losses = [trainer.step(batch).loss for batch in batches("llama", 2)]
            return losses, trainer.digest()

    found = run()
    cached = [cached_part(path) or 0 for path in cold.glob("*.safetensors")]
    assert max(cached) < 0.2
    for path in cold.glob("*.safetensors"):
        path.read_bytes()
    assert found == run()


def test_a_file_that_the_disk_cannot_read_is_said_in_one_line(
    cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", refuse)
    with pytest.raises(ConfigError) as caught:
        load(str(cold), HuggingFaceOptions())
    assert "Input/output error" in str(caught.value)
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "saved"])
@pytest.mark.parametrize("from_config", [False, True])
def test_weights_have_the_dtype(dtype: str, *, from_config: bool, tmp_path: Path) -> None:
    model = saved("llama", tmp_path)
    model.to(torch.float16).save_pretrained(tmp_path)
    options = HuggingFaceOptions(dtype=dtype, from_config=from_config)
    found = {weight.dtype for weight in load(str(tmp_path), options).parameters()}
    assert found == {torch.float16 if dtype == "saved" else getattr(torch, dtype)}


def test_random_weights_follow_the_seed_and_need_no_files(tmp_path: Path) -> None:
    model = saved("llama", tmp_path)
    (tmp_path / "model.safetensors").unlink()

    def head(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        made = load(str(tmp_path), HuggingFaceOptions(from_config=True))
        return made.lm_head.weight.detach()

    assert torch.equal(head(3), head(3))
    assert not torch.equal(head(3), head(4))
    assert head(3).std().item() == pytest.approx(model.config.initializer_range, rel=0.2)


def test_values_of_the_configuration_are_replaced(tmp_path: Path) -> None:
    saved("llama", tmp_path)
    options = HuggingFaceOptions(from_config=True, config={"num_hidden_layers": 5})
    model = load(str(tmp_path), options)
    assert len(model.model.layers) == 5
    assert model.config.use_cache is False


def test_a_task_gives_a_new_head_and_says_so(tmp_path: Path) -> None:
    saved("bert", tmp_path)
    options = HuggingFaceOptions(task="sequence-classification", config={"num_labels": 3})
    with pytest.warns(UserWarning, match=r"4 tensors .* random values: .*classifier\.bias"):
        model = load(str(tmp_path), options)
    assert model.classifier.out_features == 3


def test_the_attention_is_that_which_is_written(tmp_path: Path) -> None:
    saved("llama", tmp_path)
    found = load(str(tmp_path), HuggingFaceOptions(attention="eager"))
    assert found.config._attn_implementation == "eager"


def broken(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-40])


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def changed(**values: Any) -> Any:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


WRONG: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no weights": (without_weights, {}, r"cannot be loaded: OSError: .* no file named .* @ model"),
    "cut weights": (broken, {}, r"cannot be loaded: .* @ model\.name"),
    "no config": (without_config, {}, r"has no config\.json; give a directory"),
    "a layer too few": (changed(num_hidden_layers=3), {}, r"lacks 9 tensors: model\.layers\.2"),
    "an unknown kind": (changed(model_type="lama"), {}, r"cannot be loaded: .*lama.* @ model"),
    "an unknown class": (
        changed(architectures=["Mine"]),
        {},
        r"the architectures \['Mine'\], which .* @ model\.options\.task",
    ),
    "a wrong key": (
        lambda _: None,
        {"config": {"num_hidden_layer": 3}},
        r"LlamaConfig has no 'num_hidden_layer' \(did you mean 'num_hidden_layers'\?\)",
    ),
    "a wrong attention": (lambda _: None, {"attention": "fast"}, "cannot be loaded: .*fast"),
    "no such task": (
        lambda _: None,
        {"task": "image-classification"},
        "cannot be loaded: ValueError: Unrecognized configuration class",
    ),
    "code of its own": (
        changed(auto_map={"AutoConfig": "mine.Config"}, model_type="mine"),
        {},
        "trust_remote_code",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_loaded_is_told_in_a_line(name: str, tmp_path: Path) -> None:
    saved("llama", tmp_path)
    change, options, message = WRONG[name]
    change(tmp_path)
    with pytest.raises(ConfigError, match=message) as caught:
        load(str(tmp_path), HuggingFaceOptions(**options))
    assert "\n" not in str(caught.value)


def with_code(folder: Path) -> Path:
    """Write a model whose config is Python code; return what the code makes when it runs."""
    saved("llama", folder)
    ran = folder / "ran"
    (folder / "mine.py").write_text(
        "from pathlib import Path\n"
        "from transformers import LlamaConfig\n\n\n"
        "class Config(LlamaConfig):\n"
        "    model_type = 'mine'\n\n\n"
        f"Path({str(ran)!r}).touch()\n"
    )
    changed(auto_map={"AutoConfig": "mine.Config"}, model_type="mine")(folder)
    return ran


def test_code_of_a_model_runs_only_if_that_is_written_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hf"))
    ran = with_code(tmp_path)
    with pytest.raises(ConfigError, match=r"trust_remote_code = true to run it @ model\.options"):
        load(str(tmp_path), HuggingFaceOptions())
    assert not ran.exists()
    with pytest.warns(UserWarning, match="code that comes with the model runs, from"):
        load(str(tmp_path), HuggingFaceOptions(trust_remote_code=True))
    assert ran.exists()


def test_code_of_a_model_does_not_run_if_the_task_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hf"))
    ran = with_code(tmp_path)
    changed(architectures=["Mine"])(tmp_path)
    with pytest.raises(ConfigError, match=r"@ model\.options\.task"):
        load(str(tmp_path), HuggingFaceOptions(trust_remote_code=True))
    assert not ran.exists()


@pytest.mark.parametrize("name", ["neaptide/no-such-model", "not an id", "a/b/c"])
def test_a_name_that_is_nowhere_is_told_in_a_line(name: str) -> None:
    with pytest.raises(ConfigError, match=r"is no directory, and .* @ model\.name") as caught:
        load(name, HuggingFaceOptions())
    assert "\n" not in str(caught.value)


def test_wrong_options_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"dtpye.*did you mean 'dtype'"):
        config(tmp_path, dtpye="bfloat16")


def test_a_plan_reads_no_weights(tmp_path: Path) -> None:
    saved("llama", tmp_path / "model")
    without_weights(tmp_path / "model")
    (tmp_path / "mine.py").write_text(
        "import torch\n\n\ndef data(batch_size):\n"
        "    one = torch.ones(batch_size, 8, dtype=torch.int64)\n"
        "    return [{'input_ids': one, 'labels': one}] * 4\n"
    )
    (tmp_path / "my.toml").write_text(
        f'version = 1\nmodel.name = "hf:{tmp_path}/model"\ndata.name = "mine:data"\n'
    )
    command = [sys.executable, "-m", "neaptide", "plan", "my.toml", "--device", "rtx4090", "--json"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["fits"] is True
