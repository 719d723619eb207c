"""An accumulated update is that of the large batch, counted, weighted and clipped alike."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import CYCLE, plugin_with, same_tensors, stranger, tensors_of, tiny_trainer
from torch import nn
from torch.nn import functional
from transformers import BatchEncoding

from neaptide import ConfigError, DataError, HybridTrainer, Loss, Outcome, hookimpl
from neaptide_toolkit.offload.resident_store import ResidentStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    LossFn = Callable[[nn.Module, Any], torch.Tensor | Loss]

IGNORED = -100
RTOL = {torch.float64: 1e-12, torch.float32: 1e-5}


def tokens(rows: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> dict[str, torch.Tensor]:
    """Return sequences of 6 positions; row `r` has `r % 6` targets, so counts differ, some zero."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 5, (rows, 6), generator=generator)
    labels[torch.arange(6) >= (torch.arange(rows) % 6)[:, None]] = IGNORED
    return {"x": torch.randn(rows, 6, 4, generator=generator, dtype=dtype), "y": labels}


def by_token(model: nn.Module, batch: Any) -> Loss:
    """Return cross-entropy summed over the targets, and their number."""
    logits = model(batch["x"]).flatten(0, 1)
    labels = batch["y"].flatten()
    total = functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    return Loss(total, int((labels != IGNORED).sum()))


def by_sample(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return a plain mean over samples."""
    return model(batch["x"]).square().mean()


def used_by(loss_fn: LossFn, batch: Any) -> Any:
    """Return the batch without targets where the loss uses none: they would be its weight."""
    return batch if loss_fn is by_token else {"x": batch["x"]}


def train(
    batches: list[Any],
    settings: dict[str, Any] | None = None,
    loss_fn: LossFn = by_token,
    dtype: torch.dtype = torch.float64,
    **config: Any,
) -> tuple[dict[str, torch.Tensor], list[Any]]:
    """Return the weights after a step on each batch, and the results."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 5)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    plugins = {} if settings is None else {"gradient-accumulation": settings}
    with HybridTrainer(
        model, optimizer, loss_fn=loss_fn, config={"plugins": plugins, **config}
    ) as trainer:
        results = [trainer.step(batch) for batch in batches]
        for result in results:
            result.loss, result.grad_norm  # noqa: B018 - read while the run lasts
    return tensors_of(model), results


def assert_close(
    expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor], rtol: float
) -> None:
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        gap = float((value - found[name]).abs().max() / value.abs().max())
        assert gap <= rtol, f"{name} is off by {gap:.2e}"


def pieces(batch: dict[str, torch.Tensor], sizes: list[int]) -> list[dict[str, torch.Tensor]]:
    """Return consecutive rows of `batch` of the given sizes."""
    bounds = [0, *itertools.accumulate(sizes)]
    return [
        {key: value[start:stop] for key, value in batch.items()}
        for start, stop in itertools.pairwise(bounds)
    ]


# -- within a step ---------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [2, 4, 5, 11, 100])
@pytest.mark.parametrize("loss_fn", [by_token, by_sample])
@pytest.mark.parametrize("dtype", RTOL)
def test_micro_batches_make_the_update_of_the_large_batch(
    dtype: torch.dtype, loss_fn: LossFn, steps: int
) -> None:
    # 11 rows: pieces of unequal size; 11 pieces: the rows without a target stand alone.
    batches = [used_by(loss_fn, tokens(11, dtype, seed)) for seed in range(4)]
    expected, whole = train(batches, loss_fn=loss_fn, dtype=dtype)
    found, split = train(batches, {"steps": steps}, loss_fn, dtype)
    assert_close(expected, found, RTOL[dtype])
    assert [1, 2, 3, 4] == [result.step for result in split]
    assert [pytest.approx(each.loss, rel=RTOL[dtype]) for each in whole] == [
        each.loss for each in split
    ]


def test_clipping_sees_the_gradient_of_the_large_batch() -> None:
    batches = [tokens(11, seed=seed) for seed in range(4)]
    expected, whole = train(batches, train={"clip_norm": 0.05})
    found, split = train(batches, {"steps": 4}, train={"clip_norm": 0.05})
    assert all(result.grad_norm > 0.05 for result in split)
    # The norm is float32 whatever the gradients are.
    assert [pytest.approx(each.grad_norm, rel=1e-6) for each in whole] == [
        each.grad_norm for each in split
    ]
    assert_close(expected, found, 1e-6)


@dataclasses.dataclass(frozen=True)
class Sequences:
    x: torch.Tensor
    y: torch.Tensor


@pytest.mark.parametrize(
    ("form", "read"),
    [
        (BatchEncoding, dict),
        (lambda batch: Sequences(**batch), vars),
        (
            lambda batch: {"x": batch["x"], "deep": [None, {"y": (batch["y"],)}]},
            lambda batch: {"x": batch["x"], "y": batch["deep"][1]["y"][0]},
        ),
    ],
    ids=["encoding", "dataclass", "nested"],
)
def test_odd_structures_are_split_alike(
    form: Callable[[Any], Any], read: Callable[[Any], dict[str, torch.Tensor]]
) -> None:
    seen = []

    def loss_fn(model: nn.Module, batch: Any) -> Loss:
        seen.append((type(batch), len(read(batch)["x"])))
        return by_token(model, read(batch))

    batch = tokens(10)
    expected, _ = train([batch])
    found, _ = train([form(batch)], {"steps": 3}, loss_fn)
    assert [(type(form(batch)), rows) for rows in (3, 3, 4)] == seen
    assert_close(expected, found, 1e-12)


