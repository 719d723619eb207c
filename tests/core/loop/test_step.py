"""One step of training: the arithmetic of a plain PyTorch loop, and what happens when it fails."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import CYCLE, DEVICE, plugin_with, same_tensors, stranger, tensors_of, tiny_trainer
from torch import nn
from torch.nn import functional

from neaptide import DataError, DivergedError, HybridTrainer, Loss, Outcome, hookimpl
from neaptide_toolkit.testing import tiny_task
from neaptide_toolkit.testing.parting import same_bits
from neaptide_toolkit.testing.tiny import tiny_loss

if TYPE_CHECKING:
    from collections.abc import Callable

CLIPPED = {"train": {"clip_norm": 0.5}}


def micro_batches(*cuts: int) -> Any:
    """Return a plugin that splits the tiny task's batches of 12 at `cuts`."""

    @hookimpl
    def plan_micro_batches(self: Any, batch: Any) -> list[Any]:
        edges = [0, *cuts, 12]
        return [
            {key: value[start:end] for key, value in batch.items()}
            for start, end in pairwise(edges)
        ]

    return stranger(plugin_with(plan_micro_batches=plan_micro_batches), "splitter")


def plain_loop(steps: int, clip_norm: float | None) -> dict[str, torch.Tensor]:
    """Train the tiny task as anybody would, without Neaptide; return weights and buffers."""
    task = tiny_task()
    task.model.train()
    for batch in task.batches[:steps]:
        loss = tiny_loss(task.model, batch)
        (loss.sum / loss.count).backward()
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(task.model.parameters(), clip_norm)
        task.optimizer.step()
        task.optimizer.zero_grad()
    return tensors_of(task.model)


@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_steps_without_plugins_are_bitwise_a_plain_loop(clip_norm: float | None) -> None:
    expected = plain_loop(12, clip_norm)
    trainer, batches = tiny_trainer({"train": {"clip_norm": clip_norm}} if clip_norm else None)
    with trainer:
        for batch in batches[:12]:
            trainer.step(batch)
    assert same_tensors(expected, tensors_of(trainer.model))


def regression(dtype: torch.dtype = torch.float64) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Return a linear model and a batch of 12."""
    torch.manual_seed(1)
    model = nn.Linear(4, 3).to(dtype)
    return model, {"x": torch.randn(12, 4, dtype=dtype), "y": torch.randn(12, 3, dtype=dtype)}


def weights_after_one_step(
    loss_fn: Callable[..., Any], plugins: Any = ()
) -> tuple[torch.Tensor, float]:
    """Return the weight after one SGD step on the regression, and the loss reported."""
    model, batch = regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with HybridTrainer(model, optimizer, loss_fn=loss_fn, plugins=plugins) as trainer:
        loss = trainer.step(batch).loss
    return model.weight.detach(), loss


def mean_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return a plain mean."""
    return functional.mse_loss(model(batch["x"]), batch["y"])


def int_counted(model: nn.Module, batch: Any) -> Loss:
    """Return a sum with an int for the count."""
    return Loss(
        functional.mse_loss(model(batch["x"]), batch["y"], reduction="sum"), batch["y"].numel()
    )


def tensor_counted(model: nn.Module, batch: Any) -> Loss:
    """Return a sum with a 0-dim tensor for the count."""
    loss = int_counted(model, batch)
    return Loss(loss.sum, torch.tensor(loss.count))


@pytest.mark.parametrize("loss_fn", [mean_loss, int_counted, tensor_counted])
@pytest.mark.parametrize("cuts", [(), (6,), (1, 4, 11)])
def test_unequal_micro_batches_give_the_whole_batchs_gradient(
    loss_fn: Callable[..., Any], cuts: tuple[int, ...]
) -> None:
    expected, expected_loss = weights_after_one_step(mean_loss)
    found, loss = weights_after_one_step(loss_fn, [micro_batches(*cuts)] if cuts else ())
    # Counts that are tensors are divided by each other in float32.
    rtol = 1e-6 if loss_fn is tensor_counted and cuts else 1e-12
    torch.testing.assert_close(expected, found, rtol=rtol, atol=1e-14)
    assert pytest.approx(expected_loss, rel=rtol) == loss


