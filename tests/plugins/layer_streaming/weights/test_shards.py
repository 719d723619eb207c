"""Weights read from safetensors: which files, into which tensors, and what does not match."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
from exported import items
from hypothesis import given
from hypothesis import strategies as st
from support import same_tensors

from neaptide import CheckpointError
from neaptide_plugins.layer_streaming.weights.shards import Shards
from neaptide_toolkit.export import export
from neaptide_toolkit.testing.parting import same_bits

REAL = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn]
DTYPES = [*REAL, torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool, torch.complex64]


def filled(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Return a tensor of any bytes that `dtype` allows."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (size,), generator=generator)
    return raw.to(torch.uint8).view(dtype).reshape(shape)


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
        ({"layer.weight": (2, 3)}, r"hold 'layer.steps': the model has no such tensor"),
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


def test_nothing_there_and_a_file_changed_meanwhile_are_one_line(
    shards: Shards, tmp_path: Path
) -> None:
    for path in (tmp_path / "none", tmp_path / "*.safetensors", tmp_path):
        with pytest.raises(CheckpointError, match="no safetensors file found"):
            Shards.open(path)
    with (tmp_path / "m" / "model.safetensors").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(CheckpointError, match="changed"):
        shards.read_into("layer.weight", torch.empty(2, 3))
