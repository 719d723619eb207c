"""A checkpoint whose digests are right and whose content is not changes nothing of a run."""

from __future__ import annotations

import hashlib
import json
import shutil
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import torch
from support import CYCLE, plugin_with, stranger, tiny_trainer

from neaptide import CheckpointError, Outcome, hookimpl
from neaptide.checkpoint import FileEntry, read_manifest, verify
from neaptide.checkpoint.manifest import render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from neaptide import HybridTrainer


def turned(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the same names with the values in another order."""
    return dict(zip(tree, reversed(tree.values()), strict=True))


def in_groups(tree: Any, **settings: Any) -> Any:
    return tree | {"param_groups": [group | settings for group in tree["param_groups"]]}


def of_ema(tree: Any, change: Callable[[Any], Any]) -> Any:
    return tree | {"ema": tree["ema"] | {"averages": change(tree["ema"]["averages"])}}


DAMAGES: dict[str, Callable[[Any], Any]] = {
    "config: no mapping": lambda _: [],
    "training: no number": lambda tree: tree | {"step": "9"},
    "training: a key is missing": lambda tree: {"step": tree["step"]},
    "training: no such phase": lambda tree: (
        tree | {"schedule": tree["schedule"] | {"phase": "sleep"}}
    ),
    "training: a loss that is none": lambda tree: (
        tree | {"history": tree["history"] | {"losses": ["low"]}}
    ),
    "training: a half accumulation": lambda tree: tree | {"accumulation": {"pieces": 1}},
    "training: a pending update without a loss": lambda tree: tree | {"pending": {"step": 1}},
    "training: a negative counter": lambda tree: tree | {"batches": -1},
    "training: a counter that is no whole number": lambda tree: tree | {"jumps": True},
    "training: the step of another checkpoint": lambda tree: tree | {"step": tree["step"] + 1},
    "training: a name more": lambda tree: tree | {"more": 1},
    "training: a sum with dimensions": lambda tree: (
        tree | {"accumulation": tree["accumulation"] | {"loss": [1.0]}}
    ),
    "optimizer: no state at all": lambda tree: tree | {"state": {}},
    "optimizer: states of other parameters": lambda tree: tree | {"state": turned(tree["state"])},
    "optimizer: a state without a name": lambda tree: (
        tree | {"state": {key: {"step": one["step"]} for key, one in tree["state"].items()}}
    ),
    "optimizer: a state that is a word": lambda tree: (
        tree | {"state": {key: dict.fromkeys(one, "x") for key, one in tree["state"].items()}}
    ),
    "optimizer: parameters in another order": lambda tree: (
        tree
        | {
            "param_groups": [
                group | {"params": group["params"][::-1]} for group in tree["param_groups"]
            ]
        }
    ),
    "optimizer: a rate that is a word": lambda tree: in_groups(tree, lr="fast"),
    "optimizer: betas that are a number": lambda tree: in_groups(tree, betas=0.9),
    "optimizer: no groups": lambda _: {"state": {}},
    "optimizer: state of no parameter": lambda tree: tree | {"state": {"$99": {}}},
    "optimizer: state that is none": lambda tree: tree | {"state": {"$0": 5}},
    "buffers: no tensor": lambda tree: dict.fromkeys(tree, 5),
    "gradients: of no parameter": lambda tree: {"stranger": next(iter(tree.values()))},
    "gradients: of another shape": lambda tree: dict(
        zip(tree, reversed(tree.values()), strict=True)
    ),
    "gradients: a number": lambda tree: dict.fromkeys(tree, 5),
    "rng: none of torch": lambda tree: {"python": tree["python"]},
    "rng: none of Python's": lambda tree: tree | {"python": [3, [1, 2, 3], None]},
    "rng: a number": lambda tree: tree | {"torch": 5},
    "plugins: one is missing": lambda tree: {"ema": tree["ema"]},
    "plugins: an average that is a number": lambda tree: of_ema(
        tree, lambda averages: dict.fromkeys(averages, 7)
    ),
    "plugins: averages of other weights": lambda tree: of_ema(tree, turned),
    "plugins: no averages": lambda tree: of_ema(tree, lambda _: {}),
    "plugins: a counter that is a word": lambda tree: (
        tree | {"ema": tree["ema"] | {"updates": "many"}}
    ),
    "plugins: a number": lambda tree: tree | {"ema": 5},
    "extra: a list": lambda _: [],
    "data: a word": lambda _: "there",
    "data: nowhere": lambda _: {"used": -1, "started_with": None},
    "data: begun with no generator": lambda _: {"used": 1, "started_with": {}},
    **{
        f"{name}: a tensor that is nowhere": lambda _: {"there": {"$tensor": "/nowhere"}}
        for name in (
            *("config", "training", "optimizer", "buffers"),
            *("gradients", "rng", "plugins", "extra", "data"),
        )
    },
}


def deferring() -> Any:
    """Return a plugin with state under which gradients wait after every step but the fourth."""

    @hookimpl
    def around_optimizer_step(self: Any) -> Any:
        def later(following: Any, **arguments: Any) -> Any:
            self.seen += 1
            return following(**arguments) if self.seen % 4 == 0 else Outcome.DEFERRED

        return later

    members = {
        "seen": 0,
        "around_optimizer_step": around_optimizer_step,
        "state_dict": lambda self: {"seen": self.seen},
        "load_state_dict": lambda self, state: setattr(self, "seen", state["seen"]),
    }
    return stranger(plugin_with(**members), "deferring")


def trained(seed: int, steps: int) -> HybridTrainer:
    """Return a trainer with an average and gradients that wait, after `steps` batches."""
    config = {"phases": CYCLE, "plugins": {"ema": {"decay": 0.9}}}
    trainer, batches = tiny_trainer(config, [deferring()], seed)
    for batch in batches[:steps]:
        trainer.step(batch)
    return trainer


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """Give a checkpoint amid an accumulation, and the digest of what it holds."""
    with trained(0, 6) as trainer:
        yield trainer.save(tmp_path_factory.mktemp("saved") / "whole"), trainer.digest()


@pytest.fixture(scope="module")
def other() -> Iterator[HybridTrainer]:
    """Give a trainer that stands elsewhere."""
    with trained(7, 5) as trainer:
        yield trainer


def rewritten(directory: Path, section: str, change: Callable[[Any], Any]) -> None:
    """Change the structure of a section, and have the manifest say that this was written."""
    path = directory / f"{section}.json"
    text = json.dumps(change(json.loads(path.read_text()))).encode()
    path.write_bytes(text)
    manifest = read_manifest(directory)
    entry = FileEntry(hashlib.sha256(text).hexdigest(), len(text))
    changed = attrs.evolve(manifest, files=manifest.files | {path.name: entry})
    (directory / "manifest.json").write_bytes(render(changed))
    assert [] == verify(directory)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_section_of_another_form_changes_nothing(
    saved: tuple[Path, str], other: HybridTrainer, tmp_path: Path, damage: str
) -> None:
    directory = shutil.copytree(saved[0], tmp_path / "damaged")
    section = damage.split(":", maxsplit=1)[0]
    rewritten(directory, section, DAMAGES[damage])
    before = other.digest(), other.state.phase, torch.get_rng_state()
    with pytest.raises(CheckpointError, match=section):
        other.load(directory)
    assert before[:2] == (other.digest(), other.state.phase)
    assert torch.equal(before[2], torch.get_rng_state())


def test_a_section_that_nobody_knows_is_refused(
    saved: tuple[Path, str], other: HybridTrainer, tmp_path: Path
) -> None:
    directory = shutil.copytree(saved[0], tmp_path / "damaged")
    shutil.copy(directory / "extra.json", directory / "more.json")
    manifest = read_manifest(directory)
    files = manifest.files | {"more.json": manifest.files["extra.json"]}
    (directory / "manifest.json").write_bytes(render(attrs.evolve(manifest, files=files)))
    with pytest.raises(CheckpointError, match="sections that this version does not know: more"):
        other.load(directory)


@pytest.mark.parametrize(
    "facts",
    [{"threads": 0}, {"threads": "two"}, {"plugins": {"ema": "1"}}, {"plugins": ["ema"]}],
)
def test_facts_of_another_form_are_refused(
    saved: tuple[Path, str], other: HybridTrainer, tmp_path: Path, facts: dict[str, Any]
) -> None:
    directory = shutil.copytree(saved[0], tmp_path / "damaged")
    manifest = read_manifest(directory)
    changed = attrs.evolve(manifest, facts={**manifest.facts, **facts})
    (directory / "manifest.json").write_bytes(render(changed))
    with pytest.raises(CheckpointError, match="manifest"):
        other.load(directory)


def test_objects_that_are_not_in_the_checkpoint_are_refused(
    saved: tuple[Path, str], tmp_path: Path
) -> None:
    trainer, batches = tiny_trainer({"phases": CYCLE})
    model = torch.nn.Linear(2, 2)
    with trainer:
        trainer.step(batches[0])
        directory = trainer.save(tmp_path / "without")
    more, _ = tiny_trainer({"phases": CYCLE}, stateful={"teacher": model})
    with more, pytest.raises(CheckpointError, match="the object 'teacher' is only in the model"):
        more.load(directory)


def test_what_no_plugin_says_in_the_manifest_changes_nothing(
    saved: tuple[Path, str], other: HybridTrainer, tmp_path: Path
) -> None:
    directory = shutil.copytree(saved[0], tmp_path / "damaged")
    manifest = attrs.evolve(read_manifest(directory), facts={})
    (directory / "manifest.json").write_bytes(render(manifest))
    before = other.digest()
    with pytest.raises(CheckpointError, match="wrong form of section 'manifest'"):
        other.load(directory)
    assert before == other.digest()


def test_the_same_checkpoint_undamaged_is_taken(saved: tuple[Path, str]) -> None:
    with trained(7, 5) as trainer:
        trainer.load(saved[0])
        assert saved[1] == trainer.digest()
