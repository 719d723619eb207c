"""What a plan chooses where a configuration says `"auto"`, and what a run does with it."""

from __future__ import annotations

import json
import tomllib
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import pytest
import torch
from command_line import folder, neaptide
from plans import CONFIG, KINDS
from torch import nn

from neaptide import ConfigError, HybridTrainer, Task
from neaptide.config.tables import overlay
from neaptide.hooks.enabling import configured
from neaptide_plugins.layer_streaming.config import LayerStreamingConfig
from neaptide_verbs.plan.asking import Answer
from neaptide_verbs.plan.auto.choosing import MARGIN, asks, chosen
from neaptide_verbs.plan.machine import target
from neaptide_verbs.plan.planning import plan

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["folder", "neaptide"]

GIB = 2**30
NAME = "layer-streaming"
AUTO = {"max_active_layers": "auto", "optimizer_slots": "auto", "micro_batches": "auto"}
WIDTH = 512
DEEP = {
    "model": {"name": f"{KINDS}:deep", "options": {"layers": 6, "width": WIDTH}},
    "data": {"name": f"{KINDS}:sequences", "options": {"width": WIDTH, "length": 256}},
    "plugins": {NAME: {"update": "in_backward", **AUTO}},
}


def config_of(**streaming: Any) -> Any:
    return configured(overlay(DEEP, {"plugins": {NAME: streaming}}), ())[0]


def bytes_of(**streaming: Any) -> int:
    return plan(config_of(**streaming), target("rtx4090", 64)).peak_bytes["device"]


@pytest.fixture(scope="module")
def ladder() -> list[tuple[dict[str, int], int]]:
    """The first choices, each with the bytes that it takes without blocks that stay."""
    choices = LayerStreamingConfig(**AUTO).choices()[:3]
    return [(one, bytes_of(**one, resident=0)) for one in choices]


def test_the_first_choice_that_fits_is_taken_and_filled(
    ladder: list[tuple[dict[str, int], int]],
) -> None:
    place = 1
    wanted, needed = ladder[place]
    gib = (needed + 2**20) / (1 - MARGIN) / GIB
    machine = target(str(gib), 64)
    config, made = chosen(config_of(), machine)
    first = next(one for one, taken in ladder if taken <= gib * GIB * (1 - MARGIN))
    found = config.plugins[NAME]
    assert first == wanted == {name: getattr(found, name) for name in wanted}
    assert made.fits
    assert made.tiers["device"].has == machine.device
    assert made.peak_bytes["device"] <= gib * GIB * (1 - MARGIN)
    assert made.peak_bytes["device"] == plan(config, machine).peak_bytes["device"]
    assert bytes_of(**wanted, resident=found.resident + 1) > gib * GIB * (1 - MARGIN)
    assert made.choice is not None
    tried = [one.settings["plugins"][NAME] for one in made.choice.tried]
    earlier = takewhile(lambda one: one[0] != wanted, ladder)
    assert tried[:place] == [{**one, "resident": 0} for one, _ in earlier]


def test_what_is_free_of_a_large_device_is_filled_with_all_blocks() -> None:
    machine = target("rtx4090", 64)
    config, made = chosen(config_of(), machine)
    again, _ = chosen(config_of(), machine)
    assert config == again
    found = config.plugins[NAME]
    assert (found.max_active_layers, found.optimizer_slots, found.micro_batches) == (3, 4, 1)
    assert (found.prefetch_distance, found.resident) == (2, 6)
    assert made.choice is not None
    assert made.choice.tried == ()
    assert "chosen: plugins.layer-streaming.max_active_layers = 3, " in str(made)


def test_if_nothing_fits_the_plan_is_of_the_last_choice() -> None:
    config, made = chosen(config_of(micro_batches=2), target("0.95", 64))
    assert not made.fits
    assert config.plugins[NAME].optimizer_slots == 1
    assert made.choice is not None
    assert len(made.choice.tried) == 2
    assert "tried, too:\n  layer-streaming max_active_layers = 3, optimizer_slots = 4, " in str(
        made
    )


