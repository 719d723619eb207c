"""Whole checkpoints: sections and streams saved and loaded, within bounded memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from neaptide.checkpoint import digest, load, save, writing
from neaptide.errors import CheckpointError

TREES = st.recursive(
    st.none()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"))
    | st.binary()
    | st.builds(torch.randn, st.integers(0, 5)),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(st.characters(codec="utf-8")) | st.integers(0, 9), inner)
    ),
    max_leaves=10,
)


def weights(model: nn.Module) -> list[Any]:
    return [
        (name, value.dtype, tuple(value.shape), lambda value=value: nullcontext(value))
        for name, value in model.state_dict().items()
    ]


def test_a_training_state(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    sections = {
        "optimizer": optimizer.state_dict(),
        "rng": {"torch": torch.get_rng_state()},
        "data": None,
        "plugins": {"ema": {}, "drift": {"window": [torch.ones(2), 3]}},
    }
    facts = {"phase": "correct"}

    save(tmp_path / "c", sections, 17, facts, {"weights": weights(model)})
    loaded = load(tmp_path / "c")

    assert (17, facts) == (loaded.manifest.step, loaded.manifest.facts)
    assert sorted(sections) == loaded.sections()
    for name, tree in sections.items():
        assert digest(tree) == digest(loaded.section(name))
    assert digest(dict(model.state_dict())) == digest(dict(loaded.tensors("weights")))
    assert model.state_dict().keys() == load_file(tmp_path / "c" / "weights.safetensors").keys()
    assert (torch.float32, (3, 4)) == loaded.tensors("weights").info("0.weight")


@given(st.dictionaries(st.sampled_from(["a", "b-1", "c_d", "e.f"]), TREES))
@settings(max_examples=30, deadline=None)
def test_round_trip(sections: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as root:
        save(Path(root) / "c", sections, 1, {})
        loaded = load(Path(root) / "c")

        assert sorted(sections) == loaded.sections()
        for name, tree in sections.items():
            assert digest(tree) == digest(loaded.section(name))


def test_a_parameter_comes_back_as_a_tensor(tmp_path: Path) -> None:
    save(tmp_path / "c", {"state": [nn.Parameter(torch.ones(2))]}, 1, {})

    (back,) = load(tmp_path / "c").section("state")

    assert torch.Tensor is type(back)
    assert not back.requires_grad


def test_no_pickle(tmp_path: Path) -> None:
    save(tmp_path / "c", {"state": {"w": torch.ones(3), "n": 1}}, 1, {})

    assert {".json", ".safetensors"} == {path.suffix for path in (tmp_path / "c").iterdir()}


def test_an_unknown_section_is_named_with_a_suggestion(tmp_path: Path) -> None:
    save(tmp_path / "c", {"optimizer": {}}, 1, {})

    with pytest.raises(CheckpointError, match=r"no 'optimiser' \(did you mean 'optimizer'\?\)"):
        load(tmp_path / "c").section("optimiser")
    with pytest.raises(CheckpointError, match=r"no 'weights'; has \[\]"):
        load(tmp_path / "c").tensors("weights")


def test_what_cannot_be_saved_leaves_the_previous(tmp_path: Path) -> None:
    save(tmp_path / "c", {"plugins": {}}, 1, {})

    for sections, why in [
        ({"plugins": {"ema": {"seen": {1, 2}}}}, r"plugins\.ema\.seen: cannot save a 'set'"),
        ({"a b": {}}, "'a b.json' cannot name a file"),
        ({"w": torch.zeros(2, dtype=torch.complex128)}, "cannot save torch.complex128"),
        ({"long": list(range(1_000_001))}, "long: 1000001 JSON values, at most 1000000"),
    ]:
        with pytest.raises(CheckpointError, match=why):
            save(tmp_path / "c", sections, 2, {})

    assert 1 == load(tmp_path / "c").manifest.step
    assert [tmp_path / "c"] == list(tmp_path.iterdir())


def test_an_interrupted_save_is_recovered(tmp_path: Path) -> None:
    save(tmp_path / "c", {"state": 5}, 1, {})
    (tmp_path / "c").rename(tmp_path / ".old-c")

    assert 5 == load(tmp_path / "c").section("state")
    assert [tmp_path / "c"] == list(tmp_path.iterdir())


def test_a_section_and_a_stream_of_one_name(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)

    with pytest.raises(CheckpointError, match=r"already has a file 'model\.safetensors'"):
        save(tmp_path / "c", {"model": model.state_dict()}, 1, {}, {"model": weights(model)})


def test_a_structure_refers_to_a_tensor_that_is_not_there(tmp_path: Path) -> None:
    with writing(tmp_path / "c", 1, {}) as writer:
        writer.file("state.json").write(b'{"$tensor":"/x"}')

    with pytest.raises(CheckpointError, match=r"state\.json: .* refers to the tensor '/x'"):
        load(tmp_path / "c").section("state")


STREAMING = """
    import sys
    from contextlib import contextmanager
    from pathlib import Path
    import torch
    from neaptide.checkpoint import load, save
    from neaptide_toolkit.machine.meter import high_water as peak

    @contextmanager
    def layer(value):
        yield torch.full((4, 2**20), float(value))

    items = [(str(n), torch.float32, (4, 2**20), lambda n=n: layer(n)) for n in range(20)]
    save(Path(sys.argv[1]) / "warm", {}, 1, {}, {"w": items[:1]})
    before = peak()
    save(Path(sys.argv[1]) / "c", {}, 1, {}, {"w": items})
    tensors = load(Path(sys.argv[1]) / "c").tensors("w")
    for n in range(20):
        assert tensors[str(n)][3, -1] == n
    print(peak() - before)
"""


def test_memory_is_that_of_one_tensor(tmp_path: Path) -> None:
    command = [sys.executable, "-c", dedent(STREAMING), tmp_path]
    # What is freed goes back at once, so that the peak is what was held and not glibc's reserve.
    freeing = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    grown = subprocess.check_output(command, text=True, env=freeing)

    assert int(grown) < 24 * 2**20  # two tensors of 16 MiB would be more
