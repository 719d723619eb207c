"""flash-attn and xFormers: what the providers pass to their functions, made of torch here."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import attrs
import pytest
import torch
from torch.nn.functional import pad

from neaptide_kernels.attention import libraries, reference, torch_backends
from neaptide_kernels.attention.call import AttentionCall, AttentionGradient
from neaptide_kernels.attention.op import LIBRARIES
from neaptide_kernels.registry import KERNELS, Provider, Query, disagreements

CPU = torch.device("cpu")
GPU = {"device": "cuda", "capability": (8, 0)}


def by_head(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.transpose(1, 2) for tensor in tensors]


def window_of(left: int, right: int, *, causal: bool) -> int | None:
    assert right == (0 if causal else left)
    return None if left < 0 else left + 1


def flash_forward(
    q: Any, k: Any, v: Any, dropout: float, scale: float, causal: bool, left: int, right: int,  # noqa: FBT001 - the library's
    softcap: float, alibi: None, scores: bool,  # noqa: FBT001 - the library's
) -> Any:  # fmt: skip
    assert (dropout, alibi, scores) == (0.0, None, False)
    window = window_of(left, right, causal=causal)
    call = AttentionCall(
        *by_head(q, k, v), causal=causal, window=window, scale=scale, softcap=softcap or None
    )
    output, sums = reference.attention(*call)
    return output.transpose(1, 2), sums, torch.empty(0), torch.zeros(2)


def flash_backward(
    gradient: Any, q: Any, k: Any, v: Any, output: Any, sums: Any, dq: Any, dk: Any, dv: Any,
    dropout: float, scale: float, causal: bool, left: int, right: int, softcap: float,  # noqa: FBT001 - the library's
    alibi: None, deterministic: bool, state: None,  # noqa: FBT001 - the library's
) -> Any:  # fmt: skip
    assert (dropout, alibi, deterministic, state) == (0.0, None, False, None)
    window = window_of(left, right, causal=causal)
    of = AttentionGradient(
        *by_head(gradient, output), sums, *by_head(q, k, v),
        causal=causal, window=window, scale=scale, softcap=softcap or None,
    )  # fmt: skip
    for place, found in zip((dq, dk, dv), reference.attention_backward(*of), strict=True):
        place.copy_(found.transpose(1, 2))
    return sums


class LowerTriangularMask:
    pass


def memory_forward(q: Any, k: Any, v: Any, bias: Any, p: float, scale: float) -> Any:
    assert p == 0
    assert q.shape[2] == k.shape[2] == v.shape[2]
    call = AttentionCall(
        *by_head(q, k, v), causal=isinstance(bias, LowerTriangularMask), scale=scale
    )
    output, sums = reference.attention(*call)
    return output.transpose(1, 2), pad(sums, (0, -sums.shape[2] % 32), value=torch.inf)


def memory_backward(
    gradient: Any, output: Any, sums: Any, q: Any, k: Any, v: Any, bias: Any, p: float, scale: float
) -> Any:
    assert (p, sums.shape[2] % 32) == (0, 0)
    of = AttentionGradient(
        *by_head(gradient, output), sums[..., : q.shape[1]], *by_head(q, k, v),
        causal=isinstance(bias, LowerTriangularMask), scale=scale,
    )  # fmt: skip
    return by_head(*reference.attention_backward(*of))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    interface = SimpleNamespace(
        _flash_attn_forward=flash_forward, _flash_attn_backward=flash_backward
    )
    fmha = SimpleNamespace(
        memory_efficient_attention_forward_requires_grad=memory_forward,
        memory_efficient_attention_backward=memory_backward,
        attn_bias=SimpleNamespace(LowerTriangularMask=LowerTriangularMask),
    )
    for name, members in (
        ("flash_attn", {"flash_attn_interface": interface}),
        ("xformers", {}),
        ("xformers.ops", {"fmha": fmha}),
    ):
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(libraries, "installed", {"flash-attn": "2.8.3", "xformers": "0.0.35"}.get)
    monkeypatch.setattr(torch_backends, "has_attention_backends", lambda: True)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "provider", [pytest.param(each, id=f"{each.name} {each.op}") for each in LIBRARIES]
)
def test_their_functions_get_what_they_take(provider: Provider) -> None:
    op, tried = KERNELS.ops[provider.op], set()
    for sample in op.spec.samples(CPU):
        arguments = op.spec.complete(sample.arguments)
        query = KERNELS.query(provider.op, arguments)
        if provider.supports(attrs.evolve(query, **GPU)) is True:
            assert [] == disagreements(op.spec, provider, arguments), sample.name
            tried.add(sample.name)
    assert len(tried) >= 5
    assert "grouped torch.bfloat16" in tried
    assert all("torch.float32" not in name for name in tried)


def query_of(dtype: torch.dtype = torch.bfloat16, **options: Any) -> Query:
    given = (torch.zeros(1, 2, 8, 16, dtype=dtype) for _ in range(3))
    call = AttentionCall(*given, **options)
    return attrs.evolve(KERNELS.query("attention", tuple(call)), **GPU)


@pytest.mark.usefixtures("installed")
def test_what_they_cannot_run_is_said() -> None:
    flash, memory = libraries.by_flash_attn, libraries.by_xformers
    assert flash(query_of(window=3, causal=True, softcap=2.0)) is True
    assert flash(query_of(torch.float32)) == "takes float16 and bfloat16"
    assert memory(query_of(causal=True)) is True
    assert memory(query_of(window=3)).startswith("xFormers is used without window")
    ranges = torch.zeros(1, 8, 2, dtype=torch.int32)
    assert flash(query_of(ranges=ranges)) == "flash-attn is used without ranges and without dropout"
    on_cpu = attrs.evolve(query_of(), device="cpu", capability=None)
    for supports in (flash, memory):
        assert supports(on_cpu) == "runs on GPUs of CUDA only, not on cpu"


def test_where_they_are_not_installed_the_reason_has_the_command() -> None:
    for name in ("flash-attn", "xformers"):
        if libraries.installed(name) is not None:
            pytest.skip(f"{name} is installed")
    assert libraries.by_flash_attn(query_of()).endswith(
        "pip install flash-attn --no-build-isolation"
    )
    assert libraries.by_xformers(query_of()).endswith("pip install xformers")


def test_an_old_flash_attn_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "installed", {"flash-attn": "2.6.3"}.get)
    assert libraries.by_flash_attn(query_of()) == "flash-attn 2.6.3 is older than 2.7"
