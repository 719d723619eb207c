"""What `estimate_memory` states, and what the simulated device's caching allocator counts.

Counted between two steps, before the update (with the gradients) and in Predict, in the last stay
in each phase.
"""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from architectures import CASES
from on_device import DEVICE
from support import CYCLE, some

from neaptide import HybridTrainer
from neaptide_toolkit.testing.memory_counts import MARKS
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

ARCHITECTURES = (
    "gpt2", "llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma2", "deepseek", "bert", "bart",
    "t5", "vit",
)  # fmt: skip
PLUGINS: dict[str, dict[str, Any]] = {
    "none": {},
    "layer-streaming": {"layer-streaming": {}},
    "layer-streaming, update in backward": {"layer-streaming": {"update": "in_backward"}},
    "layer-streaming, graph": {"layer-streaming": {"mode": "graph"}},
    "layer-streaming, optimizer on the device": {
        "layer-streaming": {"mode": "graph", "optimizer_on": "device"}
    },
    "optimizer-offload": {"optimizer-offload": {}},
    "activation-checkpointing": {"activation-checkpointing": {}},
    "int8": {"int8": {}},
}
WIDTH = 128
STEPS = 18
TOLERANCE = 0.03


@pytest.mark.parametrize(
    ("plugins", "name"), some([(plugins, name) for plugins in PLUGINS for name in ARCHITECTURES], 2)
)
def test_the_peak_held_is_the_estimate(plugins: str, name: str) -> None:
    make, batch = CASES[name]
    batches = [batch(step) for step in range(STEPS)]
    torch.manual_seed(0)
    model = make(WIDTH).train()
    gc.collect()
    before = torch.cuda.memory_allocated()
    if "layer-streaming" not in plugins:
        model.to(DEVICE)
    trainer = HybridTrainer(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-4),
        config={"phases": CYCLE, "train": {"device": "cuda"}, "plugins": PLUGINS[plugins]},
        plugins=[STEADY_PREDICTOR, MARKS],
    )
    held: dict[tuple[str, str], tuple[int, int]] = {}
    stated: dict[tuple[str, str], int] = {}

    def mark(name: str) -> None:
        phase, moment, stay = name.split()
        now = (int(stay), torch.cuda.memory_allocated() - before)
        held[phase, moment] = max(now, held.get((phase, moment), now))

    trainer.hooks.plugins[MARKS.name].mark = mark
    with trainer:
        for each in batches:
            result = trainer.step(each)
            for phase in {result.phase.name, *(["predict"] if result.jump else [])}:
                ledger = trainer.estimate_memory(phase)
                for moment in ("forward", "update", "predict"):
                    stated[phase, moment] = ledger.total(tier="device", moment=moment)
    assert {("full", "forward"), ("full", "update"), ("predict", "predict")} <= held.keys()
    for key, (_, count) in held.items():
        assert stated[key] == pytest.approx(count, rel=TOLERANCE), key