def test_the_preset_makes_four_micro_batches() -> None:
    seen = []

    def loss_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        seen.append(len(batch["x"]))
        return by_sample(model, batch)

    train([used_by(loss_fn, tokens(12))], {"preset": "aggressive"}, loss_fn)
    assert [3, 3, 3, 3] == seen


def test_one_micro_batch_is_bitwise_no_plugin() -> None:
    batches = [tokens(11, seed=seed) for seed in range(3)]
    assert same_tensors(train(batches)[0], train(batches, {"steps": 1})[0])


@pytest.mark.parametrize("batch", [None, "text", {"x": torch.tensor(1.0)}])
def test_a_batch_that_cannot_be_split_is_an_error_in_one_line(batch: Any) -> None:
    with pytest.raises(DataError, match=f"got {type(batch).__name__}") as caught:
        train([batch], {"steps": 2})
    assert 1 == len(str(caught.value).splitlines())


def test_the_gradients_that_wait_during_a_forward_are_in_the_estimate() -> None:
    waiting = []

    def loss_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        grads = [parameter.grad for parameter in model.parameters()]
        waiting.append(sum(0 if grad is None else grad.nbytes for grad in grads))
        return by_sample(model, batch)

    torch.manual_seed(0)
    model = nn.Linear(4, 5).double()
    config = {"plugins": {"gradient-accumulation": {"steps": 2}}}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with HybridTrainer(model, optimizer, loss_fn=loss_fn, config=config) as trainer:
        trainer.step(used_by(loss_fn, tokens(4)))
        ledger = trainer.estimate_memory("full")
    assert waiting[1] == ledger.total(kind="gradients", moment="forward")
    assert waiting[1] == ledger.total(kind="gradients", moment="backward")
    assert 0 == ledger.total(kind="gradients", moment="evaluate")


# -- across steps ----------------------------------------------------------------------------------


@pytest.mark.parametrize("loss_fn", [by_token, by_sample])
@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_calls_make_the_update_of_their_concatenation(
    loss_fn: LossFn, clip_norm: float | None
) -> None:
    large = [used_by(loss_fn, tokens(12, seed=seed)) for seed in range(3)]
    # The first call of each update has no target at all.
    calls = [piece for batch in large for piece in pieces(batch, [1, 6, 2, 3])]
    config = {} if clip_norm is None else {"train": {"clip_norm": clip_norm}}
    expected, _ = train(large, loss_fn=loss_fn, **config)
    found, results = train(calls, {"steps": 4, "across_steps": True}, loss_fn, **config)
    assert_close(expected, found, 1e-12 if clip_norm is None else 1e-6)
    assert [False, False, False, True] * 3 == [result.updated for result in results]
    assert [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3] == [result.step for result in results]
    assert [Outcome.DEFERRED] * 3 == [result.outcome for result in results[:3]]


def plain_sum(calls: list[Any]) -> dict[str, torch.Tensor]:
    """Return the weights after the loop everybody writes: backward each call, then one step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 5)).double()
    for batch in calls:
        by_sample(model, batch).backward()
    torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9).step()
    return tensors_of(model)


def test_without_normalize_calls_of_equal_weight_add_up() -> None:
    calls = pieces(used_by(by_sample, tokens(12)), [4, 4, 4])
    found, _ = train(calls, {"steps": 3, "across_steps": True, "normalize": False}, by_sample)
    assert_close(plain_sum(calls), found, 1e-12)


def test_without_normalize_the_gradient_is_the_overall_mean_times_the_calls() -> None:
    batch = tokens(12)
    calls = pieces(batch, [1, 8, 3])
    torch.manual_seed(0)
    before, _ = train([])
    mean, _ = train([batch])
    found, _ = train(calls, {"steps": 3, "across_steps": True, "normalize": False})
    expected = {name: before[name] + 3 * (mean[name] - before[name]) for name in before}
    assert_close(expected, found, 1e-12)


def test_scale_lr_multiplies_the_rate_of_the_update_alone() -> None:
    calls = pieces(tokens(12), [4, 4, 4])
    settings = {"steps": 3, "across_steps": True}
    expected, _ = train(calls, {**settings, "normalize": False})
    found, _ = train(calls, {**settings, "scale_lr": True})
    # SGD without momentum to begin with: three times the rate is three times the gradient.
    assert_close(expected, found, 1e-12)


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)])
@pytest.mark.parametrize("fails", [False, True])
def test_the_rate_is_put_back(rate: Any, *, fails: bool) -> None:
    class Optimizer(torch.optim.SGD):
        def step(self) -> None:  # type: ignore[override]  # no closure here
            self.rates = [float(group["lr"]) for group in self.param_groups]
            if fails:
                raise ZeroDivisionError
            super().step()

    model = nn.Linear(4, 5).double()
    groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.25}]
    optimizer = Optimizer(groups, lr=rate)
    settings = {"steps": 4, "across_steps": True, "scale_lr": True}
    config = {"plugins": {"gradient-accumulation": settings}}
    with HybridTrainer(model, optimizer, loss_fn=by_sample, config=config) as trainer:
        for index, batch in enumerate(pieces(used_by(by_sample, tokens(8)), [2, 2, 2, 2])):
            if fails and index == 3:
                with pytest.raises(ZeroDivisionError):
                    trainer.step(batch)
            else:
                trainer.step(batch)
    assert [pytest.approx(0.4), 1.0] == optimizer.rates
    assert optimizer.param_groups[0]["lr"] is rate
    assert 0.25 == optimizer.param_groups[1]["lr"]


def test_a_skipped_accumulation_is_dropped_whole() -> None:
    calls = pieces(used_by(by_sample, tokens(12)), [3, 3, 3, 3])
    calls[0]["x"][0] = torch.nan
    found, results = train(calls, {"steps": 2, "across_steps": True}, by_sample)
    expected, _ = train(pieces(used_by(by_sample, tokens(12)), [6, 6])[1:], loss_fn=by_sample)
    outcomes = [Outcome.DEFERRED, Outcome.SKIPPED, Outcome.DEFERRED, Outcome.APPLIED]
    assert outcomes == [result.outcome for result in results]
    assert_close(expected, found, 1e-12)


class BackwardError(torch.autograd.Function):
    """Fails in backward, when gradients may have been added already."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError


