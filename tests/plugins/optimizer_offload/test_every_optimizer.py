"""Every optimizer of torch under every strategy: bitwise where promised, close elsewhere."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from optimizers_of_torch import OPTIMIZERS
from support import CYCLE
from torch import nn, optim
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_pre_hook

from neaptide import HybridTrainer
from neaptide_plugins.optimizer_offload import SPEC
from neaptide_toolkit.offload import lies_in_slab
from neaptide_toolkit.offload.storages import SMALLEST
from neaptide_toolkit.tensors import nested_tensors
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR, tiny_loss, tiny_task

STEPS = 14
EXACT = ["cpu", "pinned", "none"]


def digest(make: Any, settings: dict[str, Any] | None, **train: Any) -> str:
    task = tiny_task(coupled=False)
    matrices = [each for each in task.model.parameters() if each.requires_grad]
    if "Muon" in str(make):
        matrices = [each for each in matrices if each.dim() == 2]
    config: dict[str, Any] = {"phases": CYCLE, "train": {"clip_norm": 1.0, **train}}
    plugins = [STEADY_PREDICTOR]
    if settings is not None:
        config["plugins"] = {"optimizer-offload": settings}
        plugins.append(SPEC)
    trainer = HybridTrainer(
        task.model, make(matrices), loss_fn=tiny_loss, config=config, plugins=plugins
    )
    moved = []
    trainer.model.register_forward_hook(
        lambda module, *_: moved.append(host_bytes(trainer)) if not module.training else None
    )
    with trainer:
        for batch in task.batches[:STEPS]:
            trainer.step(batch)
        on_host = settings is not None and settings["strategy"] in ("cpu", "pinned")
        large = any(
            value.nbytes >= SMALLEST for value in nested_tensors(dict(trainer.optimizer.state))
        )
        assert (on_host and large) == any(moved)
        return trainer.digest()


def host_bytes(trainer: HybridTrainer) -> int:
    """Return the bytes of optimizer state that lie in host memory, outside torch's allocator."""
    tensors = nested_tensors(dict(trainer.optimizer.state))
    return sum(tensor.nbytes for tensor in tensors if lies_in_slab(tensor))


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if "-" not in name])
def test_host_memory_is_bitwise(name: str) -> None:
    make = OPTIMIZERS[name]
    assert digest(make, None) == digest(make, {"strategy": "cpu"})


class Calling(optim.AdamW):
    """Calls the step of AdamW, in which torch runs the hooks of the step once more."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(0.9)
        return super().step(closure)


@pytest.mark.parametrize("strategy", EXACT)
def test_a_step_that_calls_the_step_of_its_base_is_bitwise(strategy: str) -> None:
    optim.AdamW([nn.Parameter(torch.ones(1))])  # from now on torch runs hooks in its step
    assert digest(Calling, None) == digest(Calling, {"strategy": strategy})


@pytest.mark.parametrize("strategy", [*EXACT, "compress", "drop"])
def test_hooks_of_all_optimizers_hear_of_the_users_alone(strategy: str) -> None:
    optim.AdamW([nn.Parameter(torch.ones(1))])
    heard: list[Any] = []
    handle = register_optimizer_step_pre_hook(lambda optimizer, *_: heard.append(optimizer))
    try:
        digest(Calling, None)
        expected = len(heard)
        heard.clear()
        digest(Calling, {"strategy": strategy})
    finally:
        handle.remove()
    assert expected == len(heard)
    assert 1 == len(set(map(id, heard)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "strategy", "restore"), list(itertools.product(OPTIMIZERS, EXACT, ["async", "late"]))
)
def test_every_exact_form_is_bitwise(name: str, strategy: str, restore: str) -> None:
    make = OPTIMIZERS[name]
    settings = {"strategy": strategy, "async_restore": restore == "async"}
    assert digest(make, None) == digest(make, settings)


@pytest.mark.parametrize("strategy", EXACT)
def test_sparse_gradients(strategy: str) -> None:
    def run(*plugins: Any, **settings: Any) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(500, 8, sparse=True))
        generator = torch.Generator().manual_seed(1)
        trainer = HybridTrainer(
            model,
            optim.SparseAdam(model.parameters(), lr=0.1),
            loss_fn=lambda model, batch: functional.mse_loss(model(batch), torch.ones(20, 8)),
            config={"phases": CYCLE, "plugins": settings},
            plugins=[STEADY_PREDICTOR, *plugins],
        )
        with trainer:
            for _ in range(STEPS):
                trainer.step(torch.randint(0, 500, (20,), generator=generator))
            return {"digest": trainer.digest(), **model.state_dict()}

    plain, own = run(), run(SPEC, **{"optimizer-offload": {"strategy": strategy}})
    assert torch.equal(plain["0.weight"], own["0.weight"])


def losses(make: Any, strategy: str | None, steps: int = 200) -> float:
    """Return the mean of the last losses of a regression with jumps that change nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32, bias=False))
    teacher = nn.Linear(32, 32)
    matrices = [each for each in model.parameters() if each.dim() == 2 or "Muon" not in str(make)]
    generator = torch.Generator().manual_seed(1)
    config: dict[str, Any] = {
        "phases": {"warmup": {"steps": 2}, "full": {"steps": 12}, "correct": {"steps": 0}},
    }
    plugins = [STEADY_PREDICTOR]
    if strategy is not None:
        config["plugins"] = {"optimizer-offload": {"strategy": strategy}}
        plugins.append(SPEC)
    trainer = HybridTrainer(
        model,
        make(matrices),
        loss_fn=lambda model, batch: functional.mse_loss(model(batch[0]), batch[1]),
        config=config,
        plugins=plugins,
    )
    seen = []
    with trainer:
        for _ in range(steps):
            x = torch.randn(64, 32, generator=generator)
            with torch.no_grad():
                y = teacher(x)
            seen.append(float(trainer.step((x, y)).loss))
    return sum(seen[-20:]) / 20


@pytest.mark.parametrize("name", ["Adam", "RMSprop-all", "SGD-momentum"])
def test_compressed_state_trains_as_well(name: str) -> None:
    make = OPTIMIZERS[name]
    plain, own = losses(make, None, 60), losses(make, "compress", 60)
    assert 0 < abs(own - plain) <= 0.02 * plain


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if "maximize" not in name])
def test_every_compressed_state_trains_as_well(name: str) -> None:
    make = OPTIMIZERS[name]
    plain, own = losses(make, None), losses(make, "compress")
    assert abs(own - plain) <= 0.02 * plain
