"""The optimizers of bitsandbytes: their bits, their bytes, in runs, resumed, streamed, refused."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import bitsandbytes as bnb
import pytest
import torch
from neaptide_bitsandbytes import SPEC
from neaptide_bitsandbytes.optimizer import Bitsandbytes8bit
from torch import nn

from neaptide import ConfigError, HybridTrainer
from neaptide_toolkit.testing import LAWS, check_plugin

if TYPE_CHECKING:
    from pathlib import Path

NAME = "bitsandbytes"
THEIRS = {"adamw": bnb.optim.AdamW8bit, "lion": bnb.optim.Lion8bit}
BYTES = {"adamw": 2 + 8 / 256, "lion": 1 + 4 / 256}
BETAS = (0.9, 0.99)
ALGORITHMS = pytest.mark.parametrize("algorithm", sorted(THEIRS))


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


def trained(make: Any, dtype: torch.dtype = torch.float32, steps: int = 5) -> list[torch.Tensor]:
    """Return the weights after a plain loop."""
    model = net(dtype)
    optimizer = make(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        loss_fn(model, batch(step)).backward()
        optimizer.step()
    return [weight.detach().clone() for weight in model.parameters()]


def config(algorithm: str = "adamw", plugins: Any = (), **options: Any) -> dict[str, Any]:
    return {
        "optimizer": {
            "name": NAME,
            "lr": 1e-3,
            "options": {"algorithm": algorithm, "betas": list(BETAS), **options},
        },
        "train": {"device": "cpu"},
        "plugins": dict(plugins),
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


@ALGORITHMS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_has_the_bits_of_bitsandbytes(algorithm: str, dtype: torch.dtype) -> None:
    expected = trained(
        lambda params: THEIRS[algorithm](params, lr=1e-3, betas=BETAS, weight_decay=0.01), dtype
    )
    own = trained(
        lambda params: Bitsandbytes8bit(params, 1e-3, algorithm, BETAS, weight_decay=0.01), dtype
    )
    assert same(expected, own)


def test_bfloat16_is_rounded_stochastically_on_request() -> None:
    def make(rounding: str) -> Any:
        return lambda params: Bitsandbytes8bit(params, 1e-3, rounding=rounding)

    nearest, stochastic = (
        trained(make(rounding), torch.bfloat16) for rounding in ("nearest", "stochastic")
    )
    assert not same(nearest, stochastic)
    assert same(stochastic, trained(make("stochastic"), torch.bfloat16))


@ALGORITHMS
def test_a_run_has_the_bits_of_a_plain_loop_and_resumes_exactly(
    algorithm: str, tmp_path: Path
) -> None:
    settings = config(algorithm, weight_decay=0.0)
    settings["train"]["clip_norm"] = None
    digest, weights = run(settings, save=tmp_path / "checkpoint")
    plain = trained(
        lambda params: THEIRS[algorithm](params, lr=1e-3, betas=BETAS, weight_decay=0.0), steps=8
    )
    assert same(plain, weights)
    assert digest == run(settings, load=tmp_path / "checkpoint")[0]


@ALGORITHMS
def test_the_ledger_has_the_bytes_of_the_state_also_before_the_first_update(
    algorithm: str,
) -> None:
    with HybridTrainer(net(), loss_fn=loss_fn, config=config(algorithm)) as trainer:
        before = trainer.estimate_memory("full").total(kind="optimizer.state")
        trainer.step(batch(0))
        after = trainer.estimate_memory("full").total(kind="optimizer.state")
        large = sum(p.numel() for p in trainer.model.parameters() if p.dim() == 2)
        small = sum(p.numel() for p in trainer.model.parameters() if p.dim() == 1)
    averages = round(BYTES[algorithm])
    assert before == after == BYTES[algorithm] * large + 4 * averages * small + 12 * 4


@ALGORITHMS
@pytest.mark.parametrize(
    "way",
    [
        {},
        {"optimizer_on": "device"},
        {"update": "in_backward", "clip": "none"},
    ],
    ids=str,
)
def test_layers_stream_with_it_to_the_bit(algorithm: str, way: dict[str, Any]) -> None:
    settings = config(algorithm)
    settings["train"]["clip_norm"] = None
    streamed = copy.deepcopy(settings)
    streamed["plugins"] = {"layer-streaming": way}
    assert same(run(settings)[1], run(streamed)[1])


@pytest.mark.parametrize("name", ["optimizer-offload", "predictor-drift"])
def test_other_plugins_work_beside_it(name: str) -> None:
    plugins = {"predictor-drift": {"min_window": 4, "sample_every": 1}, name: {}}
    settings = config(plugins=plugins)
    settings["phases"] = {
        "warmup": {"steps": 1},
        "full": {"steps": 5},
        "predict": {"rise": 10.0, "correction_interval": 1},
    }
    settings["plugins"]["predictor-drift"] = {"min_window": 4, "sample_every": 1}
    assert run(settings)[0] == run(settings)[0]


@pytest.mark.parametrize("law", LAWS)
def test_keeps_the_contract(law: str) -> None:
    check_plugin(NAME, laws=[law])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"paged": True}, "a paged optimizer needs a GPU (got cpu); set paged = false"),
        ({"algorithm": "adam"}, "optimizer.options.algorithm"),
        ({"betas": [0.9]}, "optimizer.options.betas"),
        ({"bits": 4}, "optimizer.options.bits"),
    ],
)
def test_what_cannot_work_is_one_line(options: dict[str, Any], said: str) -> None:
    settings = config()
    settings["optimizer"]["options"] |= options
    with pytest.raises(ConfigError) as caught:
        HybridTrainer(net(), loss_fn=loss_fn, config=settings)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_state_of_another_optimizer_is_refused() -> None:
    model = net()
    foreign = torch.optim.AdamW(model.parameters())
    loss_fn(model, batch(0)).backward()
    foreign.step()
    with pytest.raises(ValueError, match="but Bitsandbytes8bit needs absmax1, absmax2, state1"):
        Bitsandbytes8bit(model.parameters()).load_state_dict(foreign.state_dict())


def test_it_learns_as_adamw_does() -> None:
    def final(make: Any) -> float:
        model = net()
        optimizer = make(model.parameters())
        for step in range(60):
            optimizer.zero_grad()
            loss = loss_fn(model, batch(step % 4))
            loss.backward()
            optimizer.step()
        return loss.item()

    expected = final(lambda params: torch.optim.AdamW(params, lr=3e-3))
    assert final(lambda params: Bitsandbytes8bit(params, lr=3e-3)) < 1.1 * expected


def test_the_manifest_names_the_optimizer() -> None:
    assert {"optimizer:bitsandbytes"} == set(SPEC.schemes)
