"""Models that are not of transformers are exported by the names that the checkpoint has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support import DEVICE, same_tensors, tiny_trainer

from neaptide import HybridTrainer
from neaptide.checkpoint import checkpoints
from neaptide_verbs.export import exporting

QUICK = ("--set", "train.steps=3", "--set", "eval.every=0", "--set", "model.options.layers=2")
QUICKSTART = Path(__file__).resolve().parents[3] / "examples" / "quickstart.toml"
MIB = 192


@pytest.fixture
def run(folder: Path) -> Path:
    """Return a run of a model given in Python, with batch norm, tied and frozen weights."""
    del folder
    config = {"run": {"dir": "run", "checkpoint_every": 2}, "train": {"steps": 4}}
    trainer, batches = tiny_trainer(config)
    with trainer:
        trainer.fit(batches)
    return Path("run")


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files below a folder."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_quickstart_is_exported_by_a_process_of_its_own(command: Any) -> None:
    assert 0 == command("run", QUICKSTART, *QUICK, "--set", "run.dir=quick").code
    done = command("export", "quick", "--to", "out", "--json")
    found = json.loads(done.out)
    assert (0, ["model.safetensors"], 3) == (done.code, found["weights"], found["step"])
    weights = load_file("out/model.safetensors")
    from neaptide_plugins.builtin_models.byte_gpt import build
    from neaptide_plugins.builtin_models.config import ByteGptOptions

    build(ByteGptOptions(layers=2)).load_state_dict(weights)  # strict: no name is missing
    assert "| model | `builtin:byte-gpt` |" in Path("out/README.md").read_text()


def test_weights_and_buffers_are_as_they_were_trained(neaptide: Any, run: Path) -> None:
    before = contents(run)
    assert 0 == neaptide("export", run, "--to", "out").code
    trainer, batches = tiny_trainer({"run": {"dir": "other"}, "train": {"steps": 4}})
    with trainer:
        trainer.fit(batches)
        expected = {name: value.cpu() for name, value in trainer.model.state_dict().items()}
        tied = {name for span in trainer.store.spans() for name in span.tied}
        spans = {span.name for span in trainer.store.spans()}
    found = load_file("out/model.safetensors")
    assert tied
    assert spans < found.keys()  # the others are buffers
    assert same_tensors({name: expected[name] for name in expected.keys() - tied}, found)
    assert before == contents(run)


def test_a_checkpoint_is_chosen_by_its_step_or_its_path(neaptide: Any, run: Path) -> None:
    first, second = checkpoints(run / "checkpoints")
    for to, given in {"a": (run,), "b": (second,), "c": (run, "--step", 4)}.items():
        assert 0 == neaptide("export", *given, "--to", to).code
    for to, given in {"d": (first,), "e": (run / "checkpoints", "--step", "2")}.items():
        assert 0 == neaptide("export", *given, "--to", to).code
    files = {to: Path(to, "model.safetensors").read_bytes() for to in "abcde"}
    assert files["a"] == files["b"] == files["c"] != files["d"] == files["e"]


def test_the_default_directory_has_the_name_of_the_run(neaptide: Any, run: Path) -> None:
    first, _ = checkpoints(run / "checkpoints")
    for given, name in {first: "run-step-2", run / "checkpoints": "run-step-4"}.items():
        done = neaptide("export", given)
        assert (0, name) == (done.code, done.out.split(":")[0])
        assert "| run | `run` |" in Path(name, "README.md").read_text()


def test_an_interrupted_export_leaves_nothing(
    neaptide: Any, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> str:
        raise KeyboardInterrupt

    places = {*Path().iterdir()}
    monkeypatch.setattr(exporting, "card", interrupted)
    assert 130 == neaptide("export", run, "--to", "out").code
    assert places == {*Path().iterdir()}


def test_shards_hold_together_what_one_file_would(neaptide: Any, run: Path) -> None:
    assert 0 == neaptide("export", run, "--to", "one").code
    assert 0 == neaptide("export", run, "--to", "many", "--max-shard", "0.0000002").code
    files = sorted(Path("many").glob("model-*.safetensors"))
    assert len(files) > 2
    parts = [load_file(file) for file in files]
    together = {name: tensor for part in parts for name, tensor in part.items()}
    assert same_tensors(load_file("one/model.safetensors"), together)


def test_whole_numbers_are_not_converted(neaptide: Any, run: Path) -> None:
    assert 0 == neaptide("export", run, "--to", "plain").code
    assert 0 == neaptide("export", run, "--to", "out", "--dtype", "bf16").code
    plain, found = load_file("plain/model.safetensors"), load_file("out/model.safetensors")
    assert {torch.float32, torch.int64} == {tensor.dtype for tensor in plain.values()}
    for name, tensor in plain.items():
        expected = tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
        assert torch.equal(expected, found[name])


def test_an_empty_directory_is_filled(neaptide: Any, run: Path) -> None:
    Path("out").mkdir()
    assert 0 == neaptide("export", run, "--to", "out").code
    assert Path("out/model.safetensors").is_file()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nowhere",), 2, "there is no checkpoint in nowhere; give a checkpoint, a folder of"),
        (("tiny.toml",), 2, "there is no checkpoint in tiny.toml; "),
        (("run", "--step", "3"), 2, "run has no checkpoint of step 3; the last ones are of 2, 4"),
        (("run", "--dtype", "int8"), 2, "Invalid value"),
        (("run", "--max-shard", "0"), 2, "give a number of GB above 0 (got 0) @ --max-shard"),
        (("run", "--max-shard", "nan"), 2, "give a number of GB above 0 (got nan)"),
        (("run", "--average"), 2, "step-00000004 holds no average of the weights; train with"),
        (("run", "--to", "."), 2, ". exists already; export to a new directory"),
        (("run", "--to", "tiny.toml"), 2, "tiny.toml exists already; export to a new directory"),
        (("run", "--to", "tiny.toml/out"), 1, "cannot export to "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_exported_is_one_line(
    neaptide: Any, run: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    before, places = contents(run), {*Path().iterdir()}
    done = neaptide("export", *arguments)
    (line,) = done.err.splitlines()
    assert (code, "", True) == (done.code, done.out, said in line), line
    assert (before, places) == (contents(run), {*Path().iterdir()})


def test_a_damaged_checkpoint_is_one_line_with_the_way_to_an_older_one(
    neaptide: Any, run: Path
) -> None:
    path = checkpoints(run / "checkpoints")[-1] / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    done = neaptide("export", run, "--to", "out")
    (line,) = done.err.splitlines()
    assert (1, False) == (done.code, Path("out").exists())
    assert "weights.safetensors: damaged, its sha256 does not match; choose another" in line
    assert 0 == neaptide("export", run, "--to", "out", "--step", "2").code


def test_a_models_function_is_not_called(neaptide: Any) -> None:
    assert 0 == neaptide("run", "tiny.toml", "--set", "train.steps=2").code
    Path("tiny_task.py").write_text("raise SystemExit('called')")
    sys.modules.pop("tiny_task")
    assert 0 == neaptide("export", "runs/tiny", "--to", "out").code


def test_texts_of_a_stranger_cannot_leave_the_card(neaptide: Any) -> None:
    name = "builtin:mlp"
    config = {
        "model": {"name": name},
        "run": {"dir": "a | `b` \x1b[2J\nrun"},
        "train": {"steps": 1},
    }
    with HybridTrainer.from_config(config) as trainer:
        trainer.fit(
            [{"x": torch.ones(2, 64, device=DEVICE), "y": torch.zeros(2, device=DEVICE).long()}]
        )
    assert 0 == neaptide("export", "a | `b` \x1b[2J\nrun", "--to", "out").code
    card = Path("out/README.md").read_text()
    assert "| run | `a \\| 'b' \\u001b[2J\\u000arun` |" in card


MEASURED = """
    import sys
    from pathlib import Path

    from neaptide_verbs.export import exporting


    def kib(name):
        status = Path("/proc/self/status").read_text()
        return int(status.split(name + ":")[1].split()[0])


    def measured(*arguments, **more):
        before = kib("VmRSS")
        done = found(*arguments, **more)
        print((kib("VmHWM") - before) / 1024, file=sys.stderr)
        return done


    found, exporting.export_run = exporting.export_run, measured
    from neaptide.cli import main

    sys.exit(main(["export", "run", "--to", "out", *sys.argv[1:]]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("more", [(), ("--dtype", "bf16"), ("--average",)], ids=" ".join)
def test_the_model_is_never_whole_in_memory(folder: Path, more: tuple[str, ...]) -> None:
    rows = 1024
    layers = MIB * 2**20 // (4 * rows**2)
    model = torch.nn.Sequential(*(torch.nn.Linear(rows, rows, bias=False) for _ in range(layers)))
    config = {
        "run": {"dir": "run", "plan": "off"},
        "train": {"steps": 1},
        "plugins": {"ema": {}} if more == ("--average",) else {},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = lambda model, batch: model(batch).square().mean()  # noqa: E731
    with HybridTrainer(model, optimizer, loss_fn=loss, config=config) as trainer:
        trainer.fit([torch.ones(1, rows)])
    done = subprocess.run(
        [sys.executable, "-c", dedent(MEASURED), *more],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    taken = float(done.stderr.splitlines()[-1])
    written = sum(path.stat().st_size for path in Path("out").glob("*.safetensors"))
    assert written >= MIB * 2**20 // (2 if "bf16" in more else 1)
    assert taken < MIB / 4
