"""Several processes train on the CPU only."""

from __future__ import annotations

import pytest
import torch
from support import DEVICE
from torch import nn

from neaptide import ConfigError, HybridTrainer
from neaptide_plugins.sharding.refusals import check


@pytest.mark.parametrize("device", sorted({"cpu", DEVICE.type}))
def test_another_device_than_the_cpu_is_refused(device: str) -> None:
    model = nn.Linear(2, 1).to(device)
    with HybridTrainer(
        model,
        torch.optim.SGD(model.parameters()),
        loss_fn=lambda net, batch: net(batch["x"]).mean(),
        config={"train": {"device": device}},
    ) as trainer:
        run = trainer._session.run
        if device == "cpu":
            check(run, model, trainer.store, 2)
            return
        with pytest.raises(ConfigError, match="several processes train on the CPU only"):
            check(run, model, trainer.store, 2)
