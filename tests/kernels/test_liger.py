"""The providers of Liger: what they pass to its functions, which are made of torch here."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from neaptide_kernels import catalogue, liger
from neaptide_kernels.gated_unit import reference as gated
from neaptide_kernels.liger import LIGER
from neaptide_kernels.norms import reference as norms
from neaptide_kernels.registry import KERNELS, Provider, disagreements

assert catalogue.triton_providers()
CPU = torch.device("cpu")
PROVIDERS = {provider.op: provider for provider in LIGER}


def _rms_norm_forward(x: Any, weight: Any, eps: float, offset: float, mode: int, _: bool) -> Any:  # noqa: FBT001 - Liger's
    y, rstd = norms.rms_norm(x, weight, eps, offset, mode == 0 and weight is not None)
    return y, x.view(-1, x.shape[-1]), rstd.view(-1), 1024, 4, mode


def _rms_norm_backward(
    gradient: Any, x: Any, weight: Any, rstd: Any, offset: float, mode: int, block: int, warps: int,
    in_place: bool, row_mode: bool,  # noqa: FBT001 - Liger's
) -> Any:  # fmt: skip
    assert (x.dim(), rstd.dim(), in_place, row_mode) == (2, 1, False, False)
    assert (block, warps) == (1024, 4)
    narrow = mode == 0 and weight is not None
    of_x, of_weight = norms.rms_norm_backward(
        gradient.view(x.shape), x, weight, rstd, offset, narrow
    )
    return of_x.view(gradient.shape), None if weight is None else of_weight


def _forward(name: str) -> Any:
    return lambda gate, up: (gate, up, gated.gated_unit(gate, up, name))


def _backward(name: str) -> Any:
    def backward(gate: torch.Tensor, up: torch.Tensor, gradient: torch.Tensor) -> Any:
        given = gradient.view(gate.shape)
        of_gate, of_up = gated.gated_unit_backward(given, gate, up, name)
        gate.copy_(of_gate)  # as Liger does
        up.copy_(of_up)
        return gate.view(gradient.shape), up.view(gradient.shape)

    return backward


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = {
        "rms_norm": {
            "rms_norm_forward": _rms_norm_forward,
            "rms_norm_backward": _rms_norm_backward,
        },
        "swiglu": {"swiglu_forward": _forward("silu"), "swiglu_backward": _backward("silu")},
        "geglu": {"geglu_forward": _forward("gelu_tanh"), "geglu_backward": _backward("gelu_tanh")},
        "utils": {"calculate_settings": lambda _: (1024, 4)},
    }
    for name in ("liger_kernel", "liger_kernel.ops"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name, members in functions.items():
        module = ModuleType(f"liger_kernel.ops.{name}")
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(liger, "liger_version", lambda: "0.8.5")
    monkeypatch.setattr(liger, "no_triton", lambda _: "")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("provider", [pytest.param(each, id=each.op) for each in LIGER])
def test_its_functions_get_what_they_take(provider: Provider) -> None:
    op, tried = KERNELS.ops[provider.op], 0
    for sample in op.spec.samples(CPU):
        arguments = op.spec.complete(sample.arguments)
        if provider.supports(KERNELS.query(provider.op, arguments)) is True:
            assert [] == disagreements(op.spec, provider, arguments), sample.name
            tried += 1
    assert tried >= 10


@pytest.mark.usefixtures("installed")
def test_what_it_cannot_run_is_said() -> None:
    def asked(op: str, *arguments: Any) -> Any:
        return PROVIDERS[op].supports(KERNELS.query(op, arguments))

    x = torch.zeros(2, 8)
    assert asked("rms_norm", x, x[0], 1e-6) is True
    assert "one dtype" in asked("rms_norm", x.half(), x[0], 1e-6)
    assert "not float64" in asked("rms_norm", x.double(), x[0].double(), 1e-6)
    assert "no elements" in asked("rms_norm", x[:0], x[0], 1e-6)
    assert "more than 16384" in asked("rms_norm", x.new_zeros(1, 16385), None, 1e-6)
    assert "no gated unit with 'gelu'" in asked("gated_unit", x, x, "gelu")


def test_where_it_is_not_installed_the_reason_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liger, "liger_version", lambda: None)
    x = torch.zeros(2, 8)
    query = KERNELS.query("gated_unit", (x, x, "silu"))
    assert PROVIDERS["gated_unit"].supports(query) == (
        "Liger is not installed: pip install liger-kernel"
    )
