"""What does not fit is refused with the bytes, before any of them is allocated."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import DEVICE, environment, tiny_trainer

from neaptide import DoesNotFitError
from neaptide.io.units import size
from neaptide_plugins.layer_streaming.budget import shortage
from neaptide_plugins.layer_streaming.tiers.disk import least

LIMITS = {DEVICE.type: "device_gib"} | {"cpu": "host_gib"}
"""What limits the memory of each kind of device."""


@pytest.mark.parametrize("where", LIMITS)
@pytest.mark.parametrize("settings", [{}, {"optimizer_on": "device"}, {"update": "in_backward"}])
def test_a_plan_is_what_is_then_held(settings: dict[str, str], where: str) -> None:
    """Through the refusal: one byte less than the plan is refused, the plan is not."""
    limit = LIMITS[where]
    with pytest.raises(DoesNotFitError) as refused:
        tiny_trainer({"plugins": {"layer-streaming": {limit: 1e-6, **settings}}})
    needed = int(str(refused.value).partition("(")[2].partition(" bytes")[0])
    below = {limit: (needed - 1) / 1024**3, **settings}
    with pytest.raises(DoesNotFitError):
        tiny_trainer({"plugins": {"layer-streaming": below}})
    enough = {limit: (needed + 1) / 1024**3, **settings}
    trainer, batches = tiny_trainer({"plugins": {"layer-streaming": enough}})
    with trainer:
        for batch in batches[:3]:
            trainer.step(batch)
        streaming = trainer.store.streaming  # type: ignore[attr-defined]  # the plugin's store
        tensors = streaming.buffers()
        if DEVICE.type != "cpu":
            tensors += [block.host for block in streaming.blocks]  # they were on the device
        if streaming.updates is not None:
            tensors += streaming.updates.stored()
        else:
            streamed = {p for block in streaming.blocks for p in block.parameters}
            tensors += [
                value
                for parameter, values in trainer.optimizer.state.items()
                for value in values.values()
                if parameter in streamed and value.dim()
            ]
        held = sum(tensor.nbytes for tensor in tensors if tensor.device.type == where)
    if where == "cpu":
        held += max(block.layout.bytes for block in streaming.blocks)
    if where == DEVICE.type and settings.get("update") == "in_backward":
        held += max(
            sum(-(-p.nbytes // 256) * 256 for p in block.parameters) for block in streaming.blocks
        )
    slack = 256 * 2 * len(list(trainer.model.parameters()))  # a resident state is not aligned
    assert needed - slack <= held <= needed


def test_the_refusal_is_one_line_that_says_what_helps() -> None:
    with pytest.raises(DoesNotFitError) as refused:
        tiny_trainer({"plugins": {"layer-streaming": {"host_gib": 1e-6}}})
    text = str(refused.value)
    assert "\n" not in text
    assert text.startswith("streaming needs ")
    assert "update = 'in_backward' stores no gradients and saves" in text
    assert text.endswith("@ plugins.layer-streaming")
    assert 3 == refused.value.exit_code


def test_a_refused_model_is_left_as_it_was() -> None:
    from neaptide import HybridTrainer
    from neaptide_toolkit.testing.tiny import tiny_task

    task = tiny_task()
    before = {name: (id(p.data_ptr), p.data_ptr()) for name, p in task.model.named_parameters()}
    with pytest.raises(DoesNotFitError):
        HybridTrainer(
            task.model,
            task.optimizer,
            config={"plugins": {"layer-streaming": {"device_gib": 1e-6}}},
        )
    after = {name: p.data_ptr() for name, p in task.model.named_parameters()}
    assert {name: place for name, (_, place) in before.items()} == after
    assert not any("forward" in vars(module) for module in task.model.modules())


LIMITED = """
    import resource, sys
    import torch
    from torch import nn
    from neaptide import HybridTrainer, NeaptideError
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(24)])  # 96 MiB
    used = next(line for line in open("/proc/self/status") if line.startswith("VmData:")).split()[1]
    limit = int(used) * 1024 + int(sys.argv[1]) * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        with HybridTrainer(
            model, torch.optim.AdamW(model.parameters()), loss_fn=lambda m, x: m(x).square().mean(),
            config={"plugins": {"layer-streaming": {}}},
        ) as trainer:
            for _ in range(2):
                trainer.step(torch.ones(2, 1024))
            print("trained")
    except NeaptideError as error:
        print(error.exit_code, error)
"""


@pytest.mark.parametrize(("mebibytes", "expected"), [(120, "3 streaming needs "), (700, "trained")])
def test_a_limit_of_the_process_is_respected(mebibytes: int, expected: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", dedent(LIMITED), str(mebibytes)],
        env=environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith(expected), done.stdout + done.stderr


@given(st.dictionaries(st.sampled_from(["slots", "gradients", "x"]), st.integers(1, 2**50)))
def test_what_fits_is_not_refused(needed: dict[str, int]) -> None:
    total = sum(needed.values())
    assert None is shortage(needed, total, "RAM")
    assert None is shortage(needed, None, "RAM")
    assert total == 0 or shortage(needed, total - 1, "RAM") is not None


def test_sizes_and_limits() -> None:
    assert ["0 B", "1023 B", "1.00 KiB", "1.50 GiB", "1.00 MiB"] == [
        size(n, 2) for n in (0, 1023, 1024, 3 << 29, 2**20 - 1)
    ]
    assert (None, 5, 2**30, 7) == (least(None, None), least(5, 1), least(None, 1), least(7, 1))
