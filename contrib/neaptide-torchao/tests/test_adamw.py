"""torchao's AdamW: its bits, its bytes, in runs, resumed, streamed, refused."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torchao.optim
from neaptide_torchao.adamw.optimizer import TorchaoAdamw
from torch import nn

from neaptide import ConfigError, HybridTrainer
from neaptide_toolkit.testing import LAWS, check_plugin

if TYPE_CHECKING:
    from pathlib import Path

NAME = "torchao-adamw"
THEIRS = {
    "8bit": torchao.optim.AdamW8bit,
    "4bit": torchao.optim.AdamW4bit,
    "fp8": torchao.optim.AdamWFp8,
}
BYTES = {"8bit": 2 + 8 / 256, "4bit": 1 + 8 / 128, "fp8": 2 + 8 / 256}
KEPT = pytest.mark.parametrize("kept", sorted(THEIRS))


def net(dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return a model with large and small tensors, and layers that stream."""
    torch.manual_seed(0)
    block = lambda: nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))  # noqa: E731
    return nn.Sequential(*(block() for _ in range(3))).to(dtype)


def batch(step: int) -> torch.Tensor:
    return torch.randn(8, 64, generator=torch.Generator().manual_seed(step))


def loss_fn(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = x.to(next(model.parameters()).dtype)
    return (model(x) - x).square().mean()


def trained(make: Any, dtype: torch.dtype = torch.float32, steps: int = 4) -> list[torch.Tensor]:
    """Return the weights after a plain loop."""
    model = net(dtype)
    optimizer = make(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        loss_fn(model, batch(step)).backward()
        optimizer.step()
    return [weight.detach().clone() for weight in model.parameters()]


def config(kept: str = "8bit", **options: Any) -> dict[str, Any]:
    return {
        "optimizer": {
            "name": NAME,
            "lr": 1e-3,
            "options": {"kept": kept, "compiled": False, **options},
        },
        "train": {"device": "cpu", "clip_norm": None},
    }


def run(
    settings: dict[str, Any], *, save: Path | None = None, load: Path | None = None
) -> tuple[str, list[torch.Tensor]]:
    """Return digest and weights after eight updates; a checkpoint is after the fourth."""
    model = net()
    with HybridTrainer(model, loss_fn=loss_fn, config=settings) as trainer:
        if load is not None:
            trainer.load(load)
        for step in range(0 if load is None else 4, 8):
            trainer.step(batch(step))
            if save is not None and step == 3:
                trainer.save(save)
        digest = trainer.digest()
    return digest, [weight.detach().clone() for weight in model.parameters()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, one, other))


@KEPT
def test_it_has_the_bits_of_torchao(kept: str) -> None:
    with torch.compiler.set_stance("force_eager"):  # torchao has no option for it
        expected = trained(lambda params: THEIRS[kept](params, lr=1e-3))
    assert same(expected, trained(lambda params: TorchaoAdamw(params, kept=kept, compiled=False)))


def test_compiled_it_has_the_bits_of_torchao_as_it_comes() -> None:
    def few(make: Any) -> torch.Tensor:
        weight = nn.Parameter(torch.linspace(-1, 1, 4096).view(64, 64))
        optimizer = make([weight])
        for step in range(3):
            weight.grad = torch.randn(64, 64, generator=torch.Generator().manual_seed(step))
            optimizer.step()
        return weight.detach()

    expected = few(lambda params: THEIRS["fp8"](params, lr=1e-3))
    assert torch.equal(expected, few(lambda params: TorchaoAdamw(params, kept="fp8")))


def test_bfloat16_is_rounded_stochastically_on_request() -> None:
    def make(rounding: str) -> Any:
        return lambda params: TorchaoAdamw(params, compiled=False, rounding=rounding)

    nearest, stochastic = (
        trained(make(rounding), torch.bfloat16) for rounding in ("nearest", "stochastic")
    )
    assert not same(nearest, stochastic)
    assert same(stochastic, trained(make("stochastic"), torch.bfloat16))


@KEPT
def test_a_run_has_the_bits_of_a_plain_loop_and_resumes_exactly(kept: str, tmp_path: Path) -> None:
    digest, weights = run(config(kept), save=tmp_path / "checkpoint")
    assert same(trained(lambda p: TorchaoAdamw(p, kept=kept, compiled=False), steps=8), weights)
    assert digest == run(config(kept), load=tmp_path / "checkpoint")[0]


@KEPT
def test_the_ledger_has_the_bytes_of_the_state_also_before_the_first_update(kept: str) -> None:
    with HybridTrainer(net(), loss_fn=loss_fn, config=config(kept)) as trainer:
        before = trainer.estimate_memory("full").total(kind="optimizer.state")
        trainer.step(batch(0))
        after = trainer.estimate_memory("full").total(kind="optimizer.state")
        large = sum(p.numel() for p in trainer.model.parameters() if p.dim() == 2)
        small = sum(p.numel() for p in trainer.model.parameters() if p.dim() == 1)
    assert before == after == BYTES[kept] * large + 8 * small + 12 * 4


@KEPT
@pytest.mark.parametrize(
    "way",
    [{}, {"optimizer_on": "device"}, {"update": "in_backward", "clip": "none"}],
    ids=str,
)
def test_layers_stream_with_it_to_the_bit(kept: str, way: dict[str, Any]) -> None:
    streamed = copy.deepcopy(config(kept))
    streamed["plugins"] = {"layer-streaming": way}
    assert same(run(config(kept))[1], run(streamed)[1])


@pytest.mark.parametrize("name", ["optimizer-offload", "lr-schedule"])
def test_other_plugins_work_beside_it(name: str) -> None:
    settings = config()
    settings["phases"] = {
        "warmup": {"steps": 1},
        "full": {"steps": 5},
        "predict": {"rise": 10.0, "correction_interval": 1},
    }
    settings["plugins"] = {"predictor-drift": {"min_window": 4, "sample_every": 1}, name: {}}
    assert run(settings)[0] == run(settings)[0]


@pytest.mark.parametrize("law", LAWS)
def test_keeps_the_contract(law: str) -> None:
    check_plugin(NAME, laws=[law])


@pytest.mark.parametrize(
    "options",
    [{"kept": "2bit"}, {"betas": [0.9]}, {"block_size": 100}, {"amsgrad": True}],
    ids=str,
)
def test_a_wrong_option_is_one_line(options: dict[str, Any]) -> None:
    settings = config()
    settings["optimizer"]["options"] |= options
    with pytest.raises(ConfigError, match=f"optimizer.options.{next(iter(options))}") as caught:
        HybridTrainer(net(), loss_fn=loss_fn, config=settings)
    assert "\n" not in str(caught.value)


def test_a_state_of_another_form_is_refused() -> None:
    model = net()
    loss_fn(model, batch(0)).backward()
    other = TorchaoAdamw(model.parameters(), kept="4bit", compiled=False)
    other.step()
    with pytest.raises(ValueError, match=r"'exp_avg.codes' of parameter 0 is \[4096\] in the st"):
        TorchaoAdamw(model.parameters(), compiled=False).load_state_dict(other.state_dict())