def test_only_what_is_auto_is_chosen() -> None:
    assert LayerStreamingConfig().choices() == []
    assert LayerStreamingConfig(micro_batches="auto").choices() == [
        {"micro_batches": count} for count in (1, 2, 4, 8)
    ]
    slots = LayerStreamingConfig(optimizer_slots="auto", resident=3)
    assert [one["optimizer_slots"] for one in slots.choices()] == [4, 2, 1]
    assert slots.filled() is None
    numbers = config_of(max_active_layers=2, optimizer_slots=2, micro_batches=1)
    assert not asks(numbers)
    config, made = chosen(numbers, target("rtx4090", 64))
    assert config is numbers
    assert made.choice is None


def normed(layers: int, width: int) -> Task:
    blocks = (nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width)) for _ in range(layers))
    return Task(nn.Sequential(*blocks), lambda model, batch: model(batch[:, 0]).square().mean())


def test_a_choice_that_cannot_run_is_passed_over() -> None:
    whole = overlay(DEEP, {"model": {"name": f"{__name__}:normed"}})
    config, _ = chosen(configured(whole, ())[0], target("rtx4090", 64))
    assert config.plugins[NAME].micro_batches == 1


def test_what_fails_with_every_choice_is_told_as_without_a_choice() -> None:
    for wrong in ({"plugins": {NAME: {"blocks": "none.*"}}}, {"optimizer": {"name": "torch:None"}}):
        said = []
        for settings in (AUTO, dict.fromkeys(AUTO, 2)):
            table = overlay(DEEP, {"plugins": {NAME: settings}})
            config = configured(overlay(table, wrong), ())[0]
            with pytest.raises(ConfigError) as refused:
                chosen(config, target("rtx4090", 64))
            said.append(str(refused.value))
        assert said[0] == said[1]


def streamed(folder: Path) -> str:
    table = "\n".join(f'{name} = "auto"' for name in AUTO)
    text = CONFIG.format(layers=3, width=64) + "steps = 2\n"
    (folder / "mine.toml").write_text(f"{text}[plugins.layer-streaming]\n{table}\n")
    return "mine.toml"


def test_a_plan_writes_what_it_chose(folder: Path, neaptide: Any) -> None:
    machine = ("--device", "rtx4090", "--ram", "64")
    done = neaptide("plan", streamed(folder), *machine, "--json", "--write", "fits.toml")
    assert done.code == 0, done.err
    told = json.loads(done.out)["choice"]["settings"]["plugins"][NAME]
    written = tomllib.loads((folder / "fits.toml").read_text())["plugins"][NAME]
    assert told == {name: written[name] for name in told}
    assert neaptide("config", "check", "fits.toml").code == 0
    several = neaptide("plan", "mine.toml", "--device", "all")
    assert several.code == 2
    assert "for one device; name one @ --device" in several.err


def test_a_run_trains_with_what_its_plan_chose(folder: Path, neaptide: Any) -> None:
    done = neaptide("run", streamed(folder), "--quiet", "--set", "run.dir=there")
    assert done.code == 0, done.err
    written = tomllib.loads((folder / "there" / "config.toml").read_text())["plugins"][NAME]
    assert [written[name] for name in AUTO] == [3, 4, 1]


def test_without_a_plan_nothing_is_chosen(
    folder: Path, neaptide: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = streamed(folder)
    off = neaptide("run", file, "--set", "run.plan=off")
    assert off.code == 2
    assert "settings that are 'auto' are chosen by a plan" in off.err
    monkeypatch.setenv("WORLD_SIZE", "2")
    several = neaptide("run", file)
    monkeypatch.delenv("WORLD_SIZE")
    assert several.code == 2
    monkeypatch.setattr(
        "neaptide_verbs.plan.before_run.ask", lambda *_: Answer(problem="it needs values")
    )
    unknown = neaptide("run", file)
    assert unknown.code == 2
    assert (
        "no plan can choose settings that are 'auto': it needs values; mend that, or give numbers"
        in unknown.err
    )
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4)) for _ in range(3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match="max_active_layers = 'auto' is chosen by a plan"):
        HybridTrainer(
            model,
            optimizer,
            loss_fn=lambda model, batch: model(batch).sum(),
            config={"plugins": {NAME: {"max_active_layers": "auto"}}},
        )
