"""`adamw_split_step` beside torch's own AdamW, and its kernel to the bit in the interpreter."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import DEVICE
from torch import nn, optim

from neaptide_kernels.adamw_split import adamw_split_step
from neaptide_kernels.adamw_split.op import scalars, values
from neaptide_kernels.adamw_split.split_master import join, split
from neaptide_toolkit.testing.parting import same_bits

pytestmark = pytest.mark.usefixtures("on_device")

SHAPES = [(5, 7), (64,), (), (2, 0), (33, 3)]
CPU = torch.device("cpu")


class Split:
    """Weights that only ever exist in halves, and their moments."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        halves = [split(parameter.detach()) for parameter in parameters]
        self.hi, self.lo = [hi for hi, _ in halves], [lo for _, lo in halves]
        self.mean = [torch.zeros_like(parameter.detach()) for parameter in parameters]
        self.square = [torch.zeros_like(parameter.detach()) for parameter in parameters]

    def step(
        self, grads: list[torch.Tensor], lr: float | torch.Tensor, step: int, **o: Any
    ) -> None:
        rate = torch.as_tensor(lr, dtype=None if isinstance(lr, torch.Tensor) else torch.float64)
        count = torch.tensor(float(step))
        adamw_split_step(self.hi, self.lo, self.mean, self.square, grads, rate, count, **o)

    def assert_is(self, optimizer: optim.Optimizer, parameters: list[nn.Parameter]) -> None:
        masters = map(join, self.hi, self.lo)
        assert all(map(same_bits, masters, [parameter.detach() for parameter in parameters]))
        for name, kept in (("exp_avg", self.mean), ("exp_avg_sq", self.square)):
            assert all(map(same_bits, kept, [optimizer.state[p][name] for p in parameters])), name


def numbers(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator) * 10 ** torch.randn(shape, generator=generator)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("tensor_lr", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_a_thousand_steps_are_those_of_torch_adamw(
    dtype: torch.dtype, *, tensor_lr: bool, fused: bool
) -> None:
    generator = torch.Generator(DEVICE).manual_seed(0)
    parameters = [nn.Parameter(numbers(shape, generator)) for shape in SHAPES]
    ours = Split(parameters)
    form: dict[str, Any] = {"fused": True} if fused else {"foreach": False}
    optimizer = optim.AdamW(parameters, lr=1e-2, weight_decay=0.1, **form)
    for step in range(1, 1001):
        rate = 1e-2 * (1 + math.cos(step / 100)) / 2
        lr = torch.tensor(rate) if tensor_lr else rate
        optimizer.param_groups[0]["lr"] = lr
        grads = [numbers(shape, generator).to(dtype) for shape in SHAPES]
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad.float()
        optimizer.step()
        ours.step(grads, lr, step, weight_decay=0.1, fused=fused)
    ours.assert_is(optimizer, parameters)


@given(
    lr=st.floats(0, 1),
    beta1=st.floats(0, 0.999),
    beta2=st.floats(0, 0.9999),
    eps=st.floats(1e-12, 1),
    decay=st.sampled_from([0.0, 1e-3, 0.5]),
    maximize=st.booleans(),
    steps=st.integers(1, 5),
)
def test_any_options_are_those_of_torch_adamw(
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    steps: int,
    *,
    maximize: bool,
) -> None:
    generator = torch.Generator(DEVICE).manual_seed(1)
    parameters = [nn.Parameter(numbers((37,), generator))]
    ours = Split(parameters)
    options = {"eps": eps, "weight_decay": decay, "maximize": maximize}
    optimizer = optim.AdamW(
        parameters,
        lr=lr,
        betas=(beta1, beta2),
        foreach=False,
        **options,  # type: ignore[arg-type]  # mixed values
    )
    for step in range(1, steps + 1):
        parameters[0].grad = numbers((37,), generator)
        optimizer.step()
        ours.step([parameters[0].grad], lr, step, beta1=beta1, beta2=beta2, **options)
    ours.assert_is(optimizer, parameters)


def test_tiny_updates_are_not_lost() -> None:
    weight = nn.Parameter(torch.ones(8))
    ours = Split([weight])
    for step in range(1, 101):
        ours.step([torch.ones(8)], 1e-5, step, weight_decay=0.0)
    assert bool((ours.hi[0] == 1 - 2**-8).all() or (ours.hi[0] == 1).all())
    torch.testing.assert_close(join(ours.hi[0], ours.lo[0]), torch.full((8,), 1 - 1e-3))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"lo": []}, "lo has 0 tensors for 1 weights"),
        ({"lo": [torch.zeros(3)]}, r"lo\[0\] is torch.float32 \[3\]; for a weight of \[3\]"),
        ({"grads": [torch.zeros(4)]}, r"grads\[0\] is torch.float32 \[4\]"),
        ({"grads": [torch.zeros(3).int()]}, r"it must be floating of the same shape"),
        ({"hi": [torch.zeros(3)]}, "upper halves of split masters, must be torch.bfloat16"),
        ({"lr": torch.ones(1)}, "lr must be a 0-dim float32 or float64"),
        ({"step": torch.ones(1)}, "lr must be a 0-dim float32 or float64"),
        ({"beta2": 1.0}, r"beta1 and beta2 must be in \[0, 1\) \(got 0.9, 1.0\)"),
    ],
)
def test_what_does_not_go_together_is_refused(change: dict[str, Any], says: str) -> None:
    hi, lo, mean, square, grads = values([(3,)], torch.float32, CPU)
    lr, step = scalars(1e-3, 1, CPU)
    arguments = {"hi": hi, "lo": lo, "exp_avg": mean, "exp_avg_sq": square, "grads": grads}
    with pytest.raises(ValueError, match=says):
        adamw_split_step(**{**arguments, "lr": lr, "step": step, **change})


def test_the_kernel_is_torch_adamw_to_the_bit_where_roots_are_exact() -> None:
    pytest.importorskip("triton", reason="Triton is installed on Linux and Windows only")
    if torch.backends.cpu.get_cpu_capability() not in {"AVX2", "AVX512"}:
        pytest.skip("torch's own kernels fuse differently on this CPU")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("interpreted_bits.py"))],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, done.stderr[-2000:]
    assert {"moments": 0, "masters where roots are exact": 0, "constants": 0} == json.loads(
        done.stdout
    )
