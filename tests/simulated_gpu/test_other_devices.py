"""The simulated device with less than CUDA has: like XPU, like MPS. Training needs no more."""

from __future__ import annotations

import csv
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from on_device import DEVICE, task_on_device
from support import CYCLE, same_tensors, tensors_of
from torch.overrides import TorchFunctionMode

from neaptide import ConfigError, HybridTrainer
from neaptide.api import rng
from neaptide.devices import allocator_count, has_streams, widest
from neaptide_toolkit.machine.devices import lacks
from neaptide_toolkit.testing.tiny import tiny_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

STEPS = 20
DRIFT = {"predictor-drift": {"min_window": 4, "sample_every": 1}}
OF_MPS_MISSING = [
    "Stream", "Event", "current_stream", "stream", "cudart", "get_rng_state_all",
    "memory_allocated", "max_memory_allocated", "memory_reserved", "reset_peak_memory_stats",
    "memory_stats_as_nested_dict", "mem_get_info", "get_device_properties", "current_device",
]  # fmt: skip
"""Functions of `torch.cuda` that `torch.mps` does not have."""


class NoFloat64(TorchFunctionMode):
    """Refuses float64 tensors on the device, with MPS's error."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.is_floating_point():
            # Read the type without a call that comes back to this function.
            with torch._C.DisableTorchFunction():
                refused = result.device.type != "cpu" and result.dtype == torch.float64
            if refused:
                msg = "Cannot convert a MPS Tensor to float64 dtype"
                raise TypeError(msg)
        return result


@pytest.fixture
def _like_mps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in OF_MPS_MISSING:
        monkeypatch.delattr(torch.cuda, name)
    widest.cache_clear()
    with NoFloat64():
        yield
    widest.cache_clear()


@pytest.fixture
def _like_xpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cuda, "cudart")


def trainer_of(
    device: str, plugins: dict[str, Any], directory: Path | None = None
) -> HybridTrainer[Any]:
    """Return a trainer of the tiny task on a device, seeded."""
    torch.manual_seed(1)
    config = {
        "run": {"dir": str(directory)} if directory else {},
        "train": {"steps": STEPS, "device": device, "clip_norm": 1.0},
        "phases": CYCLE,
        "plugins": {"ema": {}, **DRIFT, **plugins},
    }
    task = task_on_device(streams="layer-streaming" in plugins)
    return HybridTrainer(task.model, task.optimizer, loss_fn=tiny_loss, config=config)


Trained = tuple[list[float], dict[str, torch.Tensor]]


def trained(plugins: dict[str, Any], directory: Path | None = None) -> Trained:
    """Train; return the losses and an evaluation, and the weights."""
    batches = task_on_device(streams=True).batches
    with trainer_of("cuda", plugins, directory) as trainer:
        losses = [trainer.step(batch).loss for batch in batches[:STEPS]]
        losses.append(trainer.evaluate(batches[STEPS:]))
        assert trainer.state.jumps > 0
    return losses, {name: value.cpu() for name, value in tensors_of(trainer.model).items()}


def device_bytes(directory: Path) -> set[bool]:
    """Return whether steps have a number of bytes on the device."""
    with (directory / "steps.csv").open(encoding="utf-8") as file:
        return {row["device_bytes"] != "" for row in csv.DictReader(file)}


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    directory = tmp_path_factory.mktemp("usual") / "run"
    found = trained({}, directory)
    assert device_bytes(directory) == {True}
    return found


@pytest.mark.usefixtures("_like_mps")
def test_it_is_like_mps() -> None:
    assert not has_streams(DEVICE)
    assert torch.float32 is widest(DEVICE)
    assert allocator_count(DEVICE, "memory_allocated") is None


def test_plain_training_needs_no_streams_no_counts_and_no_float64(
    usual: Trained, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    request.getfixturevalue("_like_mps")
    losses, weights = trained({}, tmp_path / "run")
    # The norms of a jump and the evaluation are summed in float32.
    assert losses == pytest.approx(usual[0], rel=1e-5)
    assert all(torch.allclose(weights[name], usual[1][name], rtol=1e-4) for name in weights)
    assert device_bytes(tmp_path / "run") == {False}


@pytest.mark.usefixtures("_like_mps")
def test_other_plugins_need_no_more(tmp_path: Path) -> None:
    plugins: dict[str, Any] = {"profiler": {"nvml": False}, "int8": {}, "divergence-monitor": {}}
    losses, _ = trained({**plugins, "mixed-precision": {}}, tmp_path / "run")
    assert all(map(math.isfinite, losses))
    table = (tmp_path / "run/plugins/profiler/table.txt").read_text(encoding="utf-8")
    assert table.startswith("torch has no statistics of the memory of 'cuda': RSS only")


@pytest.mark.usefixtures("_like_mps")
@pytest.mark.parametrize(
    ("plugins", "where"),
    [
        ({"layer-streaming": {}}, "plugins.layer-streaming"),
        ({"optimizer-offload": {"strategy": "cpu"}}, "plugins.optimizer-offload.strategy"),
    ],
)
def test_without_streams_a_plugin_that_needs_them_refuses_before_the_first_step(
    plugins: dict[str, Any], where: str
) -> None:
    batch = task_on_device(streams=True).batches[0]
    with pytest.raises(ConfigError) as raised, trainer_of("cuda", plugins) as trainer:
        trainer.step(batch)
    text = str(raised.value)
    assert "\n" not in text
    assert "torch has no streams on 'cuda', so copies" in text
    assert text.endswith(f"@ {where}")


@pytest.mark.usefixtures("_like_mps")
@pytest.mark.parametrize("strategy", ["compress", "drop"])
def test_without_streams_state_is_compressed_or_dropped(strategy: str) -> None:
    losses, _ = trained({"optimizer-offload": {"strategy": strategy}})
    assert len(losses) == STEPS + 1


@pytest.mark.usefixtures("_like_xpu")
@pytest.mark.parametrize(
    "plugins",
    [
        {"layer-streaming": {}},
        {"layer-streaming": {"optimizer_on": "cpu"}},
        {"optimizer-offload": {"strategy": "pinned"}},
    ],
)
def test_streams_are_enough_where_memory_cannot_be_registered(
    usual: Trained, plugins: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    losses, weights = usual
    assert lacks(DEVICE, "registered memory") is not None
    found, same = trained(plugins)
    assert losses == found
    assert same_tensors(weights, same)
    assert caplog.text.count("torch cannot page-lock a buffer for 'cuda'") == 1


def test_the_generator_of_the_device_resumes(tmp_path: Path) -> None:
    batches = task_on_device(streams=False).batches
    with trainer_of("cuda", {}, tmp_path / "run") as trainer:
        trainer.step(batches[0])
        trainer.save(tmp_path / "saved")
        drawn = torch.rand(4, device=DEVICE)
    with trainer_of("cuda", {}, tmp_path / "other") as trainer:
        torch.rand(9, device=DEVICE)
        trainer.load(tmp_path / "saved")
        assert torch.equal(drawn, torch.rand(4, device=DEVICE))


def test_a_state_that_is_none_is_refused_by_a_rehearsal() -> None:
    state = rng.capture()
    rng.rehearse(state)
    with pytest.raises(ValueError, match="uint8 of one dimension"):
        rng.rehearse({**state, "cuda": [torch.zeros(3)]})
