"""Attention on tensor descriptors: which calls, and which tensors are copied for it."""

from __future__ import annotations

import attrs
import pytest
import torch

from neaptide_kernels.attention import trials
from neaptide_kernels.attention.call import AttentionCall
from neaptide_kernels.attention.on_triton import described, launching
from neaptide_kernels.registry import KERNELS

pytest.importorskip("triton", reason="Triton is installed on Linux and Windows only")
CPU = torch.device("cpu")


def call(d: int = 64, dtype: torch.dtype = torch.bfloat16, **options: object) -> AttentionCall:
    given = AttentionCall(*trials.inputs((1, 4, 40, d), 2, 40, CPU, dtype))
    return given._replace(**options)


@pytest.mark.parametrize(
    ("asked", "capability", "reason"),
    [
        (call(causal=True), (9, 0), ""),
        (call(), (10, 3), ""),
        (call(), (8, 9), "capability 9 and 10"),
        (call(), (12, 0), "capability 9 and 10"),
        (call(32, torch.float32), (9, 0), "float32 is left"),
        (call(window=3), (9, 0), "a window"),
        (call(softcap=3.0), (9, 0), "a window"),
        (call(68), (9, 0), "64, 72, ... 128"),
        (call(256), (9, 0), "64, 72, ... 128"),
        (call(32), (9, 0), "64, 72, ... 128"),
    ],
)
def test_it_supports_what_its_launches_are_made_for(
    asked: AttentionCall, capability: tuple[int, int], reason: str
) -> None:
    query = attrs.evolve(
        KERNELS.query("attention", tuple(asked)), device="cuda", capability=capability
    )
    answer = described.supports(query)
    assert (answer is True) if not reason else reason in str(answer)
    for op in ("attention", "attention_backward"):
        assert reason or described.configs(attrs.evolve(query, op=op))


def test_tensors_as_models_make_them_are_not_copied() -> None:
    tensor = torch.zeros(2, 40, 4, 64, dtype=torch.bfloat16).transpose(1, 2)
    assert launching.aligned(tensor) is tensor


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(2 * 4 * 40 * 20).view(2, 4, 40, 20)[..., :16].bfloat16()[:, :, 1:],
        torch.arange(4 * 40 * 18).bfloat16().view(1, 4, 40, 18)[..., :16],
        torch.arange(4 * 40 * 16 + 1).bfloat16()[1:].view(1, 4, 40, 16),
        torch.arange(40 * 16).bfloat16().view(1, 1, 40, 16).expand(1, 4, 40, 16),
    ],
    ids=["fits after a cut", "odd rows", "odd address", "one head for all"],
)
def test_rows_begin_at_multiples_of_16_bytes(tensor: torch.Tensor) -> None:
    found = launching.aligned(tensor)
    steps = [step * found.element_size() for step in (*found.stride()[:3], found.data_ptr())]
    assert torch.equal(found, tensor)
    assert [0] * 3 == [step % 16 for step in steps[:3]]
    assert (found.data_ptr() % 16, all(steps)) == (0, True)
