"""What every plugin holds whose models correct the forecasts of the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support import CYCLE, same_tensors, tensors_of, tiny_trainer

from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from neaptide import PluginSpec


def trainer_of(spec: PluginSpec, settings: dict[str, Any]) -> Any:
    """Return a tiny trainer that jumps as far as the plugin is confident, and its batches."""
    phases = {**CYCLE, "predict": {**CYCLE["predict"], "max_horizon": 4, "confidence": 1e-9}}
    whole = {"phases": phases, "plugins": {spec.name: settings}}
    return tiny_trainer(whole, [spec, STEADY_PREDICTOR])


def require_resumed_alike(
    spec: PluginSpec, settings: dict[str, Any], directory: Path, saved_after: int
) -> None:
    """A run that goes on from a checkpoint has the confidences and the digest of one in a piece."""
    trainer, batches = trainer_of(spec, settings)
    with trainer:
        for batch in batches[:saved_after]:
            trainer.step(batch)
        trainer.save(directory)
        rest = [trainer.step(batch) for batch in batches[saved_after:]]
        whole = trainer.digest()
    trainer, _ = trainer_of(spec, settings)
    with trainer:
        trainer.load(directory)
        again = [trainer.step(batch) for batch in batches[saved_after:]]
        assert whole == trainer.digest()
    confidences = [each.confidence for each in rest]
    assert any(each is not None for each in confidences)
    assert confidences == [each.confidence for each in again]


def require_no_change_alone(spec: PluginSpec, settings: dict[str, Any]) -> None:
    """Without a predictor the plugin changes no bit of the weights."""

    def weights(plugins: dict[str, Any]) -> dict[str, torch.Tensor]:
        trainer, batches = tiny_trainer({"plugins": plugins})
        with trainer:
            for batch in batches:
                trainer.step(batch)
            return tensors_of(trainer.model)

    assert same_tensors(weights({}), weights({spec.name: settings}))


def bytes_in_ledger(spec: PluginSpec) -> int:
    """Return what the ledger says that the plugin holds, which is what it holds."""
    trainer, _ = tiny_trainer({"plugins": {spec.name: {}}})
    with trainer:
        entries = trainer.estimate_memory("full").entries
        (held,) = (entry for entry in entries if entry.owner == spec.name)
        forecaster = trainer.hooks.plugins[spec.name]._forecaster
        assert ("host", forecaster.bytes) == (held.tier, held.bytes)
    found: int = held.bytes
    return found
