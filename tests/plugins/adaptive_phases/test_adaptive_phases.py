"""Runs whose Full phases and jumps have chosen lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from judged import PHASES, SOON, Along, Away, events, figures, goes_on_alike, predictor
from support import stranger, tiny_trainer

from neaptide import FULL, ROLLBACK, Ledger, Plugin, Update, hookimpl
from neaptide_plugins.adaptive_phases import SPEC
from neaptide_plugins.adaptive_phases.config import AdaptivePhasesConfig
from neaptide_plugins.delayed_verdict import SPEC as VERDICT

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = {"lengths": [2, 3, 5]}


class AnyTime(Along):
    """Proposes a jump of the whole horizon, of the same way."""

    @hookimpl
    def propose_update(self, horizon: int) -> Update | None:
        found = super().propose_update()
        return None if found is None else Update(horizon, found.delta)


def made(
    cls: Any = AnyTime, *more: Any, tables: dict[str, Any] | None = None, **config: Any
) -> Any:
    plugins = {VERDICT.name: SOON, SPEC.name: LENGTHS} if tables is None else tables
    specs = [SPEC, predictor(cls), *([VERDICT] if VERDICT.name in plugins else []), *more]
    return tiny_trainer({"phases": PHASES, "plugins": plugins, **config}, specs)


def test_phases_and_jumps_have_chosen_lengths_and_rewards_come(tmp_path: Path) -> None:
    trainer, batches = made(run={"dir": str(tmp_path)})
    lengths, horizons, run = set(), set(), 0
    with trainer:
        for batch in batches:
            result = trainer.step(batch)
            if result.jump is not None:
                horizons.add(result.jump.horizon)
                if run:
                    lengths.add(run)
                run = 0
            run = run + 1 if result.phase is FULL else 0
        learned = figures(trainer, SPEC.name)["learned"]
        ledger = trainer.hooks.plugins[SPEC.name].estimate_memory(Ledger())
        state = trainer.hooks.plugins[SPEC.name].state_dict()
    assert lengths <= {1, 2, 3, 4, 5}
    assert horizons <= {2, 3, 5}
    assert learned >= 2
    told = [each for each in events(tmp_path) if each["event"] == "adaptive-phases.learned"]
    assert learned == len(told)
    assert all(each["full"] in LENGTHS["lengths"] for each in told if each["full"] is not None)
    held = sum(t.nbytes for part in ("full", "horizon") for t in state[part].values())
    assert held == sum(entry.bytes for entry in ledger.entries)


@pytest.mark.parametrize("saved_after", [7, 11, 13])
def test_a_resumed_run_chooses_alike_whatever_the_times(tmp_path: Path, saved_after: int) -> None:
    goes_on_alike(made, saved_after, tmp_path, SPEC.name)


def test_a_refused_jump_teaches_its_cost_at_once(tmp_path: Path) -> None:
    trainer, batches = made(Away, run={"dir": str(tmp_path)})
    with trainer:
        for batch in batches:
            trainer.step(batch)
    told = [each for each in events(tmp_path) if each["event"] == "adaptive-phases.learned"]
    assert told
    assert all(-1.0 <= each["reward"] < 0.0 for each in told)


def test_without_a_judge_lengths_stay_as_configured(tmp_path: Path) -> None:
    def digest(tables: dict[str, Any], directory: Path) -> str:
        plain = [] if SPEC.name in tables else [stranger(Plugin, "nothing")]
        specs = [predictor(Along), *([SPEC] if SPEC.name in tables else plain)]
        config = {"phases": PHASES, "plugins": tables, "run": {"dir": str(directory)}}
        trainer, batches = tiny_trainer(config, specs)
        with trainer:
            assert trainer.run.stash.get is not None
            losses = [trainer.step(batch).loss for batch in batches]
        return str(losses)

    assert digest({}, tmp_path / "a") == digest({SPEC.name: LENGTHS}, tmp_path / "b")
    (told,) = (each for each in events(tmp_path / "b") if "idle" in each["event"])
    assert "enable delayed-verdict" in told["reason"]


def test_a_rollback_forgets_the_jumps_on_trial() -> None:
    trainer, batches = made()
    with trainer:
        plugin = trainer.hooks.plugins[SPEC.name]
        for batch in batches:
            trainer.step(batch)
            if plugin.state_dict()["waiting"]:
                break
        trainer.run.stash.set(ROLLBACK, object())
        assert [] == plugin.state_dict()["waiting"]
        assert 0 == plugin.state_dict()["since"]


def test_a_forced_jump_in_another_phase_has_no_length_of_a_full_phase() -> None:
    trainer, batches = made()
    with trainer:
        trainer.step(batches[0], phase="predict")
        for batch in batches[1:]:
            trainer.step(batch)
        assert figures(trainer, SPEC.name)["learned"] >= 1


@pytest.mark.parametrize("lengths", [(), (5,), (0, 5), (5, 5), (8, 4)])
def test_lengths_rise(lengths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="'lengths' must be two or more integers >= 1 in rising"):
        AdaptivePhasesConfig(lengths=lengths)
