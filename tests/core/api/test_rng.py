"""Random states of the accelerator, of whatever kind it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from neaptide.api import rng


class Generators:
    """The generators of some devices, as torch's modules for kinds of device have them."""

    def __init__(self, count: int) -> None:
        self.own = [torch.Generator().manual_seed(index) for index in range(count)]

    def get_rng_state(self, device: Any = 0) -> torch.Tensor:
        return self.own[device if isinstance(device, int) else 0].get_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = 0) -> None:
        self.own[device if isinstance(device, int) else 0].set_state(state)

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [one.get_state() for one in self.own]

    def draw(self) -> list[float]:
        """Draw one number from each generator."""
        return [float(torch.rand((), generator=one)) for one in self.own]


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let this machine have an accelerator of a kind; MPS has no function for all states."""

    def there(kind: str, count: int = 1) -> Generators:
        generators = Generators(count)
        api = torch.get_device_module(kind)
        names = ["get_rng_state", "set_rng_state"]
        if kind != "mps":
            names.append("get_rng_state_all")
            monkeypatch.setattr(api, "is_initialized", lambda: True)
        for name in names:
            monkeypatch.setattr(api, name, getattr(generators, name))
        monkeypatch.setattr(api, "is_available", lambda: True)
        current = torch.device(kind)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: current)
        monkeypatch.setattr(torch, "get_device_module", lambda *_: api)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
        return generators

    return there


@pytest.mark.parametrize(("kind", "count"), [("cuda", 2), ("xpu", 3), ("mps", 1)])
def test_the_states_of_all_its_devices_come_back(accelerator: Any, kind: str, count: int) -> None:
    generators = accelerator(kind, count)
    state = rng.capture()
    assert count == len(state[kind])
    drawn = (generators.draw(), float(torch.rand(())))
    rng.restore(state)
    assert drawn == (generators.draw(), float(torch.rand(())))


def test_the_cpu_goes_on_where_another_device_resumes(accelerator: Any) -> None:
    accelerator("xpu")
    state = rng.capture()
    drawn = float(torch.rand(()))
    generators = accelerator("mps")
    kept = generators.get_rng_state()
    rng.rehearse(state)
    rng.restore(state)
    assert drawn == float(torch.rand(()))
    assert torch.equal(kept, generators.get_rng_state())


def test_states_of_devices_that_are_not_there_are_left_out(accelerator: Any) -> None:
    accelerator("cuda", 3)
    state = rng.capture()
    generators = accelerator("cuda", 1)
    before = generators.get_rng_state_all()
    generators.draw()
    rng.restore(state)
    assert torch.equal(before[0], generators.get_rng_state())


def test_without_an_accelerator_a_state_of_one_is_left_out(accelerator: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: None)
        here = rng.capture()
        rng.restore({**here, "cuda": [torch.zeros(16, dtype=torch.uint8)]})
        rng.rehearse({**here, "cuda": [torch.zeros(16, dtype=torch.uint8)]})
        assert "cuda" not in rng.capture()
