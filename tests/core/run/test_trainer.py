"""HybridTrainer: how a run is put together, asked, and taken apart again."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import CYCLE, plugin_with, same_tensors, stranger, tensors_of, tiny_trainer
from torch import nn

from neaptide import (
    ConfigError,
    Data,
    HybridTrainer,
    WrongCheckpointError,
    hookimpl,
)
from neaptide_toolkit.testing import HOSTILE_STORE, tiny_task
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR, tiny_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def test_a_closed_trainer_does_not_step() -> None:
    trainer, batches = tiny_trainer()
    trainer.close()
    trainer.close()
    with pytest.raises(RuntimeError, match="closed; make a new one"):
        trainer.step(batches[0])


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"model": 5}, r"model must be a torch\.nn\.Module \(got int 5\)"),
        ({"optimizer": "adamw"}, r"\(got str 'adamw'\); for one by name, leave it out and set"),
        ({"plugins": "ema"}, r"a list of names or manifests, such as \['ema'\] \(got 'ema'\)"),
        ({"stateful": {"a": 5}}, r"stateful\['a'\] must have state_dict and load_state_dict"),
        ({"stateful": [5]}, r"stateful must be a dict of objects by name"),
    ],
)
def test_an_argument_of_another_kind_is_a_type_error(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        HybridTrainer(**{"model": nn.Linear(2, 2), **given})


def test_what_is_asked_of_a_trainer_is_checked(tmp_path: Path) -> None:
    trainer, batches = tiny_trainer()
    with trainer:
        with pytest.raises(TypeError, match="resume must be 'auto' or the path of a checkpoint"):
            trainer.fit(batches, resume=True)  # type: ignore[arg-type]  # the mistake
        with pytest.raises(ValueError, match=r"\(got 'ful'\) \(did you mean 'full'\?\)"):
            trainer.estimate_memory("ful")
        with pytest.raises(ValueError, match=r"\(got 'ful'\) \(did you mean 'full'\?\)"):
            trainer.step(batches[0], phase="ful")
        with pytest.raises(WrongCheckpointError, match=r"there is no checkpoint .*nope; neaptide"):
            trainer.load(tmp_path / "nope")
        assert math.isnan(trainer.evaluate([]))


def test_a_loss_without_gradients_is_one_line() -> None:
    def detached(model: nn.Module, batch: Any) -> torch.Tensor:
        return tiny_loss(model, batch).sum.detach()

    task = tiny_task()
    with (
        HybridTrainer(task.model, task.optimizer, loss_fn=detached) as trainer,
        pytest.raises(ConfigError, match="the loss does not depend on the weights"),
    ):
        trainer.step(task.batches[0])


def test_a_forced_jump_comes_before_the_phase_that_is_due() -> None:
    trainer, batches = tiny_trainer({"phases": CYCLE}, [STEADY_PREDICTOR])
    with trainer:
        for batch in batches[:4]:
            trainer.step(batch)
        result = trainer.step(batches[4], phase="predict")
    assert result.jump is not None
    assert "predict" != result.phase.name


def test_a_model_can_be_trained_on_by_another_trainer() -> None:
    task = tiny_task()
    for _ in range(2):
        with HybridTrainer(
            task.model, task.optimizer, loss_fn=tiny_loss, plugins=["ema"]
        ) as trainer:
            assert 1 == trainer.step(task.batches[0]).step


def test_the_optimizer_comes_from_the_config_where_none_is_given() -> None:
    model = nn.Linear(2, 2)
    config = {"optimizer": {"name": "SGD", "lr": 0.5, "options": {"momentum": 0.9}}}
    with HybridTrainer(model, config=config) as trainer:
        assert isinstance(trainer.optimizer, torch.optim.SGD)
        (group,) = trainer.optimizer.param_groups
        assert (0.5, 0.9) == (group["lr"], group["momentum"])


def test_frozen_parameters_are_not_the_optimizers() -> None:
    with HybridTrainer(tiny_task().model) as trainer:
        (group,) = trainer.optimizer.param_groups
        assert all(parameter.requires_grad for parameter in group["params"])


OPTIMIZERS = [
    (
        {"name": "adamww"},
        "unknown optimizer 'adamww' (did you mean 'adamw'?); there is ",
    ),
    (
        {"name": "lbfgs"},
        "unknown optimizer 'lbfgs'",
    ),
    (
        {"options": {"betaz": 1}},
        "unknown option 'betaz' (did you mean 'betas'?) @ optimizer.options.betaz",
    ),
    (
        {"options": {"betas": [2.0, 3.0]}},
        "AdamW refused betas = [2.0, 3.0]: Invalid beta parameter at index 0: 2.0 ",
    ),
    (
        {"name": "collections:OrderedDict"},
        "'collections:OrderedDict' must be a torch.optim.Optimizer @ optimizer.name",
    ),
    (
        {"name": "builtins:dict"},
        "'builtins:dict' must be a torch.optim.Optimizer @ optimizer.name",
    ),
    (
        {"name": "math:pi"},
        "'math:pi' must be callable (got float) @ optimizer.name",
    ),
    (
        {"name": "no_such_module:X"},
        "cannot import 'no_such_module': No module named 'no_such_module'; is it on PYTHONPATH?",
    ),
    (
        {"name": "torch.optim:AdamV"},
        "'torch.optim' has no 'AdamV'",
    ),
]


@pytest.mark.parametrize(("section", "problem"), OPTIMIZERS)
def test_a_wrong_optimizer_is_a_config_error(section: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        HybridTrainer(nn.Linear(2, 2), config={"optimizer": section})
    assert str(caught.value).startswith(problem)


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    with pytest.raises(ConfigError, match="holds none of the model's parameters"):
        HybridTrainer(model, torch.optim.SGD(other.parameters(), lr=0.1))


def test_an_optimizer_that_runs_the_model_itself_is_refused() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ConfigError, match="LBFGS runs the model several times a step"):
        HybridTrainer(model, torch.optim.LBFGS(model.parameters()))


def test_a_model_without_trainable_parameters_is_refused() -> None:
    model = nn.Linear(2, 2).requires_grad_(requires_grad=False)
    with pytest.raises(ConfigError, match="no trainable parameters"):
        HybridTrainer(model)


def test_a_plugin_may_replace_modules_before_the_optimizer_is_built() -> None:
    @hookimpl
    def convert_model(self: Any, model: nn.Module) -> None:
        self.model, self.old, model[0] = model, model[0], nn.Linear(4, 4, bias=False)

    @hookimpl
    def on_run_end(self: Any) -> None:
        self.model[0] = self.old

    spec = stranger(plugin_with(convert_model=convert_model, on_run_end=on_run_end))
    model = nn.Sequential(nn.Linear(4, 4))
    old = model[0]
    with HybridTrainer(model, plugins=[spec]) as trainer:
        assert ["0.weight"] == [span.name for span in trainer.store.spans()]
    assert old is model[0]


def test_a_run_on_a_hostile_store_is_bitwise_the_resident_one() -> None:
    weights = []
    for plugins in ([], [HOSTILE_STORE]):
        trainer, batches = tiny_trainer(
            {"phases": CYCLE, "train": {"clip_norm": 0.5}}, [STEADY_PREDICTOR, "ema", *plugins]
        )
        with trainer:
            jumps = sum(trainer.step(batch).was_predicted for batch in batches[:14])
            trainer.evaluate(batches[14:16])
        assert 2 == jumps
        weights.append(tensors_of(trainer.model))
    assert same_tensors(*weights)


def test_the_ledger_of_a_resident_run_is_its_tensors() -> None:
    trainer, batches = tiny_trainer()
    with trainer:
        trainer.step(batches[0])
        parameters = list(trainer.model.parameters())
        every = sum(parameter.nbytes for parameter in parameters)
        trainable = sum(parameter.nbytes for parameter in parameters if parameter.requires_grad)
        counters = 4 * sum(parameter.requires_grad for parameter in parameters)
        full, predict = trainer.estimate_memory("full"), trainer.estimate_memory("predict")
    assert every == full.total(kind="weights")
    assert trainable == full.total(kind="gradients", moment="backward")
    assert 0 == full.total(kind="gradients", moment="forward")
    assert 2 * trainable + counters == full.total(kind="optimizer.state")
    assert 0 == predict.total(kind="gradients")
    assert trainable == predict.total(kind="rollback", tier="host", moment="predict")


def test_a_report_comes_from_its_plugin() -> None:
    spec = stranger(plugin_with(report=lambda self: "all well"), "doctor")
    trainer, _ = tiny_trainer(plugins=[spec, "ema"])
    with trainer:
        assert "all well" == trainer.report("doctor")
        assert trainer.report("ema") is None
        with pytest.raises(ValueError, match=r"no plugin 'doktor' .*did you mean 'doctor'"):
            trainer.report("doktor")


@pytest.fixture
def determinism() -> Iterator[Callable[[], tuple[bool, bool]]]:
    """Give what reads torch's flag and its `warn_only`; leave them as they were."""

    def read() -> tuple[bool, bool]:
        return (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )

    before = read()
    yield read
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@pytest.mark.parametrize("before", [(False, False), (True, False), (True, True)])
def test_a_deterministic_run_leaves_torchs_flag_as_the_user_had_it(
    before: tuple[bool, bool], determinism: Callable[[], tuple[bool, bool]]
) -> None:
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    trainer, batches = tiny_trainer({"train": {"deterministic": True}})
    with trainer:
        trainer.step(batches[0])
        assert (True, False) == determinism()
    assert before == determinism()

    @hookimpl
    def convert_model(self: Any, model: nn.Module) -> None:
        raise ValueError(determinism())

    spec = stranger(plugin_with(convert_model=convert_model))
    with pytest.raises(ValueError, match=r"\(True, False\)"):
        tiny_trainer({"train": {"deterministic": True}}, plugins=[spec])
    assert before == determinism()


