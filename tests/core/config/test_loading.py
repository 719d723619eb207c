from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from support import tiny_trainer

from neaptide.config import RunConfig, all_formats, dumps, load, unstructure
from neaptide.errors import ConfigError
from neaptide.plugin import PluginSpec

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    base, mine = tmp_path / "base.toml", tmp_path / "mine.toml"
    base.write_text(
        "seed = 1\n[train]\nsteps = 1\nbatch_size = 1\n[eval]\nbatches = 1\n", encoding="utf-8"
    )
    mine.write_text("[train]\nsteps = 2\nbatch_size = 2\n", encoding="utf-8")
    return [base, mine]


def test_nothing_given_is_the_defaults(specs: dict[str, PluginSpec]) -> None:
    loaded = load(specs=specs)
    assert loaded.config == RunConfig()
    assert set(loaded.origins.values()) == {"default"}


def test_each_source_wins_over_those_before_it(
    files: list[Path], specs: dict[str, PluginSpec]
) -> None:
    base, mine = files
    loaded = load(
        files,
        preset="tiny-cpu",
        sets=["train.device=cpu"],
        environ={"NEAPTIDE__TRAIN__BATCH_SIZE": "3", "NEAPTIDE__TRAIN__DEVICE": "cuda"},
        specs=specs,
        disabled=frozenset({"predictor-drift", "lr-schedule"}),
    )
    expected = {
        "version": (1, "preset tiny-cpu"),
        "seed": (1, str(base)),
        "eval.batches": (1, str(base)),
        "eval.every": (30, "preset tiny-cpu"),
        "train.steps": (2, str(mine)),
        "train.batch_size": (3, "NEAPTIDE__TRAIN__BATCH_SIZE"),
        "train.device": ("cpu", "--set"),
        "train.check_finite": (True, "default"),
    }
    for path, (value, origin) in expected.items():
        found = unstructure(loaded.config)
        for key in path.split("."):
            found = found[key]
        assert (found, loaded.origins[path]) == (value, origin), path


def test_origins_cover_every_value_of_the_effective_configuration(
    specs: dict[str, PluginSpec],
) -> None:
    loaded = load(
        sets=["plugins.ema={preset='fast', every=2}", "plugins.layer-drop={}"], specs=specs
    )
    assert loaded.origins["plugins.ema.decay"] == "preset fast of plugin ema"
    assert loaded.origins["plugins.ema.every"] == "--set"
    assert loaded.origins["plugins.ema.learning_rate"] == "default"
    assert loaded.origins["plugins.layer-drop"] == "--set"
    assert "plugins.ema.preset" not in loaded.origins


def test_the_effective_configuration_repeats_the_run(
    tmp_path: Path, specs: dict[str, PluginSpec]
) -> None:
    first = load(sets=["plugins_from=installed", "plugins.ema.preset=fast"], specs=specs).config
    path = tmp_path / "config.toml"
    path.write_text(dumps(unstructure(first)), encoding="utf-8")
    assert load([path], specs=specs).config == first


def test_one_source_needs_no_name_in_messages_and_several_do(
    files: list[Path], specs: dict[str, PluginSpec]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(sets=["train.steps=x"], specs=specs)
    assert str(caught.value) == 'expected an integer (got "x", a string) @ train.steps'
    with pytest.raises(ConfigError) as caught:
        load(files, environ={"NEAPTIDE__TRAIN__STEPS": "x"}, specs=specs)
    assert str(caught.value) == (
        'expected an integer (got "x", a string) @ train.steps (from NEAPTIDE__TRAIN__STEPS)'
    )


def test_the_process_environment_is_not_read_unasked(
    monkeypatch: pytest.MonkeyPatch, specs: dict[str, PluginSpec]
) -> None:
    monkeypatch.setenv("NEAPTIDE__SEED", "7")
    assert load(specs=specs).config.seed == 0


def test_a_blocked_plugin_is_not_even_looked_up(specs: dict[str, PluginSpec]) -> None:
    class Index(dict[str, PluginSpec]):
        def __getitem__(self, name: str) -> PluginSpec:
            assert name != "int8"
            return super().__getitem__(name)

    loaded = load(
        sets=["plugins.int8.bits=4", "plugins.ema={}"],
        specs=Index(specs),
        disabled=frozenset({"int8"}),
    )
    assert list(loaded.config.plugins) == ["ema"]


def test_configurations_are_read_without_torch() -> None:
    code = """
import sys
from neaptide.config import dumps, load, unstructure
dumps(unstructure(load(sets=["train.steps=3"], environ={}, specs={}).config))
print(sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "numpy"}))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("suffix", [".toml", ".yaml", ".yml", ".json"])
def test_the_trainer_takes_a_file_of_any_format(tmp_path: Path, suffix: str) -> None:
    notation = next(entry for entry in all_formats().values() if suffix in entry.suffixes)
    path = tmp_path / f"run{suffix}"
    settings = {"seed": 3, "train": {"clip_norm": 2e-5}, "plugins": {"ema": {}}}
    path.write_text(notation.dumps(settings), encoding="utf-8")
    for given in (path, str(path)):
        trainer, _ = tiny_trainer(given)
        with trainer:
            assert (3, 2e-5, ["ema"]) == (
                trainer.config.seed,
                trainer.config.train.clip_norm,
                list(trainer.config.plugins),
            )


def test_null_takes_back_what_an_earlier_file_set(
    tmp_path: Path, specs: dict[str, PluginSpec]
) -> None:
    first, second = tmp_path / "a.toml", tmp_path / "b.yaml"
    first.write_text("[train]\nclip_norm = 1.0\n", encoding="utf-8")
    second.write_text("train: {clip_norm: null}\n", encoding="utf-8")
    assert load([first], specs=specs).config.train.clip_norm == 1.0
    assert load([first, second], specs=specs).config.train.clip_norm is None
