from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import same_bits, same_tensors

from neaptide import CheckpointError
from neaptide.checkpoint import TensorItem
from neaptide_plugins.layer_streaming.export import export
from neaptide_plugins.layer_streaming.weights.shards import Shards

if TYPE_CHECKING:
    from collections.abc import Iterator

REAL = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn]
DTYPES = [*REAL, torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool, torch.complex64]


def filled(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Return a tensor of any bytes that `dtype` allows."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (size,), generator=generator)
    return raw.to(torch.uint8).view(dtype).reshape(shape)


def items(tensors: dict[str, torch.Tensor]) -> Iterator[TensorItem]:
    @contextmanager
    def loaded(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
        yield tensor

    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)
        yield TensorItem(name, tensor.dtype, shape, lambda tensor=tensor: loaded(tensor))


def empty_like(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.empty_like(tensor) for name, tensor in tensors.items()}


KINDS = st.tuples(
    st.sampled_from(DTYPES), st.lists(st.integers(0, 6), max_size=3).map(tuple), st.integers(0, 99)
)


@given(kinds=st.lists(KINDS, min_size=1, max_size=8), most=st.integers(1, 3000))
def test_what_is_exported_comes_back_to_the_bit(kinds: list[Any], most: int) -> None:
    tensors = {f"layer.{index}": filled(*kind) for index, kind in enumerate(kinds)}
    with TemporaryDirectory() as root:
        files = export(items(tensors), Path(root, "model"), max_shard_bytes=most)
        shards, into = Shards.open(Path(root, "model")), empty_like(tensors)
        shards.load(into)
        assert same_tensors(tensors, into)
        assert sorted(tensors) == shards.names()
        assert sorted(files) == sorted(Path(root, "model").glob("*.safetensors"))
        by_library = [safetensors.torch.load_file(file) for file in files]
        assert same_tensors(tensors, {k: v for file in by_library for k, v in file.items()})
        assert len(tensors) == sum(map(len, by_library))
        for file in by_library:
            assert len(file) == 1 or sum(tensor.nbytes for tensor in file.values()) <= most


@given(
    source=st.sampled_from(REAL),
    target=st.sampled_from(REAL),
    shape=st.sampled_from([(), (3,), (2, 3), (2, 3, 4), (4, 3, 5, 2)]),
    order=st.randoms(use_true_random=False),
)
def test_other_dtypes_and_strides_get_the_numbers_rounded(
    source: torch.dtype, target: torch.dtype, shape: tuple[int, ...], order: Any
) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(source)
    axes = list(range(len(shape)))
    order.shuffle(axes)
    back = [axes.index(axis) for axis in range(len(shape))]
    out = torch.empty([shape[axis] for axis in axes], dtype=target).permute(back)
    with TemporaryDirectory() as root:
        export(items({"x": tensor}), Path(root, "m"))
        Shards.open(Path(root, "m")).read_into("x", out)
    assert same_bits(tensor.to(target), out)


@pytest.mark.parametrize("shape", [(700_001,), (3, 300_001), (1, 2, 600_000), (600_000, 2)])
def test_tensors_larger_than_a_chunk_come_in_order(tmp_path: Path, shape: tuple[int, ...]) -> None:
    tensor = torch.arange(torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)
    export(items({"x": tensor}), tmp_path / "m")
    shards = Shards.open(tmp_path / "m")
    narrower = torch.empty(shape, dtype=torch.float32)
    gaps = torch.empty((*shape, 2), dtype=torch.float64)[..., 1]
    for out in (narrower, gaps):
        shards.read_into("x", out)
        assert torch.equal(tensor, out.double())


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


def test_a_graph_that_saved_a_target_notices_the_reading(tmp_path: Path) -> None:
    tensors = {"x": torch.ones(4)}
    export(items(tensors), tmp_path / "m")
    x = torch.zeros(4, requires_grad=True)
    loss = (x * x).sum()
    Shards.open(tmp_path / "m").read_into("x", x)
    assert [1.0] * 4 == x.tolist()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_files_are_found_by_name_directory_pattern_index_and_link(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(2), "b": torch.zeros(3)}
    where = tmp_path / "m"
    first, _ = export(items(tensors), where, max_shard_bytes=8)
    assert ["a"] == Shards.open(first).names()
    (tmp_path / "linked").mkdir()
    for path in where.iterdir():
        (tmp_path / "linked" / path.name).symlink_to(path)
    (tmp_path / "bare").mkdir()
    for path in where.glob("*.safetensors"):
        (tmp_path / "bare" / path.name).write_bytes(path.read_bytes())
    index = where / "model.safetensors.index.json"
    for path in (where, index, f"{where}/*.safetensors", tmp_path / "linked", tmp_path / "bare"):
        assert ["a", "b"] == Shards.open(path).names()
    safetensors.torch.save_file({"c": torch.ones(1)}, where / "model.safetensors")
    assert ["c"] == Shards.open(where).names()


def test_the_index_says_which_of_two_files_counts(tmp_path: Path) -> None:
    for number in (1, 2):
        safetensors.torch.save_file(
            {"x": torch.full((2,), float(number)), f"y{number}": torch.ones(1)},
            tmp_path / f"{number}.safetensors",
        )
    with pytest.raises(CheckpointError, match=r"'x' is in .*1.safetensors and in 2.safetensors"):
        Shards.open(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    out = torch.empty(2)
    for number in (1, 2):
        weight_map = {"x": f"{number}.safetensors", **{f"y{n}": f"{n}.safetensors" for n in (1, 2)}}
        index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        Shards.open(tmp_path).read_into("x", out)
        assert [number, number] == out.tolist()


@pytest.fixture
def shards(tmp_path: Path) -> Shards:
    tensors = {
        "layer.weight": torch.full((2, 3), 1e6),
        "layer.steps": torch.ones(2, dtype=torch.int64),
    }
    export(items(tensors), tmp_path / "m")
    return Shards.open(tmp_path / "m")


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ({"layer.wieght": (2, 3)}, r"lack 'layer.wieght' \(did you mean 'layer.weight'\?\): "),
        ({"layer.weight": (2, 3)}, r"hold 'layer.steps': which the model has no place for"),
        ({"layer.weight": (3, 2), "layer.steps": (2,)}, r"'layer.weight' is \[2, 3\], the model's"),
        ({"layer.weight": (2, 3), "layer.steps": (2,)}, r"'layer.steps' is torch.int64, the model"),
    ],
)
def test_a_model_that_does_not_match_is_one_line_before_anything_is_read(
    shards: Shards, targets: dict[str, tuple[int, ...]], message: str
) -> None:
    into = {name: torch.zeros(shape) for name, shape in targets.items()}
    with pytest.raises(CheckpointError, match=message) as caught:
        shards.load(into)
    assert "\n" not in str(caught.value)
    assert not any(tensor.any() for tensor in into.values())


