"""Text as bytes: the splits, the windows, the cursor and the errors."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neaptide_plugins.builtin_data.text import (
    ByteBatches,
    EvalWindows,
    file_bytes,
    in_validation,
    source_files,
    stdlib_bytes,
)


def counting(length: int) -> torch.Tensor:
    """Bytes that count up, so that a window shows where it was cut."""
    return torch.arange(length).remainder(251).to(torch.uint8)


def library(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"# {name}\n")
    return root


def test_the_sources_leave_out_packages_tests_and_files_about_the_build(tmp_path: Path) -> None:
    root = library(
        tmp_path,
        "zipfile.py",
        "json/decoder.py",
        "site-packages/torch/nn.py",
        "test/test_json.py",
        "idlelib/idle_test/test_x.py",
        "lib2to3/tests/data.py",
        "__pycache__/zipfile.py",
        "_sysconfigdata__linux.py",
        "config-3.11-x86_64/config.py",
        "LICENSE.txt",
    )

    assert source_files(root) == ["json/decoder.py", "zipfile.py"]


def test_this_python_ships_its_sources_and_the_split_is_disjoint_by_file() -> None:
    training, validation = stdlib_bytes()
    known = Path(sys.modules["hashlib"].__file__ or "").read_bytes()

    sides = [known in bytes(side.numpy()) for side in (training, validation)]

    assert sorted(sides) == [False, True]
    assert training.dtype == validation.dtype == torch.uint8
    assert 0.03 < validation.numel() / (training.numel() + validation.numel()) < 0.25


def test_each_file_is_on_exactly_one_side(tmp_path: Path) -> None:
    names = [f"package/module_{number}.py" for number in range(60)]
    root = library(tmp_path, *names)

    training, validation = (bytes(side.numpy()).decode() for side in stdlib_bytes(0.2, root=root))

    for name in names:
        held_out = in_validation(name, 0.2)
        assert (f"# {name}\n" in validation, f"# {name}\n" in training) == (held_out, not held_out)


def test_the_side_of_a_file_depends_on_its_name_alone() -> None:
    names = [f"module_{number}.py" for number in range(20)]

    held_out = [name for name in names if in_validation(name, 0.2)]

    assert held_out == ["module_1.py", "module_5.py", "module_11.py", "module_14.py"]


@given(name=st.text(), shares=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_a_larger_share_only_adds_files(name: str, shares: tuple[float, float]) -> None:
    smaller, larger = sorted(shares)

    assert in_validation(name, smaller) <= in_validation(name, larger)


def test_a_python_without_sources_is_refused_in_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "python311.zip"

    with pytest.raises(ValueError, match="sources") as caught:
        stdlib_bytes(root=missing)

    assert str(caught.value) == (
        f"python-stdlib needs Python's own .py sources, but {missing} has 0 of them, 0 for "
        "validation: use a Python that ships its sources, or 'builtin:text-file'"
    )


def test_a_file_is_split_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "text.bin"
    path.write_bytes(bytes(range(256)))

    training, validation = file_bytes(path, 0.25)

    assert bytes(training.numpy()) == bytes(range(192))
    assert bytes(validation.numpy()) == bytes(range(192, 256))


def test_a_missing_file_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "absent.txt"

    with pytest.raises(ValueError, match="absent") as caught:
        file_bytes(path)

    expected = f"text-file cannot read {str(path)!r}: No such file or directory; "
    assert str(caught.value) == expected + "set the data's 'path'"


def test_a_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Is a directory; set the data's 'path'"):
        file_bytes(tmp_path)


@pytest.mark.parametrize("content", [b"", b"abc"])
def test_an_empty_or_short_file_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "short.txt"
    path.write_bytes(content)

    with pytest.raises(ValueError, match="too few") as caught:
        file_bytes(path)

    assert str(caught.value) == (
        f"text-file {str(path)!r} has {len(content)} bytes, too few to hold out a share of 0.1: "
        "give a longer text"
    )


@pytest.mark.parametrize("sampler", [ByteBatches, EvalWindows])
def test_text_shorter_than_a_window_is_refused_in_one_line(
    sampler: type[ByteBatches | EvalWindows],
) -> None:
    with pytest.raises(ValueError, match="context") as caught:
        sampler(counting(8), 8, 2, 1)

    assert str(caught.value) == (
        "the text has 8 bytes, but one window takes 9 (context 8 and the next byte): "
        "lower 'context' or give a longer text"
    )


def test_text_of_exactly_one_window_is_enough() -> None:
    batches = ByteBatches(counting(9), context=8, batch_size=2, seed=0)

    assert torch.equal(batches.batch(0)["tokens"], torch.arange(9).expand(2, 9))


@given(
    length=st.integers(2, 200),
    context=st.integers(1, 60),
    batch_size=st.integers(1, 9),
    seed=st.integers(-(2**63), 2**64),
    index=st.integers(0, 2**40),
)
def test_windows_are_cut_from_the_text(
    length: int, context: int, batch_size: int, seed: int, index: int
) -> None:
    length = max(length, context + 1)
    data = counting(length)

    tokens = ByteBatches(data, context, batch_size, seed).batch(index)["tokens"]

    assert tokens.shape == (batch_size, context + 1)
    assert tokens.dtype == torch.int64
    text = bytes(data.numpy())
    assert all(bytes(window) in text for window in tokens.tolist())


def test_both_ends_of_the_text_are_drawn() -> None:
    batches = ByteBatches(counting(12), context=8, batch_size=16, seed=0)

    firsts = {first for batch in islice(batches, 8) for first in batch["tokens"][:, 0].tolist()}

    assert firsts == {0, 1, 2, 3}


@given(seed=st.integers(0, 2**32), stop=st.integers(0, 12))
def test_resuming_from_a_cursor_continues_the_stream(seed: int, stop: int) -> None:
    whole = [batch["tokens"] for batch in islice(ByteBatches(counting(99), 8, 3, seed), 15)]
    first = ByteBatches(counting(99), 8, 3, seed)
    head = [batch["tokens"] for batch in islice(first, stop)]
    second = ByteBatches(counting(99), 8, 3, seed)

    second.load_state_dict(first.state_dict())
    tail = [batch["tokens"] for batch in islice(second, 15 - stop)]

    assert first.state_dict() == {"index": stop}
    assert torch.equal(torch.stack(head + tail), torch.stack(whole))


def test_batches_are_the_same_on_every_machine() -> None:
    batches = ByteBatches(counting(251), context=1, batch_size=4, seed=7)

    starts = [batches.batch(index)["tokens"][:, 0].tolist() for index in (0, 1, 10**9)]

    assert starts == [[90, 243, 205, 37], [122, 103, 189, 223], [164, 220, 12, 42]]


def test_another_seed_draws_other_windows() -> None:
    one, other = (ByteBatches(counting(251), 8, 4, seed).batch(0)["tokens"] for seed in (0, 1))

    assert not torch.equal(one, other)


def test_a_cursor_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="'index' must be >= 0"):
        ByteBatches(counting(99), 8, 3, 0).load_state_dict({"index": -1})


@given(
    spare=st.integers(0, 300),
    context=st.integers(1, 20),
    batch_size=st.integers(1, 7),
    count=st.integers(1, 30),
)
def test_eval_windows_do_not_overlap_and_stay_the_same(
    spare: int, context: int, batch_size: int, count: int
) -> None:
    data = torch.arange(context + 1 + spare)
    windows = EvalWindows(data, context, batch_size, count)

    passes = [torch.cat([batch["tokens"] for batch in windows]) for _ in range(2)]

    assert torch.equal(passes[0], passes[1])
    assert len(passes[0]) == min(count, len(data) // (context + 1))
    assert passes[0].unique().numel() == passes[0].numel()
    assert len(list(windows)) == len(windows)


def test_eval_windows_are_spread_over_the_whole_text() -> None:
    windows = EvalWindows(torch.arange(1000), context=9, batch_size=2, count=5)

    firsts = [batch["tokens"][:, 0].tolist() for batch in windows]

    assert firsts == [[0, 200], [400, 600], [800]]
