"""Products in fp8: their values, their backward in bf16, and runs in which they act."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import CYCLE, tensors_of, tiny_trainer
from torch import nn
from transformers.pytorch_utils import Conv1D

from neaptide import ConfigError
from neaptide_plugins.mixed_precision.config import MixedPrecisionConfig
from neaptide_plugins.mixed_precision.fp8 import Fp8Products
from neaptide_plugins.mixed_precision.refusals import check_fp8
from neaptide_toolkit.gradient_error import compare
from neaptide_toolkit.low_precision import intercepting
from neaptide_toolkit.testing import check_plugin
from neaptide_toolkit.testing.parting import same_bits
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "mixed-precision"
TINY = {"fp8_even_if_slower": True, "fp8_min_elements": 1, "fp8_exclude": []}
FP8 = dict.fromkeys(("warmup", "full", "predict", "correct", "evaluate"), "fp8")


def handler_of(module: nn.Module) -> Fp8Products:
    weights = {p: name for name, p in module.named_parameters() if p.ndim == 2}
    return Fp8Products(weights, torch.bfloat16)


def taken(
    module: nn.Module, x: torch.Tensor, handler: Fp8Products | None
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        if handler is None:
            output = module(x)
        else:
            with intercepting(handler):
                output = module(x)
    generator = torch.Generator().manual_seed(1)
    gradient = torch.randn(output.shape, generator=generator, dtype=torch.float32).to(output.dtype)
    return output, list(torch.autograd.grad(output, [x, *module.parameters()], gradient))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "make", [nn.Linear, partial(nn.Linear, bias=False), lambda i, o: Conv1D(o, i)]
)
def test_the_product_is_close_and_its_backward_that_of_bf16(
    make: Callable[[int, int], nn.Module], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    module = make(32, 48).to(dtype)
    x = torch.randn(3, 20, 32, dtype=dtype, requires_grad=True)
    handler = handler_of(module)
    (plain, exact), (output, found) = taken(module, x, None), taken(module, x, handler)
    assert (plain.dtype, plain.shape, 1) == (output.dtype, output.shape, handler.done)
    assert 0 < compare([plain], [output]).relative < 0.05
    for one, other in zip(exact, found, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert compare([one], [other]).relative < 0.005


def test_what_is_not_finite_stays_so() -> None:
    layer = nn.Linear(32, 32)
    x = torch.randn(8, 32, requires_grad=True)
    with torch.no_grad():
        x[2, 3] = torch.inf
    output, _ = taken(layer, x, handler_of(layer))
    assert output.isnan().all()


def test_a_second_derivative_is_refused() -> None:
    layer = nn.Linear(32, 32)
    x = torch.randn(8, 32, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16), intercepting(handler_of(layer)):
        loss = layer(x).square().sum()
    with pytest.raises(RuntimeError, match="product in fp8 cannot be differentiated"):
        torch.autograd.grad(loss, [x], create_graph=True)


def test_outside_of_autocast_and_with_other_weights_nothing_changes() -> None:
    layer, other, double = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32).double()
    handler = handler_of(nn.ModuleList([layer, double]))
    x = torch.randn(8, 32)
    with intercepting(handler):
        layer(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            other(x)
            double(x.double())
            layer(x[:0])
        with torch.autocast("cpu", dtype=torch.float16):
            assert layer(x).dtype is torch.float16
    assert handler.done == 0


def run(
    steps: int, settings: dict[str, Any], beside: dict[str, Any] | None = None
) -> tuple[dict[str, torch.Tensor], Any, float]:
    """Return weights, the plugin and an evaluation after `steps`."""
    tables = {NAME: {**TINY, **settings}, **(beside or {})}
    trainer, batches = tiny_trainer(
        {"phases": CYCLE, "plugins": tables}, [*tables, STEADY_PREDICTOR]
    )
    with trainer:
        for batch in batches[:steps]:
            trainer.step(batch)
        loss = trainer.evaluate(batches[-2:])
        return tensors_of(trainer.model), trainer.hooks.plugins[NAME], loss


def test_a_gpu_without_the_kernel_is_refused_whatever_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    with pytest.raises(ConfigError, match=r"no fp8 tensor cores .* @ plugins\.mixed"):
        check_fp8("full", MixedPrecisionConfig(**TINY), torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    check_fp8("full", MixedPrecisionConfig(), torch.device("cuda"))


def test_it_keeps_the_contract() -> None:
    laws = ["detach-leaves-no-trace", "resume-is-exact", "works-on-loans-alone"]
    check_plugin(NAME, {**TINY, **FP8}, laws=laws)


def test_a_run_in_fp8_is_near_one_in_bf16() -> None:
    fp8, plugin, loss = run(9, FP8)
    bf16, _, other = run(9, dict.fromkeys(FP8, "bf16"))
    assert plugin.collect_metrics()["fp8_products"] > 9 * 13
    assert loss == pytest.approx(other, rel=0.2)
    assert loss != other
    assert any(not same_bits(fp8[name], bf16[name]) for name in fp8)


@pytest.mark.parametrize("moment", ["predict", "evaluate"])
def test_it_acts_in_its_moment_alone(moment: str) -> None:
    settings = {**dict.fromkeys(FP8, "fp32"), moment: "fp8"}
    _, plugin, _ = run(9, settings)
    # Two batches are evaluated; one jump is probed before and after.
    assert plugin.collect_metrics() == {"fp8_products": 2 * 13.0}


@pytest.mark.parametrize(
    "beside",
    [
        {"activation-checkpointing": {"interval": 2}},
        {"layer-streaming": {}},
        {"layer-streaming": {"mode": "graph"}},
    ],
    ids=["checkpointing", "streaming", "streaming-graph"],
)
def test_what_is_computed_again_is_in_fp8_again(beside: dict[str, Any]) -> None:
    plain, *_ = run(4, FP8)
    again, *_ = run(4, FP8, beside)
    assert all(same_bits(plain[name], again[name]) for name in plain)


def test_the_backward_may_be_in_low_precision_as_well() -> None:
    table = {
        "low-precision-backward": {
            "dtype": "fp8",
            "phases": ["warmup", "full", "correct"],
            "min_elements": 1,
            "min_rows": 1,
            "exclude": [],
            "limit": 10.0,
            "check_every": 2,
            "even_if_slower": True,
        }
    }
    one, alone, _ = run(4, FP8)
    other, plugin, _ = run(4, FP8, table)
    # Measurements compute their products in fp8, too.
    assert plugin.collect_metrics()["fp8_products"] > alone.collect_metrics()["fp8_products"]
    assert any(not same_bits(one[name], other[name]) for name in one)
