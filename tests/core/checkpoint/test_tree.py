"""State trees go through JSON and tensors and come back with every type, bit and order."""

from __future__ import annotations

import math
import random
import struct
from collections import Counter, OrderedDict
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from neaptide.checkpoint import canonical
from neaptide.checkpoint.tree import MAX_DEPTH, flatten, unflatten
from neaptide.errors import CheckpointError

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8]


def doubles() -> st.SearchStrategy[float]:
    """Every bit pattern of a double, quiet NaNs with any payload included."""
    return st.floats() | st.integers(0, 2**51 - 1).map(
        lambda payload: struct.unpack(">d", struct.pack(">Q", 0xFFF8 << 48 | payload))[0]
    )


def tensors() -> st.SearchStrategy[torch.Tensor]:
    shapes = st.lists(st.integers(0, 3), max_size=3)
    return st.builds(
        lambda shape, dtype, seed: torch.randint(
            0, 2, shape, generator=torch.Generator().manual_seed(seed)
        ).to(dtype),
        shapes,
        st.sampled_from(DTYPES),
        st.integers(0, 100),
    )


def trees() -> st.SearchStrategy[Any]:
    text = st.text() | st.sampled_from(["$", "$tensor", "$1", "$$", "a/b", "~0", ""])
    leaves = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.integers(-(2**200), 2**200)
        | doubles()
        | text
        | st.binary()
        | st.sampled_from(DTYPES)
        | tensors()
    )
    keys = text | st.integers(-(2**63), 2**63 - 1)
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner)
            | st.lists(inner).map(tuple)
            | st.dictionaries(keys, inner)
            | st.dictionaries(keys, inner).map(OrderedDict)
        ),
        max_leaves=15,
    )


def same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        alike = (left.dtype, left.shape) == (right.dtype, right.shape)
        return alike and bits(left) == bits(right)
    if isinstance(left, float):
        return struct.pack(">d", left) == struct.pack(">d", right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(
            type(a) is type(b) and same(left[a], right[b]) for a, b in zip(left, right, strict=True)
        )
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def through_json(tree: Any) -> Any:
    structure, tensors = flatten(tree)
    text = canonical.dumps(structure, sort_keys=False)
    return unflatten(canonical.loads(text, "here"), tensors.__getitem__)


@given(trees())
def test_round_trip(tree: Any) -> None:
    assert same(tree, through_json(tree))


@pytest.mark.parametrize(
    "value",
    [
        -0.0,
        math.inf,
        -math.inf,
        math.nan,
        5e-324,
        0.1,
        2**63,
        -(2**63) - 1,
        [10**5000],
        True,
        (1, (2.0, [None])),
        {1: "int", "1": "str", "$1": "escaped"},
        {"$tensor": "not one"},
        {"$tuple": [1]},
        OrderedDict({"b": 1, "a": 2}),
        {"b": 1, "a": {}},
        b"\x00\xff",
        "\ud800\n\0",
        torch.bfloat16,
    ],
)
def test_values(value: Any) -> None:
    assert same(value, through_json(value))


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adagrad", "RMSprop", "LBFGS"])
def test_optimizer_states(name: str) -> None:
    model = nn.Linear(3, 2)
    optimizer = getattr(torch.optim, name)(model.parameters())

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = model(torch.ones(4, 3)).square().sum()
        value.backward()
        return value

    optimizer.step(loss)

    assert same(optimizer.state_dict(), through_json(optimizer.state_dict()))


def test_generator_and_module_states() -> None:
    state = {
        "python": random.getstate(),
        "torch": torch.get_rng_state(),
        "module": nn.BatchNorm1d(3).state_dict(),
    }

    assert same(state, through_json(state))


def test_references_are_json_pointers() -> None:
    tensor = torch.zeros(2)

    structure, found = flatten({"a/b": [tensor, {"~": tensor}], 0: {"$x": tensor}})

    assert ["/a~1b/0", "/a~1b/1/~0", "/$0/$$x"] == list(found)
    assert {"$tensor": "/a~1b/0"} == structure["a/b"][0]


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ({1, 2}, "'set'"),
        (Counter("ab"), "'Counter'"),
        (object(), "'object'"),
        (1j, "'complex'"),
        (bytearray(b"x"), "'bytearray'"),
        (torch.zeros(2).numpy(), "'ndarray'"),
        (torch.zeros(1).numpy()[0], "'float32'"),
        (torch.Size([2]), "'Size'"),
        (torch.device("cpu"), "'device'"),
        (torch.zeros(2).as_subclass(Subclass), "'Subclass'"),
        (torch.eye(2).to_sparse(), "tensor that is sparse"),
        (torch.empty(2, device="meta"), "tensor that is sparse, quantized or on the meta device"),
        ({1.5: 0}, "dict with the key 1.5 of type 'float'"),
        ({True: 0}, "dict with the key True of type 'bool'"),
        ({(1, 2): 0}, "dict with the key .* of type 'tuple'"),
        ({2**63: 0}, "dict with the key .* of type 'int'"),
    ],
)
def test_what_cannot_be_saved_is_named_with_its_place(value: Any, what: str) -> None:
    expected = rf"^plugins\.ema\.0\.state: cannot save a {what}.*; use lists, dicts, numbers"
    with pytest.raises(CheckpointError, match=expected):
        flatten({"ema": [{"state": value}]}, "plugins")


def test_depth_is_bounded() -> None:
    deep: Any = "leaf"
    for _ in range(MAX_DEPTH):
        deep = (deep,)
    assert deep == through_json(deep)

    with pytest.raises(CheckpointError, match=r"state\.0\.0\.0\.\.\.: nested deeper than 64"):
        flatten((deep,))
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(CheckpointError, match="nested deeper"):
        flatten(cycle)


@pytest.mark.parametrize(
    "structure",
    [
        {"$tensor": "/missing"},
        {"$tensor": 1},
        {"$tuple": {}},
        {"$ordered": []},
        {"$int": "12z"},
        {"$int": 12},
        {"$float": "00"},
        {"$float": None},
        {"$bytes": "a"},
        {"$dtype": "float33"},
        {"$dtype": []},
        {"$class": "os.system"},
        {"$01": 1},
        {"$-0": 1},
        {"$": 1},
        {"a": 1, "$tensor": "/a"},
    ],
)
def test_what_flatten_never_makes(structure: Any) -> None:
    with pytest.raises(CheckpointError, match="a saved state"):
        unflatten([structure], {}.__getitem__)


def test_a_structure_too_deep() -> None:
    deep: Any = 1
    for _ in range(500):
        deep = [deep]

    with pytest.raises(CheckpointError, match="nested too deeply"):
        unflatten(deep, {}.__getitem__)
