"""Functions that torch's compiler builds into files: the bits are the reference's."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import environment

from neaptide_kernels.apply_delta import apply_delta, apply_int8_delta
from neaptide_kernels.chunked_cross_entropy.op import chunked_cross_entropy
from neaptide_kernels.int8 import dequantize_int8, quantize_int8
from neaptide_kernels.registry import KERNELS, KernelError, first_disagreement

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from neaptide_kernels.registry import Provider

EDGES = [
    torch.nan, torch.inf, -torch.inf, -0.0, 1e-40, 3.4e38, -3.4e38, 2.0**-120, 2.0**-121, 0.5, 1.5,
]  # fmt: skip

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "c++", "clang++"))), reason="needs a C++ compiler"
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep what is built in a folder of the test."""
    monkeypatch.setenv("NEAPTIDE_CACHE_DIR", str(tmp_path))
    return tmp_path


def inductor(op: str, *arguments: Any) -> Provider:
    """Return an op's provider, built for a call; before, it refuses the call and says why."""
    (provider,) = (each for each in KERNELS.providers(op) if each.name == "inductor")
    query = KERNELS.query(op, arguments)
    assert provider.supports(query) == f"it is not built: neaptide kernels tune {op}"
    assert provider.build is not None
    provider.build(query)
    assert provider.supports(query) is True
    return provider


def same(expected: torch.Tensor, got: torch.Tensor) -> bool:
    """Return whether numbers have the same bits, and NaN are in the same places."""
    return (
        (expected.dtype, expected.shape) == (got.dtype, got.shape)
        and torch.equal(expected.isnan(), got.isnan())
        and torch.equal(expected.nan_to_num().signbit(), got.nan_to_num().signbit())
        and torch.equal(expected.nan_to_num(), got.nan_to_num())
    )


def numbers(elements: int, seed: int, edges: list[float]) -> torch.Tensor:
    """Return numbers of many magnitudes, and some that are not ordinary."""
    drawn = torch.Generator().manual_seed(seed)
    made = torch.randn(elements, generator=drawn, device="cpu")
    made *= 10 ** (3 * torch.randn(elements, generator=drawn, device="cpu"))
    made[: len(edges)] = torch.tensor(edges[:elements], device="cpu")
    return made


