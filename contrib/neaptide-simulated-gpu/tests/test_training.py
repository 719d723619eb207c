"""Training on the device gives the CPU's bits; torch's own features work there."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest
import torch
from models import Model
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, foreach=False),
    "foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
}


def trained(
    device: str, optimizer: str, *, dropout: float = 0.0, autocast: bool = False
) -> tuple[list[float], dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model = Model(dropout=dropout)
    tokens = torch.randint(0, 64, (4, 2, 9))
    model = model.to(device)
    made = OPTIMIZERS[optimizer](model.parameters())
    torch.manual_seed(1)
    losses = []
    for batch in tokens.to(device):
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            logits = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        made.step()
        made.zero_grad()
        losses.append(loss.item())
    return losses, {name: value.cpu() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_is_bitwise_the_cpus(optimizer: str, dropout: float) -> None:
    losses, weights = trained("cpu", optimizer, dropout=dropout)
    other, others = trained("cuda", optimizer, dropout=dropout)
    assert losses == other
    for name, value in weights.items():
        assert torch.equal(value, others[name]), name


def test_autocast_computes_in_half_precision() -> None:
    losses, _ = trained("cuda", "sgd", autocast=True)
    plain, _ = trained("cpu", "sgd")
    assert losses != plain
    assert losses == pytest.approx(plain, rel=0.05)


def test_the_state_of_a_generator_is_saved_and_restored() -> None:
    before = torch.cuda.random.get_rng_state()  # as transformers' Trainer calls it
    first = torch.rand(5, device="cuda")
    torch.cuda.set_rng_state(before)
    assert torch.equal(first, torch.rand(5, device="cuda"))
    with torch.random.fork_rng([0], device_type="cuda"):
        torch.manual_seed(3)
        torch.rand(5, device="cuda")
    after = torch.rand(5, device="cuda")
    torch.cuda.set_rng_state(before)
    torch.rand(5, device="cuda")
    assert torch.equal(after, torch.rand(5, device="cuda"))


def test_a_generator_of_ones_own_draws_the_cpus_numbers() -> None:
    own = torch.Generator("cuda").manual_seed(4)
    plain = torch.Generator().manual_seed(4)
    assert torch.equal(
        torch.randn(3, generator=own, device="cuda").cpu(), torch.randn(3, generator=plain)
    )


def test_tensors_of_the_host_are_kept_out() -> None:
    here = torch.ones(3, device="cuda")
    with pytest.raises(TypeError):
        here.numpy()
    with pytest.raises(RuntimeError, match="same device"):
        here + torch.ones(3)
    with pytest.raises(RuntimeError, match="same device"):
        torch.nn.functional.embedding(torch.tensor([1]), here.view(3, 1))
    assert here[torch.tensor([1])].cpu().tolist() == [1]  # as torch has it
    assert (here + torch.tensor(1.0)).cpu().tolist() == [2, 2, 2]


def test_state_is_saved_loaded_and_copied(tmp_path: Path) -> None:
    model = Model().to("cuda")
    torch.save(model.state_dict(), tmp_path / "x.pt")
    state = torch.load(tmp_path / "x.pt", map_location="cpu")
    assert all(value.device.type == "cpu" for value in state.values())
    assert torch.equal(copy.deepcopy(model).head.weight.cpu(), state["head.weight"])
    assert torch.load(tmp_path / "x.pt")["head.weight"].device == torch.device("cuda", 0)


def test_checkpointing_runs_there_and_lowers_the_peak() -> None:
    def peak(*, checkpointed: bool) -> int:
        model = Model(layers=6, width=64, hidden=256).to("cuda")
        for layer in model.layers if checkpointed else ():
            inner = layer.forward
            layer.forward = lambda x, inner=inner: torch.utils.checkpoint.checkpoint(
                inner, x, use_reentrant=False
            )
        torch.cuda.reset_peak_memory_stats()
        model(torch.zeros(4, 128, dtype=torch.long, device="cuda")).sum().backward()
        return torch.cuda.max_memory_allocated()

    assert peak(checkpointed=True) < 0.6 * peak(checkpointed=False)


def test_torchs_general_calls_find_the_device() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert torch.get_device_module("cuda").current_stream().stream_id == 0
    assert torch.ones(2).pin_memory().is_pinned()
    assert not torch.ones(2).is_pinned()


def test_a_copy_between_two_devices_has_its_values() -> None:
    import simulated_gpu

    simulated_gpu.configure(devices=2)
    there = torch.arange(8.0, device="cuda:0").to("cuda:1") * 2
    assert there.device == torch.device("cuda", 1)
    assert there.cpu().tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    with pytest.raises(RuntimeError, match="same device"):
        there + torch.ones(8, device="cuda:0")
    assert torch.cuda.memory_allocated(1) > 0
    with torch.cuda.device(1):
        assert torch.ones(1, device="cuda").device.index == 1


@pytest.mark.parametrize(
    "mixed",
    [
        lambda: torch.ones(4)[torch.tensor([1], device="cuda")],
        lambda: torch.ones(4)[torch.ones(4, dtype=torch.bool, device="cuda")],
        lambda: torch.equal(torch.ones(4, device="cuda"), torch.ones(4)),
        lambda: torch.ones(4, device="cuda") + torch.ones(4),
        lambda: torch.ones(2, device=f"cuda:{torch.cuda.device_count()}"),
    ],
    ids=["index", "mask", "equal", "sum", "no such device"],
)
def test_what_a_gpu_refuses_is_refused(mixed: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError, match=r"same device|different devices|invalid device"):
        mixed()
    assert 1 == torch.ones(4, device="cuda")[torch.tensor([1])].numel()  # indices may be the host's
