"""Runs whose jumps are corrected by how earlier ones erred."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from judged import Along, Away, events, predictor
from support import CYCLE, DEVICE, same_tensors, tensors_of, tiny_trainer

from neaptide import ROLLBACK, ConfigError, HybridTrainer, Plugin, Update, hookimpl
from neaptide_plugins.residual_correction import SPEC
from neaptide_plugins.residual_correction.correcting import correction_of

if TYPE_CHECKING:
    from pathlib import Path

NAME = SPEC.name


class Stale(Plugin[Any]):
    """Proposes a change of which a part is always the same error."""

    wrong = 0.01

    @hookimpl
    def propose_update(self, horizon: int) -> Update:
        return Update(horizon, lambda span: torch.full(span.shape, self.wrong, device=DEVICE))


def made(cls: Any = Along, steps: int = 24, **settings: Any) -> Any:
    directory = settings.pop("directory", None)
    run = {} if directory is None else {"run": {"dir": str(directory)}}
    phases = {**CYCLE, **settings.pop("phases", {})}
    config = {"phases": phases, "plugins": {NAME: settings}, **run}
    trainer, batches = tiny_trainer(config, [SPEC, predictor(cls)])
    return trainer, batches[:steps]


def plugin_of(trainer: Any) -> Any:
    return trainer.hooks.plugins[NAME]


def figures(trainer: Any) -> dict[str, float]:
    return dict(plugin_of(trainer).collect_metrics())


def test_jumps_are_corrected_within_the_limit(tmp_path: Path) -> None:
    trainer, batches = made(directory=tmp_path)
    with trainer:
        jumps = [trainer.step(batch).jump for batch in batches]
        found = figures(trainer)
    accepted = [jump for jump in jumps if jump is not None and jump.accepted]
    told = [each for each in events(tmp_path) if each["event"] == f"{NAME}.corrected"]
    assert len(accepted) >= 3
    assert found["corrected"] == len(told) == len(accepted) - 1  # the first finds no residual
    assert len(accepted) - 1 <= found["residuals"] <= len(accepted)
    for each, jump in zip(told, accepted[1:], strict=True):
        # The norm of the corrected jump is at least 0.8 of the proposed one's.
        assert 0.0 < each["norm"] <= 0.2 / 0.8 * jump.norm * jump.scale
        assert 1 <= each["residuals"] <= 10


def weight_after(settings: dict[str, Any] | None) -> float:
    """Return how far a weight at its minimum is after jumps that always push it away alike."""
    model = torch.nn.Linear(4, 1, bias=False).to(DEVICE)
    torch.nn.init.constant_(model.weight, 1.0)
    batch = torch.eye(4).to(DEVICE)
    phases = {**CYCLE, "full": {"steps": 2}, "correct": {"steps": 2}}
    plugins = {} if settings is None else {NAME: settings}
    with HybridTrainer(
        model,
        torch.optim.SGD(model.parameters(), 1e-3),
        loss_fn=lambda model, x: 1.0 + (model(x) - x.sum(-1, keepdim=True)).square().mean(),
        config={"phases": phases, "plugins": plugins},
        plugins=[*([] if settings is None else [SPEC]), predictor(Stale)],
    ) as trainer:
        for _ in range(40):
            trainer.step(batch)
    return float((model.weight.detach() - 1.0).norm())


def test_an_error_that_repeats_is_taken_out_up_to_the_limit() -> None:
    plain, limited, whole = weight_after(None), weight_after({}), weight_after({"limit": 1.0})
    assert limited < 0.9 * plain
    assert whole < 0.3 * plain


@pytest.mark.parametrize("tier", ["host", "disk"])
@pytest.mark.parametrize("saved_after", [6, 7, 13])
def test_a_resumed_run_is_the_same(tmp_path: Path, tier: str, saved_after: int) -> None:
    def start(name: str) -> Any:
        return made(tier=tier, observe=2, directory=tmp_path / name)

    trainer, batches = start("whole")
    with trainer:
        for batch in batches[:saved_after]:
            trainer.step(batch)
        trainer.save(tmp_path / "saved")
        for batch in batches[saved_after:]:
            trainer.step(batch)
        whole, told = trainer.digest(), figures(trainer)
    trainer, _ = start("resumed")
    with trainer:
        trainer.load(tmp_path / "saved")
        for batch in batches[saved_after:]:
            trainer.step(batch)
        assert whole == trainer.digest()
        assert told == figures(trainer)
    assert told["corrected"] >= 1.0


def test_files_and_ram_give_the_same_bits(tmp_path: Path) -> None:
    def weights(tier: str) -> dict[str, torch.Tensor]:
        trainer, batches = made(tier=tier, directory=tmp_path / tier)
        with trainer:
            for batch in batches:
                trainer.step(batch)
        assert figures(trainer)["corrected"] >= 1.0
        return tensors_of(trainer.model)

    assert same_tensors(weights("host"), weights("disk"))


class Sometimes(Along):
    """Is refused from its third jump on."""

    calls = 0

    @hookimpl
    def propose_update(self) -> Update | None:
        self.calls += 1
        self.share = 0.5 if self.calls < 3 else 1e4
        return super().propose_update()


def test_a_refused_jump_leaves_everything_as_it_was() -> None:
    trainer, batches = made(Sometimes)
    refused = 0
    with trainer:
        for batch in batches:
            before = plugin_of(trainer).state_dict()
            kept = {name: held.clone() for name, held in before["stored"].items()}
            result = trainer.step(batch)
            if result.jump is not None and not result.jump.accepted:
                refused += 1
                after = plugin_of(trainer).state_dict()
                assert before["memory"] == after["memory"]
                assert before["corrected"] == after["corrected"]
                assert kept.keys() == after["stored"].keys()
                assert all(torch.equal(kept[name], after["stored"][name]) for name in kept)
        assert kept
    assert refused >= 2


def test_refused_jumps_leave_a_run_without_a_predictor() -> None:
    def losses(cls: Any, *names: Any) -> list[float]:
        trainer, batches = tiny_trainer({"phases": CYCLE}, [*names, predictor(cls)])
        with trainer:
            return [trainer.step(batch).loss for batch in batches[:20]]

    assert losses(Away) == losses(Away, SPEC)


def test_the_estimate_is_what_is_held() -> None:
    trainer, batches = made(entries=3)
    with trainer:
        for batch in batches:
            trainer.step(batch)
        plugin = plugin_of(trainer)
        held = plugin._slots.held.nbytes
        state = plugin.state_dict()["observed"]
        held += sum(t.nbytes for part in ("jump", "reference") for t in state[part].values())
        ledger = trainer.estimate_memory("full")
        stated = sum(entry.bytes for entry in ledger.entries if entry.owner == NAME)
    assert held == stated


def test_without_a_correct_phase_it_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="observes the updates of Correct phases") as raised:
        made(phases={"correct": {"steps": 0}})
    assert "@ phases.correct.steps" in str(raised.value)


def test_files_need_a_run_directory() -> None:
    with pytest.raises(ConfigError, match="residuals in files need a run directory"):
        made(tier="disk")


def test_a_rollback_forgets_the_residuals() -> None:
    trainer, batches = made()
    with trainer:
        for batch in batches:
            trainer.step(batch)
        assert figures(trainer)["residuals"] > 0
        trainer.run.stash.set(ROLLBACK, object())
        assert 0.0 == figures(trainer)["residuals"]


@pytest.mark.parametrize("value", [math.nan, 0.0])
def test_what_cannot_be_measured_is_left_to_the_guard(value: float) -> None:
    trainer, batches = made()
    with trainer:
        for batch in batches:
            trainer.step(batch)
        plugin = plugin_of(trainer)
        weights = [(entry.slot, 1.0) for entry in plugin._memory.entries[:1]]
        slots = plugin._slots
        update = Update(5, lambda span: torch.full(span.shape, value))
        assert weights
        assert correction_of(update, trainer.store, slots, weights, 0.2) is None
        wrong = Update(5, lambda span: torch.ones(7))
        assert correction_of(wrong, trainer.store, slots, weights, 0.2) is None
        right = Update(5, lambda span: torch.ones(span.shape))
        found = correction_of(right, trainer.store, slots, weights, 1e-6)
        assert found is not None
        spans = [span for span in trainer.store.spans() if span.trainable]
        elements = sum(math.prod(span.shape) for span in spans)
        assert pytest.approx(1e-6 * math.sqrt(elements), rel=1e-4) == found.norm
        parts = [float(found.of(span.name).norm()) for span in spans]
        assert pytest.approx(found.norm, rel=1e-4) == math.hypot(*parts)
