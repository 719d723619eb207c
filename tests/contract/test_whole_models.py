"""A whole model that is saved in the middle of a run is loaded where Neaptide is not installed."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import torch
from support import DEVICE
from torch import nn

from neaptide import HybridTrainer

if TYPE_CHECKING:
    from pathlib import Path

STREAMING = "layer-streaming"
WAYS: dict[str, dict[str, Any]] = {
    "checkpointing": {"activation-checkpointing": {}},
    "compression": {"activation-compression": {"min_elements": 1}},
    "streaming": {STREAMING: {}},
    "graph": {STREAMING: {"mode": "graph"}},
    "in-backward": {STREAMING: {"optimizer_on": "device", "update": "in_backward"}},
    "offload": {"optimizer-offload": {}, "ema": {}},
    "int8": {"int8": {"warmup": "int8", "full": "int8"}},
}
LOADED = """
    import sys

    class Nowhere:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0].startswith("neaptide"):
                raise ModuleNotFoundError(name)

    sys.meta_path.insert(0, Nowhere())
    import torch

    for path in sys.argv[1:]:
        model = torch.load(path, weights_only=False, map_location="cpu")
        expected = torch.load(path + ".expected", map_location="cpu")
        found = model.state_dict()
        assert found.keys() == expected.keys(), path
        assert all(torch.equal(found[name], expected[name]) for name in found), path
        model(torch.randn(2, 8)).sum().backward()
"""


def model_of_blocks() -> nn.Module:
    blocks = (nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))
    return nn.Sequential(nn.Linear(8, 8), nn.Sequential(*blocks), nn.Linear(8, 2)).to(DEVICE)


def test_what_torch_save_wrote_loads_without_neaptide(tmp_path: Path) -> None:
    for name, plugins in WAYS.items():
        torch.manual_seed(0)
        model, batch = model_of_blocks(), torch.randn(4, 8).to(DEVICE)
        trainer = HybridTrainer(
            model,
            torch.optim.AdamW(model.parameters(), lr=0.1),
            loss_fn=lambda model, batch: model(batch).square().mean(),
            config={"plugins": plugins},
        )
        with trainer:
            for _ in range(2):
                trainer.step(batch)
            torch.save(model, tmp_path / name)
            expected = {key: value.detach().clone() for key, value in model.state_dict().items()}
            torch.save(expected, tmp_path / f"{name}.expected")
    paths = [str(tmp_path / name) for name in WAYS]
    done = subprocess.run(
        [sys.executable, "-c", dedent(LOADED), *paths], capture_output=True, text=True, check=False
    )
    assert 0 == done.returncode, done.stderr