@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_micro_batch_without_targets_weighs_nothing(*, as_tensor: bool) -> None:
    def masked(model: nn.Module, batch: Any) -> Loss:
        kept = batch["x"][:, 0] > 0
        error = (model(batch["x"]) - batch["y"]).square().sum(dim=1)
        count = kept.sum() if as_tensor else int(kept.sum())
        return Loss((error * kept).sum(), count)

    def prepared(cuts: tuple[int, ...]) -> torch.Tensor:
        model, batch = regression()
        batch["x"][:5, 0] = -1.0
        batch["x"][5:, 0] = 1.0
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plugins = [micro_batches(*cuts)] if cuts else []
        with HybridTrainer(model, optimizer, loss_fn=masked, plugins=plugins) as trainer:
            assert trainer.step(batch).updated
        return model.weight.detach()

    rtol = 1e-6 if as_tensor else 1e-12
    torch.testing.assert_close(prepared(()), prepared((5,)), rtol=rtol, atol=1e-14)


def test_a_batch_without_targets_has_loss_zero_and_is_an_update() -> None:
    model, batch = regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()

    def nothing_counts(model: nn.Module, batch: Any) -> Loss:
        return Loss(model(batch["x"]).sum() * 0.0, 0)

    with HybridTrainer(model, optimizer, loss_fn=nothing_counts) as trainer:
        result = trainer.step(batch)
        assert (0.0, Outcome.APPLIED) == (result.loss, result.outcome)
    assert same_bits(before, model.weight.detach())


@pytest.mark.parametrize(
    ("returned", "what"),
    [
        (torch.zeros(3), "a tensor of shape (3,)"),
        (0.5, "float"),
        (None, "NoneType"),
        ((torch.zeros(()), 3), "tuple"),
    ],
)
def test_what_is_no_loss_is_refused(returned: Any, what: str) -> None:
    model, batch = regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with HybridTrainer(model, optimizer, loss_fn=lambda model, batch: returned) as trainer:
        with pytest.raises(TypeError) as caught:
            trainer.step(batch)
        expected = f"loss_fn must return a scalar tensor or neaptide.Loss(sum, count) (got {what})"
        assert expected == str(caught.value)


class WithLoss(nn.Module):
    """Follows the transformers convention."""

    def __init__(self, output: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.output = output

    def forward(self, x: torch.Tensor) -> Any:
        return self.output(self.linear(x).square().mean())


class Output:
    """What transformers' models return."""

    def __init__(self, loss: torch.Tensor) -> None:
        self.loss = loss


@pytest.mark.parametrize("output", [Output, lambda loss: {"loss": loss}])
def test_without_loss_fn_the_models_own_loss_counts(output: Any) -> None:
    model = WithLoss(output)
    with HybridTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1)) as trainer:
        first, second = (trainer.step({"x": torch.ones(2, 4)}).loss for _ in range(2))
    assert second < first


def test_without_loss_fn_a_batch_must_be_a_mapping() -> None:
    model = WithLoss(Output)
    with HybridTrainer(model, torch.optim.SGD(model.parameters(), lr=0.1)) as trainer:
        with pytest.raises(DataError, match=r"must be a mapping .* \(got list\); pass loss_fn"):
            trainer.step([torch.ones(2, 4)])
        model.output = lambda loss: loss
        with pytest.raises(DataError, match=r"object with \.loss \(got Tensor"):
            trainer.step({"x": torch.ones(2, 4)})


