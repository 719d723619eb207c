"""What is exported is what libraries read, and what cannot be leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
import safetensors
import safetensors.torch
import torch
from exported import items
from limits import no_file_beyond
from support import same_tensors

from neaptide import CheckpointError
from neaptide.checkpoint import TensorItem
from neaptide_plugins.layer_streaming.weights.shards import Shards
from neaptide_toolkit.export import export

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("on_device")


@pytest.mark.usefixtures("on_cpu")  # transformers takes no default device
def test_an_index_is_as_the_library_reads_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config)
    state = model.state_dict()
    head = state.pop("lm_head.weight")
    assert head.data_ptr() == state["model.embed_tokens.weight"].data_ptr()
    tied = {"lm_head.weight": "model.embed_tokens.weight"}
    files = export(items(state), tmp_path / "m", max_shard_bytes=4000, tied=tied)
    assert len(files) > 2
    config.save_pretrained(tmp_path / "m")
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32)
    assert same_tensors(model.state_dict(), again.state_dict())
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.zero_()
    Shards.open(tmp_path / "m").load(dict(again.named_parameters(remove_duplicate=False)))
    assert same_tensors(model.state_dict(), again.state_dict())


def test_tied_names_are_told_in_the_metadata(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(2), "b": torch.ones(3)}
    first, second = export(
        items(tensors), tmp_path / "m", max_shard_bytes=8, tied={"c": "b", "d": "b"}
    )
    for file, expected in ((first, {}), (second, {"c": "b", "d": "b"})):
        with safetensors.safe_open(file, "pt") as opened:
            assert {"format": "pt", **expected} == opened.metadata()


@pytest.mark.parametrize(
    ("names", "tied", "message"),
    [
        (["a", "a"], {}, "two tensors are named 'a'"),
        (["a"], {"a": "a"}, "two tensors are named 'a'"),
        (["a"], {"b": "c"}, "'b' is tied to 'c', which is not exported"),
        (["a"], {f"{n:04}": "a" for n in range(400)}, "4096 bytes of metadata"),
    ],
)
def test_names_that_cannot_be_exported_leave_nothing(
    tmp_path: Path, names: list[str], tied: dict[str, str], message: str
) -> None:
    named = [TensorItem(name, *next(items({"x": torch.ones(1)}))[1:]) for name in names]
    with pytest.raises(CheckpointError, match=message):
        export(named, tmp_path / "m", tied=tied)
    assert [] == list(tmp_path.iterdir())


def test_a_directory_that_is_taken_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    export(items({"a": torch.ones(1)}), tmp_path / "empty")
    before = (tmp_path / "empty" / "model.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match="exists already; export to a new directory"):
        export(items({"a": torch.zeros(1)}), tmp_path / "empty")
    assert before == (tmp_path / "empty" / "model.safetensors").read_bytes()
    assert ["empty"] == [path.name for path in tmp_path.iterdir()]


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    refused = pytest.raises(CheckpointError, match=r"cannot export .*; free space, or export else")
    with no_file_beyond(10_000), refused:
        export(items({"a": torch.ones(5000)}), tmp_path / "m")
    assert [] == list(tmp_path.iterdir())


def test_reading_and_writing_take_no_more_memory_than_the_targets(tmp_path: Path) -> None:
    script = """
        import sys
        from contextlib import contextmanager
        from pathlib import Path
        import torch
        from neaptide.checkpoint import TensorItem
        from neaptide_toolkit.export import export
        from neaptide_plugins.layer_streaming.weights.shards import Shards

        def kib(what):
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith(what))

        @contextmanager
        def loaded(number):
            yield torch.full((8, 2**20), number)

        def run(root, count):
            named = [
                TensorItem(f"{n}", torch.float32, (8, 2**20), lambda n=float(n): loaded(n))
                for n in range(count)
            ]
            export(named, root, max_shard_bytes=100 * 2**20)
            return Shards.open(root)

        def measure(work):
            Path("/proc/self/clear_refs").write_text("5")
            before = kib("VmHWM")
            result = work()
            print((kib("VmHWM") - before) / 1024)
            return result

        root = Path(sys.argv[1])
        warm = run(root / "warm", 1)
        for dtype in (torch.float32, torch.bfloat16):
            warm.load({"0": torch.empty(8, 2**20, dtype=dtype)})
        shards = measure(lambda: run(root / "all", 10))
        for dtype in (torch.float32, torch.bfloat16):
            into = {f"{n}": torch.empty(8, 2**20, dtype=dtype) for n in range(10)}
            measure(lambda: shards.load(into))
            assert all(int(target[7, -1]) == int(name) for name, target in into.items())
            del into
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", dedent(script), str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    written, read, converted = map(float, done.stdout.split())
    assert written < 32 + 16, "a tensor at a time is there"
    assert 300 < read < 320 + 16
    assert 150 < converted < 160 + 16
