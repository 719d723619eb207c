"""A rollback ends the trial, and the verdicts before it are forgotten."""

from __future__ import annotations

import pytest
from judged import PHASES, SOON, Back, figures, predictor
from support import tiny_trainer

from neaptide import PACE, ROLLBACK, Pace
from neaptide_plugins.delayed_verdict import SPEC
from neaptide_plugins.delayed_verdict.gain import JUMP_GAIN


@pytest.mark.parametrize("judged", [False, True])
def test_a_rollback_ends_the_trial_and_resets_the_pace(*, judged: bool) -> None:
    config = {"phases": PHASES, "plugins": {SPEC.name: SOON}}
    trainer, batches = tiny_trainer(config, [SPEC, predictor(Back)])
    with trainer:
        verdicts, stash = trainer.hooks.plugins[SPEC.name], trainer.run.stash
        for batch in batches:
            trainer.step(batch)
            if (stash.get(JUMP_GAIN) if judged else verdicts._verdicts.trial) is not None:
                break
        before = figures(trainer)
        assert judged == (stash.get(PACE) != Pace())
        stash.set(ROLLBACK, trainer)
        assert verdicts._verdicts.trial is None
        assert stash.get(JUMP_GAIN) is None
        assert stash.get(PACE) == Pace()
        counts = ("worthwhile", "harmful", "unclear", "none")
        assert [before[each] for each in counts] == [figures(trainer)[each] for each in counts]
