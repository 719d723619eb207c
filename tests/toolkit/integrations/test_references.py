"""DPO's reference streams beside the trained model: everything is as without, to the bit."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from chats_and_texts import save_model, save_tokenizer, sentence
from datasets import Dataset
from hf_trainers import Done, Heard, assert_same, logs_of
from support import DEVICE
from transformers import TrainerCallback, set_seed
from trl import DPOConfig, DPOTrainer

from neaptide import ConfigError
from neaptide.hooks.enabling import configured
from neaptide_toolkit.integrations.references import of_reference
from neaptide_toolkit.integrations.transformers import NeaptideMixin

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*pin_memory.*"),
    pytest.mark.filterwarnings("ignore:.*torch.cpu.amp.autocast.*"),  # transformers 4
]
EXACT = ["layer-streaming", "optimizer-offload"]


class StreamedDpo(NeaptideMixin, DPOTrainer):  # type: ignore[misc] - trl is not checked
    """As a user writes it."""


class Places(TrainerCallback):  # type: ignore[misc] - transformers is not checked
    """Where the weights of the references are while the model trains, and what else they hold."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.tiers: list[str] = []
        self.gradients: list[Any] = []
        self.state: list[int] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        runs = [one._run for one in getattr(self.trainer, "_references", ())]
        for store in [run.store for run in runs if run is not None]:
            self.tiers += [each.tier for each in store.spans() if "layers." in each.name]
            self.gradients += [each.grad for each in store.parameters.values()]
            self.state.append(len(store.optimizer.state))


def preferences(folder: Path) -> Dataset:
    drawn = random.Random(0)
    keys = ("prompt", "chosen", "rejected")
    data = Dataset.from_list([{key: sentence(drawn) for key in keys} for _ in range(9)])
    data._fingerprint = folder.name  # TRL keeps log-probabilities by it: each run computes its own
    return data


def preferred(
    cls: Any, folder: Path, given: dict[str, Any], *, reference: bool = True, **settings: Any
) -> Done:
    """Train a small Llama on preferences, beside a frozen reference, and evaluate it."""
    set_seed(1)
    heard, places = Heard(), Places()
    arguments = DPOConfig(
        str(folder / "out"),
        use_cpu=DEVICE.type == "cpu",
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
        save_strategy="no",
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        gradient_checkpointing=False,
        num_train_epochs=2,
        learning_rate=1e-2,
        **{"bf16": False, **settings},
    )
    trainer = cls(
        save_model(folder / "model", attention_dropout=0.1),
        ref_model=save_model(folder / "reference", attention_dropout=0.1) if reference else None,
        args=arguments,
        train_dataset=preferences(folder),
        eval_dataset=preferences(folder).select(range(3)),
        processing_class=save_tokenizer(folder / "tokenizer"),
        callbacks=[heard, places],
        **given,
    )
    places.trainer = trainer
    trainer.train()
    trainer.evaluate()
    trainer.places = places
    weights = {name: one.clone() for name, one in trainer.model.state_dict().items()}
    return Done(trainer, logs_of(trainer), heard.events, weights)


SYNCED = {"sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 0.5}


@pytest.mark.parametrize(
    "settings",
    [{"disable_dropout": False}, {**SYNCED, "bf16": DEVICE.type == "cpu"}],
    ids=["dropout", "synced, bf16"],
)
def test_dpo_trains_alike_beside_a_streamed_reference(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    theirs = preferred(DPOTrainer, tmp_path / "theirs", {}, **settings)
    ours = preferred(StreamedDpo, tmp_path / "ours", {"neaptide_plugins": EXACT}, **settings)
    assert_same(ours, theirs)
    assert any(line.get("rewards/margins") for line in theirs.logs)
    places = ours.trainer.places
    assert {"host"} == set(places.tiers)
    assert {None} == set(places.gradients)
    assert {0} == set(places.state)
    (one,) = ours.trainer._references
    assert one._run is None
    reference = ours.trainer.ref_model
    assert all(each.requires_grad for each in reference.parameters())
    assert [] == [
        name
        for name, each in theirs.trainer.ref_model.state_dict().items()
        if not torch.equal(each.cpu(), reference.state_dict()[name].cpu())
    ]
    with pytest.raises(RuntimeError, match=r"a reference is frozen.*no_grad"):
        reference(torch.zeros(1, 2, dtype=torch.long, device=DEVICE))


@pytest.mark.parametrize("references", [1, 0])
def test_log_probabilities_that_are_computed_before_are_alike(
    tmp_path: Path, references: int
) -> None:
    def made(cls: Any, name: str, given: dict[str, Any]) -> Done:
        settings = {"precompute_ref_log_probs": True}
        return preferred(cls, tmp_path / name, given, reference=bool(references), **settings)

    theirs = made(DPOTrainer, "theirs", {})
    ours = made(StreamedDpo, "ours", {"neaptide_plugins": EXACT})
    assert_same(ours, theirs)
    column = "ref_chosen_logps"
    assert theirs.trainer.train_dataset[column][:] == ours.trainer.train_dataset[column][:]
    assert references == len(ours.trainer._references)
    assert [] == ours.trainer.places.tiers  # nothing of the reference is needed any more


def test_a_reference_may_stay_whole_on_the_device(tmp_path: Path) -> None:
    given = {"neaptide_plugins": EXACT, "neaptide_reference": False}
    done = preferred(StreamedDpo, tmp_path, given)
    assert [] == done.trainer._references
    assert {DEVICE.type} == {one.device.type for one in done.trainer.ref_model.parameters()}


def test_a_reference_that_cannot_be_placed_names_the_argument(tmp_path: Path) -> None:
    given = {"neaptide_plugins": EXACT, "neaptide_reference": {"blocks": "nothing.*"}}
    with pytest.raises(ConfigError, match=r"reference model: no module .* see neaptide_reference"):
        preferred(StreamedDpo, tmp_path, given)
    given = {"neaptide_plugins": EXACT, "neaptide_reference": {"block": "model.layers.*"}}
    with pytest.raises(ConfigError, match=r"did you mean 'blocks'"):
        preferred(StreamedDpo, tmp_path, given)


def test_settings_of_a_reference_need_a_plugin_that_places_models(tmp_path: Path) -> None:
    given = {"neaptide_plugins": ["ema"], "neaptide_reference": {"max_active_layers": 3}}
    with pytest.raises(ConfigError, match=r"no plugin .* places models; .* @ neaptide_reference"):
        preferred(StreamedDpo, tmp_path, given)


def test_files_of_the_trained_weights_are_not_those_of_the_reference() -> None:
    table = {"weights": "policy", "max_active_layers": 3, "blocks": ["model.layers.*"]}
    config, ordered = configured({"plugins": {"layer-streaming": table}})

    def placed_by(given: Any) -> Any:
        found = of_reference(config, ordered, given=given)
        assert found is not None
        return found.plugins["layer-streaming"]

    same = placed_by(True)
    assert (None, 3, ("model.layers.*",)) == (same.weights, same.max_active_layers, same.blocks)
    other = placed_by({"weights": "base"})
    assert ("base", 2, None) == (other.weights, other.max_active_layers, other.blocks)
