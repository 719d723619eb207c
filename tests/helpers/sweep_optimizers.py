"""Every optimizer of torch's `optim_db`, with every input and implementation that the CPU has."""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from law_loops import WIDTH, Net, batch, loss_of
from sweeps import UPDATES, Case, scalar_of
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator


class ComplexNet(nn.Module):
    """Blocks with complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Linear(WIDTH, WIDTH, dtype=torch.complex64) for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).to(torch.complex64)
        for block in self.blocks:
            x = x + block(x)
        return x


class SparseNet(nn.Module):
    """Blocks that are embeddings with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Embedding(9, WIDTH, sparse=True) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = x.abs().mul(3).long().clamp(0, 8)
        return torch.stack([block(places) for block in self.blocks]).prod(0)


def _of_everything(model: nn.Module, given: Any) -> torch.Tensor:
    return scalar_of(model(given["x"]))


def _all(model: nn.Module) -> list[Any]:
    return list(model.parameters())


def _matrices(model: nn.Module) -> list[Any]:
    return [one for one in model.parameters() if one.ndim == 2]


def _groups(model: nn.Module) -> list[Any]:
    named = dict(model.named_parameters())
    biases = [one for name, one in named.items() if name.endswith("bias")]
    others = [one for name, one in named.items() if not name.endswith("bias")]
    return [{"params": others}, {"params": biases, "lr": 0.002}]


def _implementations(info: Any) -> list[dict[str, bool]]:
    found: list[dict[str, bool]] = [{}]
    if "foreach" in info.supported_impls:
        found += [{"foreach": True}, {"foreach": False}]
    if "cpu" in info.supports_fused_on:
        found.append({"fused": True})
    if "differentiable" in info.supported_impls:
        found.append({"differentiable": True})
    if info.has_capturable_arg:
        found.append({"capturable": True})
    return found


def _nets(info: Any) -> dict[str, tuple[Any, Any, Any]]:
    """Return models by name, each with its loss and what the optimizer is given of it."""
    if info.only_supports_sparse_grads:
        return {"sparse": (SparseNet, _of_everything, _all)}
    if info.name == "Muon":
        return {"matrices": (Net, loss_of, _matrices)}
    found: dict[str, tuple[Any, Any, Any]] = {"net": (Net, loss_of, _all)}
    if info.name != "LBFGS":
        found["groups"] = (Net, loss_of, _groups)
    if info.supports_complex:
        found["complex"] = (ComplexNet, _of_everything, _all)
    return found


def _made(info: Any, settings: dict[str, Any], given: Any, model: nn.Module) -> Any:
    return info.optim_cls(given(model), **copy.deepcopy(settings))


def _batches() -> list[Any]:
    return [batch(seed) for seed in range(UPDATES)]


def optimizer_cases() -> Iterator[Case]:
    """Yield every optimizer, input, implementation and model."""
    from torch.testing._internal.common_optimizers import optim_db  # it takes seconds

    for info in optim_db:
        for number, one in enumerate(info.optim_inputs_func(device="cpu")):
            for implementation in _implementations(info):
                for name, (net, loss_fn, given) in _nets(info).items():
                    settings = {**one.kwargs, **implementation}
                    way = ", ".join(f"{key}={value}" for key, value in implementation.items())
                    yield Case(
                        f"{info.name} {number} {way or 'default'} {name}",
                        net,
                        _batches,
                        loss_fn,
                        partial(_made, info, settings, given),
                    )
