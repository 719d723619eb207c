"""Predictors that lie in ways a norm and a probe do not show: refused bitwise, or an error."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import CYCLE, plugin_with, same_tensors, stranger, tensors_of, tiny_trainer
from torch import nn

from neaptide import Forecast, Pace, Plugin, PluginError, Update, hookimpl
from neaptide.loop.guard import Guard
from neaptide_toolkit.offload.resident_store import ResidentStore
from neaptide_toolkit.testing import HOSTILE_STORE, HostileStore
from neaptide_toolkit.testing.parting import same_bits

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide.api.spans import Span
    from neaptide.loop.guard import Verdict

    Deltas = Callable[[Span], Any]

LENIENT = Guard(rise=10.0, halvings=0)


def judged(
    delta: Deltas, dtype: torch.dtype = torch.float32, kind: type = ResidentStore
) -> tuple[Verdict, bool]:
    """Return the verdict on a table of which the probe reads row 0, and whether it is as it was."""
    model = nn.Embedding(4, 3).to(dtype)
    store = kind(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def read() -> torch.Tensor:
        with store.loan(store.spans()[0], "read") as weight:
            return weight.clone()

    before = read()
    verdict = LENIENT.judge(store, Update(1, delta), lambda: float(read()[0].square().sum()))
    return verdict, same_bits(before, read())


def row(value: float, dtype: torch.dtype = torch.float32) -> Deltas:
    """Return deltas of a row that no probe reads."""

    def delta(span: Span) -> torch.Tensor:
        values = torch.zeros(span.shape, dtype=dtype)
        values[2] = value
        return values

    return delta


def first_zeros_then(delta: Deltas) -> Deltas:
    """Return deltas that are harmless when they are looked at."""
    asked: list[str] = []

    def changing(span: Span) -> Any:
        asked.append(span.name)
        return torch.zeros(span.shape) if len(asked) == 1 else delta(span)

    return changing


@pytest.mark.parametrize("kind", [ResidentStore, HostileStore])
@pytest.mark.parametrize(
    ("delta", "dtype", "reason"),
    [
        (lambda: row(1e6), torch.float16, "the jump leaves weight not finite"),
        (lambda: row(1e100, torch.float64), torch.float32, "the jump leaves weight not finite"),
        (lambda: row(1e100, torch.float64), torch.bfloat16, "the jump leaves weight not finite"),
        (lambda: row(1e200, torch.float64), torch.float32, "the delta of weight is not finite"),
        (lambda: row(math.nan), torch.float32, "the delta of weight is not finite"),
        (
            lambda: first_zeros_then(row(math.nan)),
            torch.float32,
            "the jump leaves weight not finite",
        ),
        (
            lambda: first_zeros_then(lambda span: torch.zeros(())),
            torch.float32,
            "the delta of weight has shape (), not (4, 3)",
        ),
    ],
    ids=["fp16", "fp32", "bf16", "norm", "nan", "nan-later", "shape-later"],
)
def test_what_the_probe_does_not_read_stays_finite(
    delta: Callable[[], Deltas], dtype: torch.dtype, reason: str, kind: type
) -> None:
    verdict, unchanged = judged(delta(), dtype, kind)
    assert (False, reason, True) == (verdict.accepted, verdict.reason, unchanged)


@pytest.mark.parametrize(
    "delta",
    [
        torch.zeros(4, 3, dtype=torch.bool),
        torch.zeros(4, 3, dtype=torch.complex64),
        torch.zeros(4, 3, device="meta"),
        torch.zeros(4, 3).to(torch.float8_e5m2),
        torch.zeros(4, 3).to_sparse(),
        (value for value in [0.0]),
    ],
    ids=["bool", "complex", "meta", "float8", "sparse", "generator"],
)
@pytest.mark.parametrize("when", ["inspected", "applied"])
def test_what_cannot_be_added_is_an_error(delta: Any, when: str) -> None:
    given = (lambda span: delta) if when == "inspected" else first_zeros_then(lambda span: delta)
    with pytest.raises(
        PluginError, match=r"the delta predicted for \S+ must be a float tensor or None \(got "
    ):
        judged(given)


def test_a_delta_with_a_graph_and_one_that_is_the_weight_itself_are_deltas() -> None:
    model = nn.Linear(2, 1, bias=False)
    before = model.weight.detach().clone()
    store = ResidentStore(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for given, left in ((lambda span: -0.5 * model.weight, 0.5), (lambda span: model.weight, 1.0)):
        assert LENIENT.judge(store, Update(1, given), lambda: 1.0).accepted
        assert same_bits(left * before, model.weight.detach())
        assert model.weight.grad is None


def test_a_loss_that_becomes_infinite_is_no_matter_of_the_limit() -> None:
    store = ResidentStore(nn.Linear(2, 1), torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1))
    losses = iter([1.7e308, math.inf])
    update = Update(1, lambda span: torch.zeros(span.shape))
    assert not LENIENT.judge(store, update, lambda: next(losses)).accepted


def test_weights_written_by_a_delta_are_put_back() -> None:
    model = nn.Linear(3, 2)
    store = ResidentStore(model, torch.optim.SGD(model.parameters(), lr=0.1))
    before = tensors_of(model)

    def delta(span: Span) -> torch.Tensor:
        with store.loan(span, "write") as weight:
            weight.fill_(7.0)
        return torch.full(span.shape, math.nan)

    assert not LENIENT.judge(store, Update(1, delta), lambda: 1.0).accepted
    assert same_tensors(before, tensors_of(model))


class Meddler(Plugin[Any]):
    """Proposes nothing, and leaves something."""

    @hookimpl
    def on_run_start(self, model: nn.Module, store: Any) -> None:
        self.model, self.store = model, store

    @hookimpl
    def propose_update(self) -> None:
        self.meddle()


class LeavesEvalMode(Meddler):
    def meddle(self) -> None:
        self.model.eval()


class LeavesGradients(Meddler):
    def meddle(self) -> None:
        sum(p.sum() for p in self.model.parameters() if p.requires_grad).backward()


class LeavesBuffers(Meddler):
    def meddle(self) -> None:
        for buffer in self.model.buffers():
            buffer.add_(1)


class LeavesGradModeOff(Meddler):
    def meddle(self) -> None:
        torch.set_grad_enabled(False)


class LeavesNumbersDrawn(Meddler):
    def meddle(self) -> None:
        torch.manual_seed(7)


class WritesOnLoan(Meddler):
    def meddle(self) -> None:
        with self.store.loan(self.store.spans()[0], "write") as weight:
            weight.add_(1.0)


class WritesWhatItReads(Meddler):
    def meddle(self) -> None:
        with self.store.loan(self.store.spans()[0], "read") as weight:
            weight.add_(1.0)


def run(*plugins: Any) -> Any:
    """Return the weights after two Predict steps, and the trainer."""
    trainer, batches = tiny_trainer({"phases": CYCLE}, plugins)
    with trainer:
        for batch in batches[:14]:
            trainer.step(batch)
        return tensors_of(trainer.model), trainer


def predictor(cls: type[Plugin[Any]]) -> Any:
    return stranger(cls, "meddler", claims={"predictor"})


@pytest.mark.parametrize("store", [(), (HOSTILE_STORE,)], ids=["resident", "hostile"])
@pytest.mark.parametrize(
    "cls",
    [LeavesEvalMode, LeavesGradients, LeavesBuffers, LeavesGradModeOff, LeavesNumbersDrawn],
)
def test_what_a_predictor_leaves_behind_is_undone(cls: type[Plugin[Any]], store: Any) -> None:
    assert same_tensors(run(*store)[0], run(predictor(cls), *store)[0])


@pytest.mark.parametrize("cls", [WritesOnLoan, WritesWhatItReads])
def test_a_predictor_that_writes_weights_itself_ends_the_run(cls: type[Plugin[Any]]) -> None:
    with pytest.raises(PluginError, match="weights changed while an update was proposed"):
        run(predictor(cls))


class Still(Plugin[Any]):
    """Proposes to stay."""

    @hookimpl
    def propose_update(self) -> Update:
        return Update(10**9, lambda span: torch.zeros(span.shape))


class Raises(Plugin[Any]):
    """Its delta cannot be made."""

    @hookimpl
    def propose_update(self) -> Update:
        def delta(span: Span) -> torch.Tensor:
            raise KeyError(span.name)

        return Update(1, delta)


class RaisesAdding(Plugin[Any]):
    """Its delta cannot be added."""

    @hookimpl
    def propose_update(self) -> Update:
        def add(weight: torch.Tensor, delta: torch.Tensor, scale: float) -> None:
            raise KeyError(str((weight.shape, delta.shape, scale)))

        return Update(1, lambda span: torch.zeros(span.shape), add)


class Counts(Plugin[Any]):
    """Its delta is of integers."""

    @hookimpl
    def propose_update(self) -> Update:
        return Update(1, lambda span: torch.ones(span.shape, dtype=torch.int64))


@pytest.mark.parametrize(
    ("cls", "error"), [(Raises, KeyError), (RaisesAdding, KeyError), (Counts, PluginError)]
)
def test_what_deltas_raise_is_blamed_on_who_predicts(
    cls: type[Plugin[Any]], error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        run(predictor(cls))
    assert ["raised by plugin 'meddler' in hook 'propose_update'"] == caught.value.__notes__


@pytest.mark.parametrize(
    ("loss", "confidence", "jumps"),
    [(math.nan, 1.0, 0), (math.inf, 1.0, 0), (1.0, math.nan, 0), (1.0, 1.0, 2)],
)
def test_a_forecast_that_is_no_number_is_no_jump(
    loss: float, confidence: float, jumps: int
) -> None:
    @hookimpl
    def forecast(self: Any) -> Forecast:
        del self
        return Forecast(loss, confidence)

    oracle = stranger(plugin_with(forecast=forecast), "oracle", claims={"dynamics"})
    _, trainer = run(predictor(Still), oracle)
    assert (jumps, 5 * jumps) == (trainer.state.jumps, trainer.state.predicted)


@pytest.mark.parametrize("confidence", [-0.1, 1.1, math.inf])
def test_a_confidence_is_a_share(confidence: float) -> None:
    with pytest.raises(ValueError, match="'confidence' must be from 0 to 1"):
        Forecast(1.0, confidence)


@pytest.mark.parametrize("pace", [{"scale": math.nan}, {"scale": math.inf}, {"window": math.inf}])
def test_a_pace_is_finite(pace: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Pace(**pace)
