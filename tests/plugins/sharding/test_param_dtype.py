"""Weights that are cast before they are gathered: torch's policy of mixed precision."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
import torch
import warm
from safetensors.torch import load_file
from several import run_together
from several_runs import RUN, digest, failed, rows, stopped_at_16, trained

from neaptide.errors import ConfigError
from neaptide.hooks.enabling import configured

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="gloo and fork, as tested here")

CAST = ("--set=plugins.sharding.stage=3", "--set=plugins.sharding.param_dtype=bfloat16")
BESIDE_TORCH = """
import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from neaptide import HybridTrainer

rank = int(os.environ["RANK"])
dist.init_process_group("gloo")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(6), nn.Linear(6, 6)
        self.register_buffer("turn", torch.linspace(0.5, 1.5, 6))

    def forward(self, x):
        return x + torch.tanh(self.linear(self.norm((x * self.turn).to(x.dtype))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 6)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def made():
    torch.manual_seed(0)
    return Net()


def batch_of(step):
    generator = torch.Generator().manual_seed(step)
    x = torch.randint(9, (8, 5), generator=generator)
    return {"x": x, "y": torch.randn(8, 5, 2, generator=generator)}


plain = made()
mesh = init_device_mesh("cpu", (2,))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for block in plain.blocks:
    fully_shard(block, mesh=mesh, mp_policy=policy)
fully_shard(plain, mesh=mesh, mp_policy=policy)
for module in plain.modules():
    if isinstance(module, FSDPModule):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
stepping = torch.optim.AdamW(plain.parameters(), lr=0.05)
theirs = []
for step in range(6):
    batch = {name: value.chunk(2)[rank] for name, value in batch_of(step).items()}
    loss = nn.functional.mse_loss(plain(batch["x"]).float(), batch["y"])
    (loss * 0.5).backward()
    stepping.step()
    stepping.zero_grad()
    found = loss.detach().double()
    dist.all_reduce(found)
    theirs.append(float(found) / 2)


def loss_fn(net, batch):
    out = net(batch["x"])
    assert out.dtype == torch.float32
    return nn.functional.mse_loss(out, batch["y"])


model = made()
config = {
    "phases": {"warmup": {"steps": 0}},
    "plugins": {"sharding": {"stage": 3, "param_dtype": "bfloat16"}},
}
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
with HybridTrainer(model, optimizer, loss_fn=loss_fn, config=config) as trainer:
    ours = [trainer.step(batch_of(step)).loss for step in range(6)]
    same = []
    for span in trainer.store.spans():
        assert span.dtype == torch.float32
        other = dict(plain.named_parameters())[span.name].full_tensor()
        with trainer.store.loan(span, "read") as weight:
            same.append(torch.equal(weight, other))
if rank == 0:
    print(json.dumps([theirs, ours, same]))
dist.destroy_process_group()
"""


def test_weights_after_six_updates_are_those_of_torchs_own_policy(tmp_path: Path) -> None:
    (tmp_path / "beside_torch.py").write_text(BESIDE_TORCH, encoding="utf-8")
    done = run_together(2, ["-m", "beside_torch"], cwd=tmp_path, timeout=90)
    assert [0, 0] == [one.returncode for one in done], done[0].stderr
    theirs, ours, same = json.loads(done[0].stdout)
    assert ours == pytest.approx(theirs, rel=1e-6)
    assert all(same)


@pytest.fixture(scope="session")
def cast(folder: Path) -> Path:
    """Return the run of two processes that gather weights in bfloat16."""
    return trained(folder, 2, "cast", *CAST)


def test_all_phases_train_near_the_run_in_float32_and_save_float32(one: Path, cast: Path) -> None:
    found = rows(cast)
    assert {"warmup", "full", "predict", "correct"} == {phase for phase, _ in found}
    for (phase, loss), (before, wide) in zip(found, rows(one), strict=True):
        assert phase == before
        assert float(loss) == pytest.approx(float(wide), rel=0.03)
    assert digest(one) != digest(cast)
    saved = [load_file(file) for file in cast.rglob("*.safetensors")]
    names = [name for each in saved for name in each if name.endswith("weight")]
    assert names
    assert all(
        each[name].dtype == torch.float32 for each in saved for name in names if name in each
    )


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_what_is_saved_goes_on_to_the_bit(folder: Path, size: int) -> None:
    first = trained(folder, size, f"cast-{size}", *CAST)
    stopped = stopped_at_16(first, f"cast-{size}-again")
    again = trained(folder, size, stopped, *CAST, "--resume=auto")
    assert rows(first) == rows(again)
    assert digest(first) == digest(again)


def test_one_process_says_that_it_computes_in_the_dtype_of_its_weights(
    folder: Path, one: Path
) -> None:
    done = warm.run([*RUN, *CAST, "--set=run.dir=cast-alone"], cwd=folder)
    assert done.returncode == 0
    (line,) = (one for one in done.stderr.splitlines() if "sharding.param_dtype_unused" in one)
    assert "the run has one process, which computes in the dtype of its weights" in line
    assert digest(one) == digest(folder / "cast-alone")


@pytest.mark.parametrize("stage", ["replicate", 1])
def test_a_process_that_has_all_weights_casts_none(stage: str | int) -> None:
    with pytest.raises(ConfigError, match="'param_dtype': needs stage = 2, 3 or \"hybrid\""):
        configured({"plugins": {"sharding": {"stage": stage, "param_dtype": "bfloat16"}}})


def test_weights_are_not_cast_twice(folder: Path) -> None:
    done = failed(folder, 2, *CAST, "--set=plugins.mixed-precision.dtype=bf16")
    assert all(one.returncode for one in done)
    assert (
        "mixed-precision casts weights at each use, and param_dtype before they are gathered; "
        'remove one of the two @ plugins.sharding.param_dtype = "bfloat16"'
    ) in done[0].stderr
