"""Which device a process of several has, and by what its tensors are exchanged."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from support import DEVICE

from neaptide import ConfigError
from neaptide.devices import api_of
from neaptide_toolkit.ranks import placing
from neaptide_toolkit.ranks.group import Ranks, require_group

if TYPE_CHECKING:
    from collections.abc import Iterator

on_a_device = pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a device that is no CPU")


@pytest.fixture
def group() -> Iterator[Ranks]:
    """Be the only process of a group that exchanges tensors of the device."""
    backend = placing.backend_for(DEVICE.type)
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    yield Ranks(0, 1)
    dist.destroy_process_group()


def test_on_the_cpu_nothing_is_chosen() -> None:
    assert torch.device("cpu") == placing.own_device("cpu")
    assert "gloo" == placing.backend_for("cpu")
    assert "" == placing.name_of(torch.device("cpu"))


@on_a_device
def test_each_process_has_the_device_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_of(DEVICE), "device_count", lambda: 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    for number in range(4):
        monkeypatch.setenv("LOCAL_RANK", str(number))
        for wanted in ("auto", DEVICE.type):
            assert torch.device(DEVICE.type, number) == placing.own_device(wanted)


@on_a_device
def test_the_only_visible_device_is_that_of_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_of(DEVICE), "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert torch.device(DEVICE.type, 0) == placing.own_device("auto")


@on_a_device
@pytest.mark.parametrize(
    ("number", "processes", "wanted", "told"),
    [
        ("0", "3", "auto", "devices for 3 processes; start at most 2 on it"),
        ("2", "", "auto", "does not know which of the 2"),
        ("", "2", "auto", "does not know which of the 2"),
        ("0", "2", f"{DEVICE.type}:1", "each of several processes has a device of its own"),
    ],
)
def test_a_process_without_a_device_of_its_own_is_refused(
    monkeypatch: pytest.MonkeyPatch, number: str, processes: str, wanted: str, told: str
) -> None:
    monkeypatch.setattr(api_of(DEVICE), "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", number)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    with pytest.raises(ConfigError, match=told) as caught:
        placing.own_device(wanted)
    assert 'set train.device = "cpu"' in str(caught.value)


@pytest.mark.parametrize("kind", ["mps", "vulkan"])
def test_a_kind_of_device_without_a_library_is_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"exchanges tensors of {kind.upper()} devices"):
        placing.backend_for(kind)


def test_two_processes_with_one_device_are_refused() -> None:
    placing.require_apart(["a", "b", "", ""], "cuda")
    with pytest.raises(ConfigError, match="processes 1 and 3 have the same CUDA device"):
        placing.require_apart(["a", "b", "", "b"], "cuda")


def test_the_group_exchanges_numbers_and_tensors_of_the_device(group: Ranks) -> None:
    require_group(group, DEVICE)
    summed = torch.arange(3.0, device=DEVICE)
    group.add(summed)
    assert [0.0, 1.0, 2.0] == summed.tolist()
    assert [[7.0]] == group.exchange("start", [7])


@pytest.mark.parametrize("backend", ["cpu:gloo", "nccl", "gloo"])
def test_a_group_that_cannot_exchange_them_is_refused(backend: str) -> None:
    fits = {"cpu:gloo", "gloo"} if DEVICE.type == "cpu" else set()
    if not dist.is_backend_available(backend):
        pytest.skip(f"this torch has no {backend}")
    one: dict[str, Any] = {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group(backend, **one, timeout=timedelta(seconds=60))
    try:
        if backend in fits:
            require_group(Ranks(0, 1), DEVICE)
            return
        with pytest.raises(ConfigError, match=r"call torch\.distributed\.init_process_group with"):
            require_group(Ranks(0, 1), DEVICE)
    finally:
        dist.destroy_process_group()


def test_the_generator_of_the_device_is_shared(group: Ranks) -> None:
    torch.manual_seed(3)
    first = torch.rand(2, device=DEVICE)
    torch.manual_seed(3)
    for device in (DEVICE, torch.device("cpu")):
        group.share_generator(device)
    assert torch.equal(first, torch.rand(2, device=DEVICE))


@on_a_device
def test_the_present_device_is_the_one_that_was_made_so() -> None:
    placing.make_present(torch.device(DEVICE.type, 0))
    assert 0 == torch.accelerator.current_device_index()
    assert placing.name_of(torch.device(DEVICE.type, 0))