def test_of_two_deterministic_runs_the_last_one_leaves_the_users_flag(
    determinism: Callable[[], tuple[bool, bool]],
) -> None:
    torch.use_deterministic_algorithms(mode=False)
    one, _ = tiny_trainer({"train": {"deterministic": True}})
    other, _ = tiny_trainer({"train": {"deterministic": True}})
    one.close()
    assert (True, False) == determinism()
    other.close()
    assert (False, False) == determinism()


def test_a_closed_trainer_says_so_whatever_it_is_asked() -> None:
    trainer, batches = tiny_trainer()
    trainer.close()
    with pytest.raises(RuntimeError, match="closed; make a new one"):
        trainer.step(batches[0], phase="nonsense")


def test_stepping_trains_even_after_the_user_evaluated() -> None:
    trainer, batches = tiny_trainer()
    with trainer:
        trainer.model.eval()
        trainer.step(batches[0])
        assert all(module.training for module in trainer.model.modules())


def test_a_loop_of_ones_own_ends_with_an_event_and_fit_with_a_summary(tmp_path: Path) -> None:
    for name in ("own", "fit", "idle"):
        trainer, batches = tiny_trainer({"run": {"dir": str(tmp_path / name)}})
        with trainer:
            if name == "fit":
                trainer.fit(Data(batches))
            if name == "own":
                trainer.step(batches[0])
    told = {path.parent.name for path in tmp_path.glob("*/events.jsonl") if closed(path)}
    assert {"own"} == told


def closed(events: Path) -> bool:
    return '"run.closed"' in events.read_text(encoding="utf-8")
