"""What is found in an optimizer's state, and what is left where it is."""

from __future__ import annotations

from collections import deque, namedtuple
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import attrs
import numpy as np
import pytest
import torch
from torch import nn

from neaptide_toolkit.offload.resident_store import ResidentStore
from neaptide_toolkit.offload.storages import SMALLEST, evictable, tensors_in

if TYPE_CHECKING:
    from neaptide.api.spans import Evictable

pytestmark = pytest.mark.usefixtures("on_device")

Pair = namedtuple("Pair", "one two")  # noqa: PYI024 - as strangers write it


class Slotted:
    __slots__ = ("absent", "held")

    def __init__(self, held: Any) -> None:
        self.held = held


@dataclass
class Data:
    held: Any
    more: list[Any] = field(default_factory=list)


@attrs.define
class Defined:
    held: Any


class Wrapper(torch.Tensor):
    """A tensor that consists of two others, as quantized state does."""

    codes: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls: Any, codes: torch.Tensor, scale: torch.Tensor) -> Self:
        made: Any = torch.Tensor._make_wrapper_subclass(cls, codes.shape)
        made.codes, made.scale = codes, scale
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(func)


def large(value: float = 1.0) -> torch.Tensor:
    return torch.full((SMALLEST,), value)


def found(*entries: Any) -> Evictable:
    return evictable(tensors_in(entries), smallest=SMALLEST)


@pytest.mark.parametrize(
    "hide",
    [
        lambda tensor: tensor,
        lambda tensor: {"a": {"b": [1, "x", None, (tensor,)]}},
        lambda tensor: deque([{tensor}, frozenset([tensor])]),
        lambda tensor: Pair(3, tensor),
        Slotted,
        Data,
        Defined,
        lambda tensor: Data(None, [Slotted(Defined([tensor]))]),
        lambda tensor: {"key": nn.Parameter(tensor)},
        lambda tensor: {tensor: 1},
        lambda tensor: Wrapper(tensor, torch.ones(1)),
    ],
)
def test_a_tensor_is_found_wherever_it_hides(hide: Any) -> None:
    hidden = hide(large())
    assert [4 * SMALLEST] == [shared.bytes for shared in found(hidden, 7, None).storages]


def test_what_refers_to_itself_ends() -> None:
    entry: dict[str, Any] = {"tensor": large()}
    entry["self"] = [entry]
    assert [entry["tensor"]] == list(tensors_in(entry))


def test_modules_optimizers_and_functions_are_not_looked_into() -> None:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.Adam(model.parameters())
    kept = large()
    entry = {"model": model, "inner": optimizer, "closure": lambda: kept, "class": Data}
    assert [] == list(tensors_in(entry))


def test_views_of_one_storage_go_together() -> None:
    flat = torch.zeros(2 * SMALLEST)
    one, two = flat[:SMALLEST], flat[SMALLEST:]
    del flat  # which the views keep alive
    (shared,) = found({"one": one}, {"two": two, "again": one}).storages
    assert 8 * SMALLEST == shared.bytes
    assert {id(one), id(two)} <= {id(tensor) for tensor in shared.tensors}


@pytest.mark.parametrize(
    "also",
    [
        lambda tensor: tensor.detach(),
        lambda tensor: tensor[3:9],
        lambda tensor: tensor.data,
        nn.Parameter,
    ],
)
def test_what_somebody_else_holds_stays(also: Any) -> None:
    tensor = large()
    held = also(tensor)
    result = found({"tensor": tensor})
    assert [] == result.storages
    assert {"used by other tensors, too": 4 * SMALLEST} == dict(result.left)
    del held
    assert 1 == len(found({"tensor": tensor}).storages)


def test_the_memory_of_weights_stays() -> None:
    weight = nn.Parameter(large())
    result = found({"old": weight.data})
    assert [] == result.storages
    assert {"used by other tensors, too": 4 * SMALLEST} == dict(result.left)


@pytest.mark.usefixtures("on_cpu")  # whose memory others can have
def test_memory_that_is_not_torchs_stays() -> None:
    shared = large().share_memory_()
    memory = np.ones(SMALLEST + 16, dtype=np.float32)
    array = memory[1 + (-memory.ctypes.data % 64) // 4 :][:SMALLEST]
    result = found({"numpy": torch.from_numpy(array), "shared": shared})
    assert {"in memory that is not torch's own": 8 * SMALLEST} == dict(result.left)


@pytest.mark.parametrize(
    "odd",
    [
        torch.ones(40, 40).to_sparse(),
        torch.ones(SMALLEST, device="meta"),
        torch.ones(SMALLEST // 4 - 1),
        torch.ones(()),
        torch.ones(0),
        torch.ones(SMALLEST, dtype=torch.complex64).conj(),
    ],
)
def test_odd_and_small_tensors_stay(odd: torch.Tensor) -> None:
    assert [] == found({"odd": odd}).storages


def test_other_entries_of_the_state_stay() -> None:
    parameters = [nn.Parameter(large()) for _ in range(3)]
    optimizer = torch.optim.SGD(parameters)
    flat = torch.zeros(2 * SMALLEST)
    both = flat[:SMALLEST], flat[SMALLEST:]
    optimizer.state[parameters[0]] = {"own": large(), "shares": both[0]}
    optimizer.state[parameters[1]] = {"shares": both[1]}
    optimizer.state[parameters[0]]["named"] = named = large()
    optimizer.state["global"] = {"held": [named]}  # type: ignore[index]  # as strangers do
    store = ResidentStore(nn.ParameterList(parameters), optimizer)
    (own,) = store.evictable(store.spans()[:1], of="state").storages
    assert own.tensors == (optimizer.state[parameters[0]]["own"],)
