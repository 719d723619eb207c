"""What the settings do: when it comes back, what is discarded, what is refused."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from offloaded import config, on_host
from support import (
    tiny_trainer,
)

from neaptide import (
    FULL,
    PREDICT,
    Phase,
    PhaseSchedule,
)
from neaptide.cli import main
from neaptide_plugins.optimizer_offload import SPEC
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

if TYPE_CHECKING:
    from pathlib import Path


class Marked:
    """Stands for activations."""

    alive = 0

    def __init__(self) -> None:
        Marked.alive += 1

    def __del__(self) -> None:
        Marked.alive -= 1


def test_what_only_a_cycle_keeps_is_freed_for_predict() -> None:
    def run(settings: dict[str, Any]) -> list[int]:
        trainer, batches = tiny_trainer(settings, [STEADY_PREDICTOR, SPEC])
        seen = []

        def keeps(module: Any, *_: Any) -> None:
            if module.training:
                cycle: dict[str, Any] = {"activations": Marked()}
                cycle["self"] = cycle
            else:
                seen.append(Marked.alive)

        trainer.model.register_forward_hook(keeps)
        gc.disable()
        try:
            with trainer:
                for batch in batches[:8]:
                    trainer.step(batch)
        finally:
            gc.enable()
            gc.collect()
        return seen

    assert 0 == max(run(config()))
    assert 0 < min(run(config(discard_activations=False)))


REST = Phase("rest", runs_backward=True, updates_optimizer=False, applies_prediction=False)


class Resting(PhaseSchedule):
    """Some steps without updates before the others."""

    def due(self) -> Phase:
        return REST if self.done < 6 else FULL

    def enter(self, phase: Phase) -> PhaseSchedule:
        return self

    def updated(self) -> PhaseSchedule:
        return attrs.evolve(self, done=self.done + 1)


@pytest.mark.parametrize("lookahead", [0, 2, 5])
def test_it_comes_back_some_steps_ahead(lookahead: int) -> None:
    trainer, batches = tiny_trainer(config(lookahead=lookahead), [STEADY_PREDICTOR, SPEC])
    schedule: PhaseSchedule = Resting(
        warmup_steps=0, full_steps=1, correct_steps=0, correction_interval=1, predicts=False
    )
    began = []
    with trainer:
        trainer.step(batches[0])
        plugin = trainer.hooks.plugins["optimizer-offload"]
        plugin.on_phase_enter(phase=REST)
        mechanism = plugin._mechanism
        for left in range(6, -1, -1):
            plugin.select_phase(schedule=schedule)
            if mechanism._ticket is not None:
                began.append(left)
            schedule = schedule.updated()
        assert any(on_host(trainer))  # shown where they wait until somebody needs them
        plugin.on_phase_enter(phase=FULL)
        trainer.step(batches[1])
        assert not any(on_host(trainer))
    assert list(range(lookahead, -1, -1)) == began


def test_a_jump_that_is_due_keeps_the_room() -> None:
    trainer, batches = tiny_trainer(config(), [STEADY_PREDICTOR, SPEC])
    with trainer:
        trainer.step(batches[0])
        plugin = trainer.hooks.plugins["optimizer-offload"]
        plugin.on_phase_enter(phase=PREDICT)
        due = attrs.evolve(trainer.state.schedule, phase=FULL, done=10)
        assert due.due() is PREDICT
        plugin.select_phase(schedule=due)
        assert plugin._mechanism._ticket is None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("strategy='ram'", "strategy"),
        ("lookahead=-1", "lookahead"),
        ("lookahead=1.5", "lookahead"),
        ("async_restore='yes'", "async_restore"),
        ("discard_activations=3", "discard_activations"),
        ("stratgy='cpu'", "strategy"),
    ],
)
def test_bad_settings_end_with_2_and_a_line(
    value: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        f"[model]\nname = 'builtin:mlp'\n[plugins.optimizer-offload]\n{value.replace('=', ' = ')}\n"
    )
    code = main(["config", "check", str(path)])
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert 2 == code
    assert said in line
    assert "plugins.optimizer-offload" in line