def poisoned(kind: str, when: set[int]) -> Callable[..., Any]:
    """Return the tiny loss that goes wrong at the calls in `when`."""
    calls = iter(range(1, 1000))

    def loss_fn(model: nn.Module, batch: Any) -> Any:
        loss = tiny_loss(model, batch)
        if next(calls) not in when:
            return loss
        if kind == "loss":
            return Loss(loss.sum * math.nan, loss.count)
        # Finite forward, infinite slope: d sqrt(x)/dx at 0.
        return Loss(loss.sum + (model.head.bias * 0.0).abs().sqrt().sum(), loss.count)

    return loss_fn


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_a_non_finite_update_is_skipped_bitwise(kind: str) -> None:
    task = tiny_task()
    batches = task.batches
    trainer = HybridTrainer(task.model, task.optimizer, loss_fn=poisoned(kind, {4}), config=CLIPPED)
    with trainer:
        for batch in batches[:3]:
            trainer.step(batch)
        before = {name: value.detach().clone() for name, value in task.model.named_parameters()}
        state = trainer.store.snapshot(optimizer=True).optimizer
        result = trainer.step(batches[3])
        assert (Outcome.SKIPPED, False, 4) == (result.outcome, result.updated, result.step)
        after = dict(task.model.named_parameters())
        assert all(same_bits(value, after[name].detach()) for name, value in before.items())
        now = trainer.optimizer.state_dict()
        assert all(
            same_bits(value, now["state"][index][key])
            for index, entries in state["state"].items()
            for key, value in entries.items()
        )
        assert all(parameter.grad is None for parameter in task.model.parameters())
        assert trainer.step(batches[4]).updated
        trainer.step(batches[5])
        assert 4 == trainer.state.history.updates