@pytest.mark.parametrize(("where", "kept"), [("forward", 1), ("backward", 0)])
def test_a_call_that_raises_costs_what_waits_only_once_it_adds_to_it(where: str, kept: int) -> None:
    def loss_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        if batch is None and where == "forward":
            raise ZeroDivisionError
        if batch is None:
            return BackwardError.apply(model(torch.ones(1, 4).double())).sum()
        return by_sample(model, batch)

    batches = pieces(used_by(by_sample, tokens(12)), [3, 3, 3, 3])
    model = nn.Linear(4, 5).double()
    reference = copy.deepcopy(model)
    settings = {"steps": 3, "across_steps": True, "normalize": False}
    config = {"plugins": {"gradient-accumulation": settings}}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with HybridTrainer(model, optimizer, loss_fn=loss_fn, config=config) as trainer:
        trainer.step(batches[0])
        with pytest.raises(ZeroDivisionError):
            trainer.step(None)
        updated = [trainer.step(batch).updated for batch in batches[1 : 4 - kept]]
    assert [False] * (2 - kept) + [True] == updated
    for batch in batches[1 - kept : 4 - kept]:
        by_sample(reference, batch).backward()
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    assert_close(tensors_of(reference), tensors_of(model), 1e-12)


def test_a_resume_inside_an_accumulation_is_exact(tmp_path: Path) -> None:
    settings = {"steps": 3, "across_steps": True, "normalize": False, "scale_lr": True}
    config = {"plugins": {"gradient-accumulation": settings}, "phases": CYCLE}

    def digest(first: int, last: int, *, load: str = "", save: str = "") -> str:
        trainer, batches = tiny_trainer(config)
        with trainer:
            if load:
                trainer.load(tmp_path / load)
            for batch in batches[first:last]:
                trainer.step(batch)
            if save:
                trainer.save(tmp_path / save)
            return trainer.digest()

    expected = digest(0, 14)
    for after in (4, 5, 6):
        digest(0, after, save=f"after-{after}")
        assert expected == digest(after, 14, load=f"after-{after}")


def test_between_calls_gradients_are_in_the_estimate() -> None:
    config = {"plugins": {"gradient-accumulation": {"steps": 3, "across_steps": True}}}
    trainer, batches = tiny_trainer(config)
    with trainer:
        trainer.step(batches[0])
        grads = [parameter.grad for parameter in trainer.model.parameters()]
        held = sum(grad.nbytes for grad in grads if grad is not None)
        ledger = trainer.estimate_memory("full")
    for moment in ("forward", "evaluate", "save"):
        assert held == ledger.total(kind="gradients", moment=moment)


def test_a_store_that_steps_in_backward_is_refused() -> None:
    class SteppedInBackward(ResidentStore):
        stores_gradients = False

    @hookimpl
    def provide_parameters(self: Any, model: Any, optimizer: Any) -> Any:
        return SteppedInBackward(model, optimizer)

    store = stranger(plugin_with(provide_parameters=provide_parameters))
    for settings in ({"steps": 3}, {"steps": 3, "across_steps": True}):
        with pytest.raises(ConfigError, match="blocks are updated inside the backward"):
            tiny_trainer({"plugins": {"gradient-accumulation": settings}}, plugins=[store])
    tiny_trainer({"plugins": {"gradient-accumulation": {"steps": 1}}}, plugins=[store])