def views(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """Return views of a square whose elements are not beside each other."""
    yield x[:, ::2]
    yield x.t()
    yield x[:1].expand(x.shape)


several = given(
    groups=st.integers(2, 40),
    group=st.integers(2, 300),
    seed=st.integers(0, 2**31),
    edges=st.lists(st.sampled_from(EDGES), max_size=8),
)


@pytest.mark.usefixtures("cache")
def test_groups_are_quantized_and_decoded_with_the_bits_of_the_reference() -> None:
    x = torch.zeros(4, 64, device="cpu")
    inductor("quantize_int8", x.bfloat16(), 64, True)
    inductor("dequantize_int8", x.char(), x[:, 0], x[:, 0].char(), 64)

    @settings(max_examples=60, deadline=None)
    @several
    def holds(groups: int, group: int, seed: int, edges: list[float]) -> None:
        x = numbers(groups * group, seed, edges).bfloat16().view(groups, group)
        with KERNELS.using(quantize_int8="reference", dequantize_int8="reference"):
            expected = quantize_int8(x, group, True)
            decoded = dequantize_int8(*expected, group)
        with KERNELS.using(quantize_int8="inductor", dequantize_int8="inductor"):
            got = quantize_int8(x, group, True)
            assert all(map(same, expected, got))
            assert same(decoded, dequantize_int8(*got, group))

    holds()
    square = numbers(64 * 64, 0, []).bfloat16().view(64, 64)
    for x, codes in zip(views(square), views(square.char()), strict=True):
        group = x.shape[1]  # a group is a row of the view
        scale, zero = square.float()[:, 0], square.char()[:, 0]
        got = []
        for name in ("reference", "inductor"):
            with KERNELS.using(quantize_int8=name, dequantize_int8=name):
                decoded = dequantize_int8(codes, scale, zero, group)
                got.append([*quantize_int8(x, group, True), decoded])
        assert all(map(same, *got))


@pytest.mark.usefixtures("cache")
def test_one_long_group_has_the_bits_of_the_reference() -> None:
    x = numbers(100_003, 0, [])
    inductor("quantize_int8", x, len(x))
    with KERNELS.using(quantize_int8="reference"):
        expected = quantize_int8(x, len(x))
    with KERNELS.using(quantize_int8="inductor"):
        assert all(map(same, expected, quantize_int8(x, 1 << 40)))
        broken = quantize_int8(torch.cat([x, torch.tensor([torch.nan], device="cpu")]), 1 << 40)
        assert bool(broken[1].isnan())
        with pytest.raises(KernelError, match="it takes whole groups"):
            quantize_int8(x, 64)


@pytest.mark.usefixtures("cache")
def test_deltas_are_added_with_the_bits_of_the_reference() -> None:
    some = [torch.zeros(8, device="cpu")]
    provider = inductor("apply_delta", [some[0].bfloat16()], some, torch.tensor(1.0))
    spec = KERNELS.ops["apply_delta"].spec
    query = KERNELS.query("apply_delta", ([some[0].bfloat16()], some, torch.tensor(1.0)))
    assert first_disagreement(spec, provider, query, {}) is None

    @settings(max_examples=60, deadline=None)
    @given(
        sizes=st.lists(st.integers(0, 700), min_size=1, max_size=4),
        offset=st.integers(0, 3),
        scale=st.floats(-4, 4, width=32),
        seed=st.integers(0, 2**31),
        edges=st.lists(st.sampled_from(EDGES), max_size=8),
    )
    def holds(sizes: list[int], offset: int, scale: float, seed: int, edges: list[float]) -> None:
        weights = [numbers(size + offset, seed, edges).bfloat16() for size in sizes]
        deltas = [numbers(size + offset, seed + 1, edges[::-1])[offset:] for size in sizes]
        changed = []
        for name in ("reference", "inductor"):
            own = [weight.clone() for weight in weights]
            with KERNELS.using(apply_delta=name):
                apply_delta([each[offset:] for each in own], deltas, torch.tensor(scale))
            changed.append(own)
        assert all(map(same, *changed))

    holds()
    for delta in views(numbers(400, 0, []).view(20, 20)):
        changed = [torch.zeros(delta.shape, dtype=torch.bfloat16, device="cpu") for _ in range(2)]
        for name, weight in zip(("reference", "inductor"), changed, strict=True):
            with KERNELS.using(apply_delta=name):
                apply_delta([weight], [delta], torch.tensor(0.5))
        assert same(*changed)


@pytest.mark.usefixtures("cache")
def test_deltas_of_codes_are_added_with_the_bits_of_the_reference() -> None:
    x = torch.zeros(4, 64, device="cpu")
    scale = torch.tensor(1.0)
    inductor("apply_int8_delta", [x.bfloat16()], [x.char()], [x[:, 0]], scale, 64)

    @settings(max_examples=60, deadline=None)
    @several
    def holds(groups: int, group: int, seed: int, edges: list[float]) -> None:
        elements = [groups * group, groups * group + 1, group, 1]  # three are left to the reference
        weights = [numbers(each, seed, edges).bfloat16() for each in elements]
        pairs = [quantize_int8(numbers(each, seed + 1, []), group)[:2] for each in elements]
        codes, sizes = [list(each) for each in zip(*pairs, strict=True)]
        changed = []
        for name in ("reference", "inductor"):
            own = [weight.clone() for weight in weights]
            with KERNELS.using(apply_int8_delta=name):
                apply_int8_delta(own, codes, sizes, scale, group)
            changed.append(own)
        assert all(map(same, *changed))

    holds()


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_loss_agrees_with_the_reference_also_for_odd_labels_and_logits(
    dtype: torch.dtype,
) -> None:
    op = chunked_cross_entropy
    sample = next(iter(op.spec.samples(torch.device("cpu"))))
    provider = inductor("chunked_cross_entropy", *sample.arguments)
    query = KERNELS.query("chunked_cross_entropy", op.spec.complete(sample.arguments))
    assert first_disagreement(op.spec, provider, query, {}) is None
    hidden = numbers(37 * 8, 0, []).view(37, 8).clamp(-3, 3).to(dtype)
    weight = numbers(50 * 8, 1, []).view(50, 8).clamp(-3, 3).to(dtype)
    labels = torch.arange(37, device="cpu")
    labels[:4] = torch.tensor([-100, -1, 50, 7])
    hidden[5], hidden[6, 0] = torch.inf, torch.nan
    results = []
    for name in ("reference", "inductor"):
        with KERNELS.using(chunked_cross_entropy=name):
            results.append(op(hidden, weight, None, labels, 9, 7, None, None, True, True, False))
    for expected, got in zip(*results, strict=True):
        assert torch.equal(expected.isnan(), got.isnan())
        torch.testing.assert_close(got, expected, equal_nan=True)


def kernels(folder: Path, command: str, op: str, **env: str) -> dict[str, Any]:
    """Return what `neaptide kernels` prints in a process of its own."""
    line = [sys.executable, "-m", "neaptide", "kernels", command, op, "--device", "cpu", "--json"]
    done = subprocess.run(
        line,
        env=environment(NEAPTIDE_CACHE_DIR=str(folder), **env), check=True, capture_output=True,
    )  # fmt: skip
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_tune_builds_and_a_later_process_runs_what_it_built(tmp_path: Path) -> None:
    op = "apply_int8_delta"
    before = kernels(tmp_path, "explain", op)
    tuned = kernels(tmp_path, "tune", op)
    after = kernels(tmp_path, "explain", op)
    reasons = [
        next(each for each in told["providers"] if each["provider"] == "inductor")["reason"]
        for told in (before, after)
    ]
    assert reasons == [f"it is not built: neaptide kernels tune {op}", ""]
    assert "inductor" in {each["provider"] for each in tuned["measured"][0]["timings"]}


def test_without_a_compiler_tune_says_why_nothing_was_built(tmp_path: Path) -> None:
    own = {"CXX": "/nothing/c++", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch")}
    tuned = kernels(tmp_path, "tune", "apply_int8_delta", **own)
    assert tuned["measured"][0]["refused"]["inductor"].startswith("it was not built: ")


BUILDING = """
    import torch
    from neaptide_kernels.int8 import dequantize_int8
    from neaptide_kernels.registry import KERNELS, KernelError
    query = KERNELS.query("dequantize_int8", (torch.zeros(4, 64).char(), torch.ones(4), None, 64))
    (provider,) = (one for one in KERNELS.providers("dequantize_int8") if one.build is not None)
    try:
        provider.build(query)
    except KernelError as error:
        print(error)
"""


def test_on_a_full_disk_nothing_is_built_and_a_line_says_where(tmp_path: Path) -> None:
    mount = f'mount -t tmpfs -o size=200k none "{tmp_path}" && exec "$@"'
    within = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    probe = subprocess.run([*within, "true"], check=False, capture_output=True)
    if probe.returncode:
        pytest.skip(f"no small file system: {probe.stderr.decode().strip()}")
    done = subprocess.run(
        [*within, sys.executable, "-c", dedent(BUILDING)],
        env=environment(NEAPTIDE_CACHE_DIR=str(tmp_path)), check=True, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.stdout.startswith(f"cannot write {tmp_path}/built/")
    assert done.stdout.endswith("No space left on device; set NEAPTIDE_CACHE_DIR elsewhere\n")


def test_damaged_code_is_told_and_not_run_and_built_anew(cache: Path) -> None:
    codes, scale = torch.ones(4, 64, dtype=torch.int8, device="cpu"), torch.ones(4, device="cpu")
    provider = inductor("dequantize_int8", codes, scale, None, 64)
    (file,) = cache.glob("built/*/*.pt2")
    with zipfile.ZipFile(file) as parts:
        (library,) = (each for each in parts.infolist() if each.filename.endswith(".so"))
    content = bytearray(file.read_bytes())
    content[library.header_offset + library.file_size // 2] ^= 1
    file.write_bytes(content)
    with (
        KERNELS.using(dequantize_int8="inductor"),
        pytest.raises(
            KernelError, match=r"raised KernelError: .* is damaged: neaptide kernels tune"
        ),
    ):
        dequantize_int8(codes, scale, None, 64)
    assert provider.build is not None
    provider.build(KERNELS.query("dequantize_int8", (codes, scale, None, 64)))
    with KERNELS.using(dequantize_int8="inductor"):
        assert same(codes.float(), dequantize_int8(codes, scale, None, 64))
