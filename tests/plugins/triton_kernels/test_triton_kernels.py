"""The plugin in runs: providers come and go with it, what is asked for is checked before a step."""

import logging

import pytest
import torch
from support import DEVICE

from neaptide import ConfigError, HybridTrainer
from neaptide_kernels.catalogue import triton_providers
from neaptide_kernels.registry import KERNELS
from neaptide_kernels.support import no_triton_on
from neaptide_toolkit.testing.tiny import tiny_loss, tiny_task

NAME = "triton-kernels"


def providers() -> set[tuple[str, str]]:
    return {(op, one.name) for op in KERNELS.ops for one in KERNELS.providers(op)}


def trainer(device: torch.device = DEVICE, **settings: object) -> HybridTrainer:
    task = tiny_task(device=device)
    return HybridTrainer(
        task.model, task.optimizer, loss_fn=tiny_loss, config={"plugins": {NAME: settings}}
    )


def test_providers_are_there_as_long_as_the_run() -> None:
    before = providers()
    with trainer() as first:
        added = {(one.op, one.name) for one in triton_providers()}
        assert before | added == providers()
        with trainer():
            pass
        assert before | added == providers()
        first.step(next(iter(tiny_task().batches)))

    assert before == providers()


def test_a_run_that_fails_to_start_leaves_nothing() -> None:
    before = providers()

    with pytest.raises(ConfigError, match=r"no op 'quantise'.*@ plugins.triton-kernels.providers"):
        trainer(providers={"quantise": "triton"})

    assert before == providers()


def test_an_unknown_provider_is_an_error_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"no provider 'tritn' .did you mean 'triton'"):
        trainer(providers={"quantize_int8": "tritn"})


def test_a_run_on_a_cpu_says_that_references_do_the_work(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "neaptide"), trainer(torch.device("cpu")):
        pass

    assert any("triton_kernels.not_used" in record.message for record in caplog.records)


@pytest.mark.parametrize(
    ("installed", "device", "capability", "reason"),
    [
        (None, "cuda", (9, 0), 'not installed: pip install "neaptide[triton]"'),
        ("3.5.1", "cuda", (9, 0), 'older than 3.6: pip install -U "neaptide[triton]"'),
        ("3.7.1", "cuda", (7, 5), "capability 7.5 is below 8.0"),
        ("3.7.1", "cuda", (8, 0), ""),
        ("3.10.0", "cuda", (9, 0), ""),
        ("3.7.1", "mps", None, "no Triton kernels for mps"),
    ],
)
def test_why_triton_cannot_run(
    monkeypatch: pytest.MonkeyPatch,
    installed: str | None,
    device: str,
    capability: tuple[int, int] | None,
    reason: str,
) -> None:
    monkeypatch.setattr("neaptide_kernels.support.triton_version", lambda: installed)

    assert reason in no_triton_on(device, capability)
    assert bool(reason) == bool(no_triton_on(device, capability))


def test_ops_work_without_any_plugin() -> None:
    x = torch.tensor([1.0, -0.5, 0.25])

    codes, scale, _ = torch.ops.neaptide.quantize_int8(x, 3)

    assert [127, -64, 32] == codes.tolist()
    torch.testing.assert_close(torch.tensor([1 / 127]), scale)
