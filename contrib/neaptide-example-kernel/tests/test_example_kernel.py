"""Tests of the provider: it is installed, listed and chosen, and agrees with the reference."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from neaptide_example_kernel.provider import PROVIDER
from torch import nn

from neaptide import HybridTrainer
from neaptide_kernels.int8 import dequantize_int8, quantize_int8
from neaptide_kernels.registry import KERNELS
from neaptide_toolkit.testing import LAWS, check_plugin, check_provider

NAME = "example-kernel"


@pytest.mark.parametrize("law", LAWS)
def test_keeps_the_contract(law: str) -> None:
    check_plugin(NAME, laws=[law])


def test_agrees_with_the_reference() -> None:
    assert check_provider(PROVIDER) > 0


def test_serves_a_run_and_leaves_with_it() -> None:
    codes, scale, _ = quantize_int8(torch.linspace(-1, 1, 128), 64)
    arguments = (codes, scale, None, 64)
    with HybridTrainer(nn.Linear(1, 1), config={"plugins": {NAME: {}}}):
        assert "example" == KERNELS.explain("dequantize_int8", arguments).chosen
        inside = dequantize_int8(*arguments)

    assert "torch" == KERNELS.explain("dequantize_int8", arguments).chosen
    assert torch.equal(inside, dequantize_int8(*arguments))


def test_says_why_it_does_not_serve() -> None:
    sample = "16M to torch.bfloat16, blocks of 256"
    verb = ("kernels", "explain", "dequantize_int8", "--json")
    said = subprocess.run(
        [sys.executable, "-m", "neaptide", *verb, "--device", "cpu", "--sample", sample],
        check=True,
        capture_output=True,
        text=True,
    )
    reasons = {one["provider"]: one["reason"] for one in json.loads(said.stdout)["providers"]}
    assert "only float32 results are supported" == reasons["example"]
