"""Laws of every op, whoever provides it: torch's own checks, fakes, graphs without a break."""

from typing import Any

import pytest
import torch

from neaptide_kernels import catalogue
from neaptide_kernels.registry import KERNELS, Op, Sample, disagreements, outcome

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
OPS = [pytest.param(op, id=name) for name, op in KERNELS.ops.items()]
assert catalogue.triton_providers()


def finite_samples(op: Op) -> list[Sample]:
    """Return a few samples whose results torch's checks can compare: NaN is not equal to itself."""
    chosen = []
    for sample in op.spec.samples(DEVICE):
        results = outcome(op.spec, op.spec.reference, cloned(op.spec.complete(sample.arguments)))
        if all(not tensor.is_floating_point() or tensor.isfinite().all() for _, tensor in results):
            chosen.append(sample)
    return chosen[:: max(1, len(chosen) // 6)]


def cloned(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return [cloned(each) for each in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("op", OPS)
def test_torch_finds_nothing_wrong(op: Op) -> None:
    for sample in finite_samples(op):
        torch.library.opcheck(op.overload, tuple(cloned(sample.arguments)))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's compiler's own
@pytest.mark.parametrize("op", OPS)
def test_compiles_into_one_graph(op: Op) -> None:
    torch._dynamo.reset()
    sample = finite_samples(op)[0]
    compiled = torch.compile(op.__call__, fullgraph=True, backend="aot_eager")

    expected = outcome(op.spec, op.spec.reference, cloned(op.spec.complete(sample.arguments)))
    got = outcome(op.spec, compiled, cloned(op.spec.complete(sample.arguments)))

    for (name, right), (_, result) in zip(expected, got, strict=True):
        torch.testing.assert_close(result, right, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's compiler's own
@pytest.mark.parametrize("op", OPS)
def test_providers_for_a_cpu_agree(op: Op) -> None:
    for sample in op.spec.samples(DEVICE):
        arguments = op.spec.complete(sample.arguments)
        for provider in KERNELS.providers(op.spec.name):
            if provider.supports(KERNELS.query(op.spec.name, arguments)) is True:
                assert [] == disagreements(op.spec, provider, arguments), (
                    provider.name,
                    sample.name,
                )
