"""A model larger than twice the memory: its weights are read once, into the place they stay in."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_model, save_file, save_model
from support import DEVICE, environment
from torch import nn

from neaptide import CheckpointError, ConfigError, HybridTrainer
from neaptide_toolkit.export import export_model

if TYPE_CHECKING:
    from pathlib import Path


class Net(nn.Module):
    def __init__(self, *, tied: bool = False, buffer: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        blocks = [nn.Linear(8, 8) for _ in range(4)]
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(8, 8)
        if tied:
            self.blocks[2].weight = self.blocks[0].weight
            self.head.weight = self.first.weight
        self.register_buffer("scale", torch.full((), 2.0))
        self.register_buffer("passing", torch.ones(()), persistent=buffer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x).tanh() * self.scale
        return self.head(x) * self.passing


def loss(net: Any, x: torch.Tensor) -> torch.Tensor:
    return net(x).square().mean()


def trained(model: nn.Module, **settings: Any) -> tuple[list[float], HybridTrainer]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    config = {"plugins": {"layer-streaming": settings}}
    batches = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    with HybridTrainer(model, optimizer, loss_fn=loss, config=config) as trainer:
        return [trainer.step(batch).loss for batch in batches], trainer


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_without_memory_of_its_own_trains_as_the_one_it_was_read_from(
    tmp_path: Path, *, tied: bool
) -> None:
    torch.manual_seed(0)
    whole = Net(tied=tied)
    save_model(whole, str(tmp_path / "model.safetensors"))
    with torch.device("meta"):
        empty = Net(tied=tied)
    settings = {"max_active_layers": 3}
    plain, first = trained(whole, **settings)
    losses, second = trained(empty, weights=str(tmp_path), **settings)
    assert plain == losses
    assert not any(tensor.is_meta for tensor in empty.state_dict().values())
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name])


@pytest.mark.parametrize("tied", [False, True])
def test_what_is_exported_is_what_others_read(tmp_path: Path, *, tied: bool) -> None:
    torch.manual_seed(0)
    _, trainer = trained(Net(tied=tied), max_active_layers=3)
    (file,) = export_model(trainer.model, trainer.store, tmp_path / "out")
    again = Net(tied=tied)
    load_model(again, str(file))
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(value.cpu(), again.state_dict()[name])
    shards = export_model(trainer.model, trainer.store, tmp_path / "more", max_shard_bytes=600)
    assert len(shards) > 2
    with torch.device("meta"):
        empty = Net(tied=tied)
    _, last = trained(empty, weights=str(tmp_path / "more"), max_active_layers=3)
    assert not any(tensor.is_meta for tensor in last.model.state_dict().values())


def test_what_is_not_there_is_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    with torch.device("meta"):
        empty, other = Net(), Net(buffer=False)
    with pytest.raises(
        ConfigError, match=r"'first\.weight' has no values .* set weights to the model's"
    ):
        trained(empty)
    torch.manual_seed(0)
    save_model(Net(buffer=False), str(tmp_path / "model.safetensors"))
    with pytest.raises(ConfigError, match=r"'passing' has no values .* build it on the CPU"):
        trained(other, weights=str(tmp_path))
    save_file({"first.weight": torch.ones(8, 8)}, str(tmp_path / "model.safetensors"))
    with pytest.raises(CheckpointError, match="lack "):
        trained(Net(), weights=str(tmp_path))
    with pytest.raises(CheckpointError, match="nowhere"):
        trained(Net(), weights=str(tmp_path / "nowhere"))


PEAK = """
    import sys
    import torch
    from torch import nn
    from neaptide import HybridTrainer
    from pathlib import Path
    def status(name):
        text = Path("/proc/self/status").read_text()
        return int(next(l for l in text.splitlines() if l.startswith(name)).split()[1]) * 1024
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(2048, 2048, bias=False) for _ in range(24)])  # 384 MiB
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    warm = nn.Sequential(*[nn.Linear(4, 4) for _ in range(2)])
    settings = {"update": "in_backward", "max_active_layers": 2, "resident": 0}
    def run(model, optimizer, width, **more):
        config = {"plugins": {"layer-streaming": {**settings, **more}}}
        with HybridTrainer(
            model, optimizer, loss_fn=lambda m, x: m(x).square().mean(), config=config
        ) as trainer:
            trainer.step(torch.ones(2, width))
            return sum(b.host.nbytes for b in trainer.store.streaming.blocks) + sum(
                t.nbytes for t in trainer.store.streaming.buffers()
            )
    run(warm, torch.optim.SGD(warm.parameters(), lr=0.1), 4)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    plan = run(model, optimizer, 2048, weights=sys.argv[1])
    print(plan, status("VmHWM") - before)
"""


def test_the_peak_is_the_plan_and_one_block(tmp_path: Path) -> None:
    names = [f"{index}.weight" for index in range(24)]
    save_file({name: torch.zeros(2048, 2048) for name in names}, str(tmp_path / "w.safetensors"))
    done = subprocess.run(
        [sys.executable, "-c", dedent(PEAK), str(tmp_path)],
        env=environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    plan, peak = map(int, done.stdout.split())
    block, slack = 16 << 20, 24 << 20
    assert 24 * block <= plan <= 27 * block
    # One block's gradients beside the plan, and one block.
    assert peak <= plan + 2 * block + slack
