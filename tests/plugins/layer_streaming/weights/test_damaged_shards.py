"""Files and indexes that are damaged, or made to harm, end in one line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import safetensors
import safetensors.torch
import torch

from neaptide import CheckpointError
from neaptide_plugins.layer_streaming.weights.shards import Shards

if TYPE_CHECKING:
    from pathlib import Path

ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (b"", b"", "describes no tensors"),
        (json.dumps({"x": ONE}).encode(), b"123", "do not match the 3 bytes"),
        (json.dumps({"x": {**ONE, "shape": [2**40]}}).encode(), b"1234", "invalid dtype"),
        (json.dumps({"x": {**ONE, "dtype": "F33"}}).encode(), b"1234", "invalid dtype"),
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
        (b"[]", "not an index of safetensors"),
        (b'{"weight_map": {}}', "not an index of safetensors"),
        (b'{"weight_map": {"a": "../1.safetensors"}}', "not an index of safetensors"),
        (b'{"weight_map": {"a": 1}}', "not an index of safetensors"),
        (b'{"weight_map": {"a": "1.safetensors", "a": "1.safetensors"}}', "twice"),
        (b'{"weight_map": {"a": "2.safetensors"}}', "'2.safetensors' of 1 files missing"),
        (
            b'{"weight_map": {"b": "1.safetensors"}}',
            "'b' is listed in 1.safetensors, but not",
        ),
    ],
)
def test_an_index_that_leads_astray_is_one_line(tmp_path: Path, index: bytes, message: str) -> None:
    safetensors.torch.save_file({"a": torch.ones(1)}, tmp_path / "1.safetensors")
    (tmp_path / "model.safetensors.index.json").write_bytes(index)
    with pytest.raises(CheckpointError, match=message) as caught:
        Shards.open(tmp_path)
    assert "\n" not in str(caught.value)
