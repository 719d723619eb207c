"""Every verb that reads: its JSON, and no torch even where there is a run to read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import tiny_trainer

WITHOUT_TORCH = """
import sys
from neaptide.cli import main
code = main(sys.argv[1:])
sys.exit(99 if "torch" in sys.modules else code)
"""
VERBS = {
    "config check": ("config", "check", "tiny.toml"),
    "config show": ("config", "show", "tiny.toml"),
    "config show --origin": ("config", "show", "tiny.toml", "--origin"),
    "config schema": ("config", "schema"),
    "config convert": ("config", "convert", "tiny.toml", "tiny.yaml"),
    "plugins list": ("plugins", "list"),
    "plugins show": ("plugins", "show", "ema"),
    "presets list": ("presets", "list"),
    "presets show": ("presets", "show", "tiny-cpu"),
    "presets copy": ("presets", "copy", "tiny-cpu", "copied.toml"),
    "ckpt list": ("ckpt", "list", "run"),
    "ckpt verify": ("ckpt", "verify", "run"),
    "report": ("report", "run"),
}
KEYS = {
    "config check": {"ok", "plugins"},
    "config show": {"seed", "train", "phases", "run", "plugins"},
    "config show --origin": {"path", "value", "origin"},
    "config schema": {"$schema", "title", "properties", "additionalProperties"},
    "config convert": {"path", "format", "config", "remarks", "notes"},
    "plugins list": {"name", "distribution", "summary", "problem"},
    "plugins show": {"name", "claims", "numerics", "settings"},
    "presets list": {"name", "summary"},
    "presets show": {"name", "toml"},
    "presets copy": {"name", "path"},
    "ckpt list": {"path", "step", "phase", "bytes", "neaptide"},
    "ckpt verify": {"path", "problems"},
    "report": {"run", "status", "steps", "loss", "memory", "jumps", "config", "page"},
}
NEWEST = Path("run/checkpoints/step-00000004")


@pytest.fixture
def saved(folder: Path) -> None:
    """Leave a run with two checkpoints in the current directory."""
    config = {"run": {"dir": "run", "checkpoint_every": 2}, "train": {"steps": 4}}
    trainer, batches = tiny_trainer(config)
    with trainer:
        trainer.fit(batches)


@pytest.mark.usefixtures("saved")
@pytest.mark.parametrize("verb", VERBS)
def test_every_reading_verb_prints_json_without_torch(folder: Path, verb: str) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, *VERBS[verb], "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert (0, "") == (done.returncode, done.stderr)
    printed = json.loads(done.stdout)
    rows = printed if isinstance(printed, list) else [printed]
    assert rows
    assert [] == [row for row in rows if not row.keys() >= KEYS[verb]]


@pytest.mark.usefixtures("saved")
def test_damage_is_found_without_torch(folder: Path) -> None:
    weights = NEWEST / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    command = [sys.executable, "-c", WITHOUT_TORCH, "ckpt", "verify", "run"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert (1, "") == (done.returncode, done.stderr)
    first, second = done.stdout.splitlines()
    assert first.endswith(": ok")
    assert f"{NEWEST}: weights.safetensors: damaged, its sha256 does not match" == second


@pytest.mark.usefixtures("saved")
@pytest.mark.parametrize("left", [0.0, 0.5, 1.0])
def test_a_truncation_is_found_in_every_file(neaptide: Any, left: float) -> None:
    for path in sorted(NEWEST.iterdir()):
        whole = path.read_bytes()
        # The last byte of the manifest is a newline, without which it says the same.
        path.write_bytes(whole[: min(int(left * len(whole)), len(whole) - 2)])
        done = neaptide("ckpt", "verify", NEWEST)
        assert (1, 1) == (done.code, done.out.count("\n")), path.name
        assert done.out.startswith(f"{NEWEST}: ")
        assert path.name in done.out
        path.write_bytes(whole)


@pytest.mark.usefixtures("saved")
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.999])
def test_a_flipped_bit_is_found_wherever_it_is(neaptide: Any, share: float) -> None:
    for path in sorted(NEWEST.iterdir()):
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[int(share * len(whole))] ^= 16
        path.write_bytes(flipped)
        assert 1 == neaptide("ckpt", "verify", NEWEST).code, path.name
        path.write_bytes(whole)
    assert 0 == neaptide("ckpt", "verify", NEWEST).code


@pytest.fixture
def broken(folder: Path) -> dict[str, str]:
    """Install a plugin that cannot be imported; return the environment that finds it."""
    info = folder / "site" / "ruins-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ruins\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[neaptide.plugins]\nruin = nowhere:SPEC\n")
    found = [str(folder / "site"), os.environ.get("PYTHONPATH")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, found))}


def test_a_broken_plugin_nobody_enabled_harms_no_one(command: Any, broken: dict[str, str]) -> None:
    done = command("config", "check", "tiny.toml", **broken)
    expected = "ok: 24 updates, plugins in order: predictor-drift -> profiler\n"
    assert (0, expected, "") == (done.code, done.out, done.err)


def test_enabling_a_broken_plugin_is_one_line(command: Any, broken: dict[str, str]) -> None:
    done = command("config", "check", "tiny.toml", "--set", "plugins.ruin={}", **broken)
    assert (2, "") == (done.code, done.out)
    (line,) = done.err.splitlines()
    assert line.startswith("error: ")
    assert "'ruin'" in line
    assert "No module named 'nowhere'" in line


def test_plugins_that_claim_the_same_are_refused(command: Any, folder: Path) -> None:
    rival = (
        "from neaptide import PluginSpec\n"
        "SPEC = PluginSpec(name='rival', load='rival:Rival', claims={'predictor'})\n"
    )
    info = folder / "site" / "rival-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "site" / "rival.py").write_text(rival, encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rival\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[neaptide.plugins]\nrival = rival:SPEC\n")
    found = [str(folder / "site"), os.environ.get("PYTHONPATH")]
    path = os.pathsep.join(filter(None, found))
    done = command("config", "check", "tiny.toml", "--set", "plugins.rival={}", PYTHONPATH=path)
    assert (2, "") == (done.code, done.out)
    (line,) = done.err.splitlines()
    assert "'rival'" in line
    assert "'predictor-drift'" in line
