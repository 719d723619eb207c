"""Own loops in two processes: what counts as in one, and what is told and not trained apart."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
import warm
from several import run_together

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="gloo and fork, as tested here")

SCRIPT = """
import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

from neaptide import HybridTrainer

case, stage, rank = sys.argv[1], sys.argv[2], int(os.environ.get("RANK", 0))
stage = int(stage) if stage.isdecimal() else stage
if "RANK" in os.environ:
    dist.init_process_group("gloo")
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x):
        if case == "buffer" and self.training:
            self.seen.lerp_(x.detach().mean(0), 0.5)
        return x + torch.tanh(self.linear(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        order = [0, 1, 2]
        if case == "order" and rank:
            order = [1, 0, 2]
        for place in order:
            x = self.blocks[place](x)
        return self.head(x)


model = Net()
weights = [*model.parameters()]
temperature = nn.Parameter(torch.ones(1))
if case == "hook":
    weights[0].register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
trained = [*weights, temperature] if case == "stranger" else weights
optimizer = torch.optim.AdamW(trained, lr=0.05)


def loss_fn(net, batch):
    return nn.functional.mse_loss(net(batch["x"]), batch["y"])


own = {"stage": stage, **({"shard_size": 2} if stage == "hybrid" else {})}
if case == "sizes" and rank:
    own["shard_size"] = 4
config = {"seed": 1, "plugins": {"sharding": own}, "phases": {"warmup": {"steps": 0}}}
losses = []
with HybridTrainer(model, optimizer, loss_fn=loss_fn, config=config) as trainer:
    for step in range(6):
        generator = torch.Generator().manual_seed(step)
        batch = {
            "x": torch.randn(8, 6, generator=generator), "y": torch.randn(8, 2, generator=generator)
        }
        if case == "frozen" and step == 2:
            weights[0].requires_grad_(False)
        if case == "memory" and step == 2:
            weights[0].data = weights[0].data.clone()
        if case == "written" and step == 2:
            span = trainer.store.spans()[0]
            with trainer.store.loan(span, "write") as weight:
                weight.mul_(1.0 + 0.1 * rank)
        if case == "rows" and step == 2 and rank == 3:
            weights[4].data.mul_(1.001)
        losses.append(float(trainer.step(batch).loss))
if rank == 0:
    print(json.dumps(losses))
if "RANK" in os.environ:
    dist.destroy_process_group()
"""


@pytest.fixture(scope="session")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a script that trains as its first argument says, in the stage of its second."""
    made = tmp_path_factory.mktemp("own") / "own_loops.py"
    made.write_text(SCRIPT, encoding="utf-8")
    return made


@pytest.mark.parametrize(
    ("case", "stage", "told"),
    [
        pytest.param("buffer", "3", "different weights, changed buffers", marks=pytest.mark.slow),
        ("buffer", "replicate", "different weights, changed buffers"),
        ("order", "3", "different weights, changed buffers or orders of blocks"),
        pytest.param("order", "2", "orders of blocks", marks=pytest.mark.slow),
        ("written", "3", "different values for 'blocks.0.linear.weight'"),
        pytest.param("memory", "3", "was given other memory", marks=pytest.mark.slow),
        pytest.param("stranger", "replicate", "is not in the model", marks=pytest.mark.slow),
        pytest.param("stranger", "1", "is not in the model", marks=pytest.mark.slow),
        pytest.param("hook", "3", "has a gradient hook", marks=pytest.mark.slow),
    ],
)
def test_what_would_train_apart_is_told(script: Path, case: str, stage: str, told: str) -> None:
    done = run_together(2, ["-m", script.stem, case, stage], cwd=script.parent, timeout=90)
    assert all(one.returncode for one in done)
    assert told in "".join(one.stderr for one in done)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("rows", "processes 1 and 3 have the same part of the model, and different weights"),
        ("sizes", "have different settings of stage and shard_size"),
        ("written", "different values for 'blocks.0.linear.weight'"),
        ("order", "different weights, changed buffers or orders of blocks"),
    ],
)
def test_copies_that_would_train_apart_are_told(script: Path, case: str, told: str) -> None:
    command = ["-m", script.stem, case, "hybrid"]
    done = run_together(4, command, cwd=script.parent, timeout=90)
    assert all(one.returncode for one in done)
    assert told in "".join(one.stderr for one in done)


@pytest.mark.parametrize(
    ("case", "stage"),
    [
        ("frozen", "3"),
        pytest.param("frozen", "hybrid", marks=pytest.mark.slow),
        pytest.param("frozen", "2", marks=pytest.mark.slow),
        pytest.param("frozen", "1", marks=pytest.mark.slow),
        pytest.param("plain", "3", marks=pytest.mark.slow),
    ],
)
def test_what_a_loop_does_between_steps_counts(script: Path, case: str, stage: str) -> None:
    alone = warm.run(["-m", script.stem, case, "replicate"], cwd=script.parent)
    command, size = ["-m", script.stem, case, stage], 4 if stage == "hybrid" else 2
    done = run_together(size, command, cwd=script.parent, timeout=90)
    assert [0] * (1 + size) == [one.returncode for one in (alone, *done)], done[0].stderr
    assert json.loads(alone.stdout) == pytest.approx(json.loads(done[0].stdout), rel=1e-6)