def test_names_that_match_a_pattern_may_be_missing_or_too_many(shards: Shards) -> None:
    into = {"layer.weight": torch.zeros(2, 3), "head.bias": torch.full((1,), 5.0)}
    shards.load(into, ignore=["*.steps", "head.*"])
    assert [1e6, 5.0] == [into["layer.weight"][1, 2].item(), into["head.bias"].item()]


def test_numbers_beyond_the_target_are_refused_and_infinities_are_not(
    shards: Shards, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"'layer.weight' holds 1e\+06, too large for torch"):
        shards.read_into("layer.weight", torch.empty(2, 3, dtype=torch.float16))
    export(items({"x": torch.tensor([float("-inf"), 3.0])}), tmp_path / "n")
    out = torch.empty(2, dtype=torch.float16)
    Shards.open(tmp_path / "n").read_into("x", out)
    assert [float("-inf"), 3.0] == out.tolist()


def test_an_unknown_name_is_suggested_another(shards: Shards) -> None:
    with pytest.raises(CheckpointError, match=r"no tensor 'layer.step' \(did you mean 'layer.st"):
        shards.info("layer.step")


ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (b"", b"", "describes no tensors"),
        (json.dumps({"x": ONE}).encode(), b"123", "do not match the 3 bytes"),
        (json.dumps({"x": {**ONE, "shape": [2**40]}}).encode(), b"1234", "no description"),
        (json.dumps({"x": {**ONE, "dtype": "F33"}}).encode(), b"1234", "no description"),
        (json.dumps({"x": ONE, "y": ONE}).encode(), b"1234", "overlap"),
        (b'{"x":' + json.dumps(ONE).encode() + b"," * 1_100_000, b"1234", "JSON values, at most"),
    ],
)
def test_a_damaged_or_hostile_file_is_one_line(
    tmp_path: Path, header: bytes, data: bytes, message: str
) -> None:
    safetensors.torch.save_file({"a": torch.ones(1)}, tmp_path / "1.safetensors")
    bad = tmp_path / "2.safetensors"
    bad.write_bytes(len(header).to_bytes(8, "little") + header + data)
    with pytest.raises(CheckpointError, match=message) as caught:
        Shards.open(tmp_path)
    assert str(bad) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_header_longer_than_its_file_is_not_allocated(tmp_path: Path) -> None:
    bad = tmp_path / "1.safetensors"
    bad.write_bytes((2**62).to_bytes(8, "little") + b"{}")
    with pytest.raises(CheckpointError, match=f"a header of {2**62} bytes in a file of 10"):
        Shards.open(bad)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (b"{", "not strict JSON"),
        (b"[]", "no index of safetensors"),
        (b'{"weight_map": {}}', "no index of safetensors"),
        (b'{"weight_map": {"a": "../1.safetensors"}}', "no index of safetensors"),
        (b'{"weight_map": {"a": 1}}', "no index of safetensors"),
        (b'{"weight_map": {"a": "1.safetensors", "a": "1.safetensors"}}', "twice"),
        (b'{"weight_map": {"a": "2.safetensors"}}', "'2.safetensors' of 1 files missing"),
        (b'{"weight_map": {"b": "1.safetensors"}}', "'b' is not in 1.safetensors, as it says"),
    ],
)
def test_an_index_that_leads_astray_is_one_line(tmp_path: Path, index: bytes, message: str) -> None:
    safetensors.torch.save_file({"a": torch.ones(1)}, tmp_path / "1.safetensors")
    (tmp_path / "model.safetensors.index.json").write_bytes(index)
    with pytest.raises(CheckpointError, match=message) as caught:
        Shards.open(tmp_path)
    assert "\n" not in str(caught.value)