def test_a_skipped_update_is_an_event(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    import json

    task = tiny_task()
    config = {"run": {"dir": str(tmp_path / "run")}}
    with HybridTrainer(
        task.model, task.optimizer, loss_fn=poisoned("loss", {2}), config=config
    ) as trainer:
        for batch in task.batches[:3]:
            trainer.step(batch)
    lines = (tmp_path / "run/events.jsonl").read_text().splitlines()
    (event,) = [json.loads(line) for line in lines if "update.skipped" in line]
    assert (2, "full", "nan", 1) == (
        event["step"],
        event["phase"],
        event["loss"],
        event["in_a_row"],
    )
    assert "update.skipped" in caplog.text


def test_too_many_in_a_row_is_divergence() -> None:
    task = tiny_task()
    config = {"train": {"max_skipped": 2}}
    # Two, a good one, then three: only the last three are one too many.
    loss_fn = poisoned("loss", {1, 2, 4, 5, 6})
    with HybridTrainer(task.model, task.optimizer, loss_fn=loss_fn, config=config) as trainer:
        for batch in task.batches[:5]:
            trainer.step(batch)
        with pytest.raises(DivergedError) as caught:
            trainer.step(task.batches[5])
    assert (
        "3 updates in a row had a non-finite loss or gradient (step 6, loss nan); lower "
        "optimizer.lr, set train.clip_norm, or look at the data (train.max_skipped allows 2)"
    ) == str(caught.value)
    assert 5 == caught.value.exit_code


def test_without_the_check_nothing_is_skipped() -> None:
    task = tiny_task()
    config = {"train": {"check_finite": False}}
    with HybridTrainer(
        task.model, task.optimizer, loss_fn=poisoned("loss", {1}), config=config
    ) as trainer:
        assert Outcome.APPLIED is trainer.step(task.batches[0]).outcome
    assert task.model.head.weight.isnan().all()


def failing(calls: set[int]) -> Callable[..., Any]:
    """Return the tiny loss, raising at the calls in `calls`."""
    count = iter(range(1, 1000))

    def loss_fn(model: nn.Module, batch: Any) -> Any:
        if next(count) in calls:
            msg = "out of luck"
            raise RuntimeError(msg)
        return tiny_loss(model, batch)

    return loss_fn


def eval_mode_weights(loss_fn: Callable[..., Any], plugins: Any, batches: range) -> Any:
    """Train a model without state in the forward on `batches`, repeating steps that raise."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 8)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    task = tiny_task()
    with HybridTrainer(model, optimizer, loss_fn=loss_fn, plugins=plugins) as trainer:
        for index in batches:
            try:
                trainer.step(task.batches[index])
            except RuntimeError:
                trainer.step(task.batches[index])
    return tensors_of(model)


def test_a_step_that_raised_can_be_repeated() -> None:
    # The second of three micro-batches fails: what the first left must not count.
    expected = eval_mode_weights(tiny_loss, [micro_batches(4, 7)], range(4))
    found = eval_mode_weights(failing({5}), [micro_batches(4, 7)], range(4))
    assert same_tensors(expected, found)


def test_a_middleware_can_repeat_a_step_that_raised() -> None:
    @hookimpl
    def around_train_step(self: Any) -> Any:
        def again(following: Any, **arguments: Any) -> Any:
            try:
                return following(**arguments)
            except RuntimeError:
                return following(**arguments)

        return again

    retry = stranger(plugin_with(around_train_step=around_train_step), "retry")
    expected = eval_mode_weights(tiny_loss, [micro_batches(4, 7)], range(4))
    found = eval_mode_weights(failing({5}), [retry, micro_batches(4, 7)], range(4))
    assert same_tensors(expected, found)


def test_a_run_that_recovered_ends_without_error() -> None:
    seen: list[Any] = []

    @hookimpl
    def on_run_end(self: Any, error: BaseException | None) -> None:
        seen.append(error)

    eval_mode_weights(failing({2}), [stranger(plugin_with(on_run_end=on_run_end))], range(3))
    assert [None] == seen


def test_a_forced_phase_is_what_the_step_is() -> None:
    trainer, batches = tiny_trainer({"phases": CYCLE})
    with trainer:
        assert "correct" == trainer.step(batches[0], phase="correct").phase.name
        assert "full" == trainer.step(batches[1], phase="full").phase.name
        assert "full" == trainer.step(batches[2]).phase.name


def test_a_forced_jump_without_a_predictor_is_an_ordinary_step() -> None:
    trainer, batches = tiny_trainer({"phases": CYCLE})
    with trainer:
        result = trainer.step(batches[0], phase="predict")
    assert ("warmup", None, True) == (result.phase.name, result.jump, result.updated)


def test_an_unknown_phase_is_refused_with_a_suggestion() -> None:
    trainer, batches = tiny_trainer()
    with trainer, pytest.raises(ValueError, match=r"did you mean 'correct'\?"):
        trainer.step(batches[0], phase="corect")


def test_plugins_are_told_of_phases_in_order() -> None:
    told: list[tuple[str, ...]] = []

    def record(hook: str) -> Any:
        @hookimpl
        def on_phase_enter(self: Any, phase: Any, previous: Any, step: int) -> None:
            told.append(("enter", phase.name, str(previous), str(step)))

        @hookimpl
        def on_phase_exit(self: Any, phase: Any, following: Any, step: int) -> None:
            told.append(("exit", phase.name, str(following), str(step)))

        return {"on_phase_enter": on_phase_enter, "on_phase_exit": on_phase_exit}[hook]

    spec = stranger(
        plugin_with(on_phase_enter=record("on_phase_enter"), on_phase_exit=record("on_phase_exit"))
    )
    trainer, batches = tiny_trainer({"phases": CYCLE}, [spec, "predictor-drift"])
    with trainer:
        for batch in batches[:7]:
            trainer.step(batch)
    assert [
        ("enter", "warmup", "None", "0"),
        ("exit", "warmup", "full", "2"),
        ("enter", "full", "warmup", "2"),
        ("exit", "full", "predict", "6"),
        ("enter", "predict", "full", "6"),
        ("exit", "predict", "full", "6"),
        ("enter", "full", "predict", "6"),
        ("exit", "full", "None", "7"),
    ] == told


def test_a_result_of_an_ordinary_step() -> None:
    trainer, batches = tiny_trainer()
    with trainer:
        result = trainer.step(batches[0])
        assert (1, "full", Outcome.APPLIED, True) == (
            result.step,
            result.phase.name,
            result.outcome,
            result.updated,
        )
        assert (None, None, False) == (result.jump, result.confidence, result.was_predicted)
        assert result.grad_norm is None
        assert result.memory is None
        assert result.seconds > 0
        assert 1.5 < result.loss < 4.0


def test_a_warmup_that_is_written_is_kept_without_a_predictor() -> None:
    trainer, batches = tiny_trainer({"phases": {"warmup": {"steps": 2}}})
    with trainer:
        phases = [trainer.step(batch).phase.name for batch in batches[:4]]
    assert ["warmup", "warmup", "full", "full"] == phases


def test_the_norm_is_measured_when_asked_and_before_clipping() -> None:
    norms = []
    for train in ({"grad_norm": True}, {"clip_norm": 1e-3}):
        trainer, batches = tiny_trainer({"train": train})
        with trainer:
            norms.append(trainer.step(batches[0]).grad_norm)
    task = tiny_task()
    task.model.train()
    loss = tiny_loss(task.model, task.batches[0])
    (loss.sum / loss.count).backward()
    expected = torch.nn.utils.get_total_norm(
        [value.grad for value in task.model.parameters() if value.grad is not None]
    )
    assert norms == [pytest.approx(float(expected), rel=1e-5)] * 2


def test_a_plugin_that_needs_the_norm_has_it_measured() -> None:
    trainer, batches = tiny_trainer(plugins=[stranger(plugin_with(), needs={"grad_norm"})])
    with trainer:
        assert trainer.step(batches[0]).grad_norm is not None


def test_memory_is_measured_for_a_run_directory(tmp_path: Any) -> None:
    trainer, batches = tiny_trainer({"run": {"dir": str(tmp_path / "run")}})
    with trainer:
        memory = trainer.step(batches[0]).memory
        assert memory is not None
        assert memory.host_bytes > 10_000_000


def test_evaluation_leaves_everything_untouched() -> None:
    trainer, batches = tiny_trainer()
    with trainer:
        for batch in batches[:3]:
            trainer.step(batch)
        trainer.model.blocks[1].eval()
        modes = {name: module.training for name, module in trainer.model.named_modules()}
        before, digest = tensors_of(trainer.model), trainer.digest()
        objects = {name: id(value) for name, value in trainer.model.named_buffers()}
        trainer.evaluate(batches[3:6])
        assert same_tensors(before, tensors_of(trainer.model))
        assert trainer.digest() == digest
        assert modes == {name: module.training for name, module in trainer.model.named_modules()}
        assert objects == {name: id(value) for name, value in trainer.model.named_buffers()}


def test_evaluation_is_deterministic_and_without_gradients() -> None:
    trainer, batches = tiny_trainer()
    with trainer:
        trainer.step(batches[0])
        assert trainer.evaluate(batches[1:4]) == trainer.evaluate(batches[1:4])
        assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_evaluation_weighs_batches_by_their_counts() -> None:
    model, batch = regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pieces = [{key: value[cut] for key, value in batch.items()} for cut in (slice(3), slice(3, 12))]
    for loss_fn in (mean_loss, int_counted, tensor_counted):
        with HybridTrainer(model, optimizer, loss_fn=loss_fn) as trainer:
            expected = trainer.evaluate([batch])
            assert pytest.approx(expected, rel=1e-12) == trainer.evaluate(pieces)


def test_a_norm_that_was_measured_is_told_though_the_update_failed() -> None:
    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise FloatingPointError(closure)

    @hookimpl
    def around_optimizer_step(self: Any) -> Any:
        def guarded(following: Any, **arguments: Any) -> Outcome:
            try:
                outcome: Outcome = following(**arguments)
            except FloatingPointError:
                return Outcome.SKIPPED
            return outcome

        return guarded

    model, batch = regression()
    catching = stranger(plugin_with(around_optimizer_step=around_optimizer_step))
    config = {"train": {"grad_norm": True}}
    optimizer = Failing(model.parameters(), lr=0.1)
    with HybridTrainer(
        model, optimizer, loss_fn=mean_loss, config=config, plugins=[catching]
    ) as trainer:
        result = trainer.step(batch)
    assert Outcome.SKIPPED is result.outcome
    assert result.grad_norm is not None
    assert result.grad_norm > 0


def test_evaluating_nothing_is_nan() -> None:
    trainer, _ = tiny_trainer()
    with trainer:
        assert math.isnan(trainer.evaluate([]))


def test_evaluation_that_raises_leaves_modes_and_random_state() -> None:
    task = tiny_task()
    with HybridTrainer(task.model, task.optimizer, loss_fn=failing({2})) as trainer:
        trainer.model.train()
        before = trainer.digest()
        with pytest.raises(RuntimeError, match="out of luck"):
            trainer.evaluate(task.batches[:3])
        assert before == trainer.digest()
        assert all(module.training for module in trainer.model.modules())