def test_nothing_there_and_a_file_changed_meanwhile_are_one_line(
    shards: Shards, tmp_path: Path
) -> None:
    for path in (tmp_path / "none", tmp_path / "*.safetensors", tmp_path):
        with pytest.raises(CheckpointError, match="no safetensors file is there"):
            Shards.open(path)
    with (tmp_path / "m" / "model.safetensors").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(CheckpointError, match="changed"):
        shards.read_into("layer.weight", torch.empty(2, 3))


@pytest.mark.parametrize(
    ("names", "tied", "message"),
    [
        (["a", "a"], {}, "two tensors are named 'a'"),
        (["a"], {"a": "a"}, "two tensors are named 'a'"),
        (["a"], {"b": "c"}, "'b' is tied to 'c', which is not exported"),
        (["a"], {f"{n:04}": "a" for n in range(400)}, "4096 bytes of metadata"),
        (["a"], {"{": "a"}, "without braces"),
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
    with pytest.raises(CheckpointError, match="is there already; export to a new directory"):
        export(items({"a": torch.zeros(1)}), tmp_path / "empty")
    assert before == (tmp_path / "empty" / "model.safetensors").read_bytes()
    assert ["empty"] == [path.name for path in tmp_path.iterdir()]


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(CheckpointError, match=r"cannot export .*; free space, or export else"):
            export(items({"a": torch.ones(5000)}), tmp_path / "m")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [] == list(tmp_path.iterdir())


def test_reading_and_writing_take_no_more_memory_than_the_targets(tmp_path: Path) -> None:
    script = """
        import sys
        from contextlib import contextmanager
        from pathlib import Path
        import torch
        from neaptide.checkpoint import TensorItem
        from neaptide_plugins.layer_streaming.export import export
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
