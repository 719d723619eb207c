"""Laws of the 64 features: what moves them, and what does not."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import DEVICE

from neaptide.api.history import GRADIENT_NORMS, History
from neaptide.api.history import LOSSES as HISTORY_LOSSES
from neaptide.api.history import SECONDS as HISTORY_SECONDS
from neaptide_kernels.encode_state import (
    EXTRAS,
    FEATURES,
    LOSSES,
    NORMS,
    SECONDS,
    encode_state,
)
from neaptide_kernels.encode_state import (
    packed as packed_on_host,
)
from neaptide_toolkit.testing.parting import same_bits

pytestmark = pytest.mark.usefixtures("on_device")


def packed(samples: Any, window: int) -> tuple[torch.Tensor, torch.Tensor]:
    ring, count = packed_on_host(samples, window)
    return ring.to(DEVICE), count.to(DEVICE)


LEVELS = [*FEATURES[2:8], "norm_last", "norm_mean"]
ORDERLESS = FEATURES[:2] + FEATURES[3:18]
ANY = st.floats(width=32)
MODERATE = st.floats(-100, 100, width=32).map(lambda x: round(x * 64) / 64)


def encoded(
    losses: Any = (), norms: Any = (), seconds: Any = (), extras: Any = (0.0,) * 8
) -> dict[str, float]:
    """Return the features of histories by name."""
    rings = [
        each
        for samples, window in ((losses, LOSSES), (norms, NORMS), (seconds, SECONDS))
        for each in packed(list(samples), window)
    ]
    features = encode_state(*rings, torch.tensor(extras))
    assert torch.float32 == features.dtype
    return dict(zip(FEATURES, features.tolist(), strict=True))


def near(expected: float) -> Any:
    return pytest.approx(expected, rel=2e-4, abs=2e-4)


def sample_of(level: float) -> float:
    return math.copysign(math.expm1(abs(level)), level)


def test_there_are_64_names_and_the_windows_are_those_of_the_history() -> None:
    assert (64, 64) == (len(FEATURES), len(set(FEATURES)))
    assert (HISTORY_LOSSES, GRADIENT_NORMS, HISTORY_SECONDS) == (LOSSES, NORMS, SECONDS)


@given(
    losses=st.lists(ANY, max_size=300),
    norms=st.lists(ANY, max_size=70),
    seconds=st.lists(ANY, max_size=70),
    extras=st.lists(ANY, min_size=8, max_size=8),
)
def test_every_feature_is_finite_whatever_there_was(
    losses: list[float], norms: list[float], seconds: list[float], extras: list[float]
) -> None:
    features = encoded(losses, norms, seconds, extras)
    assert [] == [name for name, value in features.items() if not math.isfinite(value)]


@given(seen=st.integers(-(2**63), 2**63 - 1), value=ANY)
def test_a_count_of_any_size_is_a_place_in_the_ring(seen: int, value: float) -> None:
    rings = (torch.full((LOSSES,), value), torch.tensor(seen))
    others = [torch.tensor(seen) if place % 2 else torch.full((64,), value) for place in range(4)]
    assert encode_state(*rings, *others, torch.zeros(8)).isfinite().all()


@given(
    losses=st.lists(MODERATE, max_size=LOSSES),
    norms=st.lists(MODERATE, max_size=NORMS),
    seconds=st.lists(st.floats(0.125, 100, width=32), min_size=1, max_size=SECONDS),
    power=st.integers(-8, 8),
)
def test_another_unit_scales_the_levels_and_nothing_else(
    losses: list[float], norms: list[float], seconds: list[float], power: int
) -> None:
    before = encoded(losses, norms, seconds)
    factor = 2.0**power
    after = encoded(*([factor * x for x in samples] for samples in (losses, norms, seconds)))
    for name, value in before.items():
        if name in LEVELS:
            assert near(factor * sample_of(value)) == sample_of(after[name]), name
        elif name == "seconds_log_mean":
            assert near(value + math.log(factor)) == after[name]
        else:
            assert value == after[name], name


@given(losses=st.lists(MODERATE, max_size=LOSSES), seed=st.integers(0, 99))
def test_order_moves_only_what_is_about_order(losses: list[float], seed: int) -> None:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    shuffled = [losses[place] for place in torch.randperm(len(losses), generator=generator)]
    before, after = encoded(losses), encoded(shuffled)
    for name in ORDERLESS:
        assert near(before[name]) == after[name], name


@given(losses=st.lists(MODERATE, max_size=LOSSES), by=st.integers(-64, 64))
def test_a_shift_moves_levels_and_the_variation_alone(losses: list[float], by: int) -> None:
    before, after = encoded(losses), encoded([x + by for x in losses])
    for name, value in before.items():
        if name not in LEVELS and name != "loss_variation":
            assert near(value) == after[name], name


@given(losses=st.lists(MODERATE, min_size=LOSSES, max_size=LOSSES))
def test_backwards_what_rose_falls(losses: list[float]) -> None:
    before, after = encoded(losses), encoded(losses[::-1])
    climbs = sum(x > y for x, y in zip(losses[1:], losses, strict=False)) / (LOSSES - 1)
    assert near(climbs) == after["loss_falls"]
    assert near(-before["loss_rise_256"]) == after["loss_rise_256"]
    for name in ("loss_fit_256", "loss_roughness", "loss_turns", "loss_echo_1", "loss_echo_8"):
        assert near(before[name]) == after[name], name


@given(losses=st.lists(MODERATE, min_size=2, max_size=LOSSES))
def test_figures_are_those_that_torch_finds(losses: list[float]) -> None:
    got, x = encoded(losses), torch.tensor(losses, dtype=torch.float64)
    assert near(float(x.mean())) == sample_of(got["loss_mean"])
    assert near(float(x.quantile(0.5))) == sample_of(got["loss_median"])
    assert near(float(x.std(correction=0))) == sample_of(got["loss_std"])
    assert (near(min(losses)), near(max(losses)), near(losses[-1])) == tuple(
        sample_of(got[name]) for name in ("loss_least", "loss_largest", "loss_last")
    )
    newest = min(age for age, loss in enumerate(reversed(losses)) if loss == min(losses))
    assert newest / LOSSES == got["loss_since_least"]
    if x.std() > 0:
        z = (x - x.mean()) / x.std(correction=0)
        assert near(float((z**3).mean())) == got["loss_skewness"]
        for percent in (5, 10, 25, 50, 75, 90, 95):
            assert near(float(z.quantile(percent / 100))) == got[f"loss_p{percent:02}"]
        for span in (8, 32, 128):
            assert near(float(z[-span:].mean())) == got[f"loss_mean_{span}"]
            assert near(float(z[-span:].std(correction=0))) == got[f"loss_std_{span}"]
        for name, decay in (("fast", 0.8), ("slow", 0.95), ("slowest", 0.99)):
            weights = decay ** torch.arange(len(x), dtype=torch.float64).flip(0)
            average = float((weights * z).sum() / weights.sum())
            assert near(average) == got[f"loss_average_{name}"]
        for apart in (1, 8):
            pairs = z[apart:] * z[:-apart]
            assert near(float(pairs.mean()) if len(pairs) else 0) == got[f"loss_echo_{apart}"]


@pytest.mark.parametrize("slope", [-3.0, 0.25])
def test_a_straight_line_is_found(slope: float) -> None:
    got = encoded([700 + slope * step for step in range(LOSSES)])
    sign = math.copysign(1, slope)
    assert (near(12**0.5 * sign), near(1)) == (got["loss_rise_256"], got["loss_fit_256"])
    assert near(1) == got["loss_fit_128"]
    assert (slope < 0, 0) == (got["loss_falls"], got["loss_turns"])
    assert abs(got["loss_bend"]) < 0.01  # thirds of 256 are not alike
    assert (sign + 1) / 2 == got["loss_rank"]


def test_a_saw_turns_at_every_tooth_and_echoes() -> None:
    got = encoded([step % 2 for step in range(LOSSES)])
    assert (1, near(-1), near(1)) == (got["loss_turns"], got["loss_echo_1"], got["loss_echo_8"])
    assert near(2) == got["loss_roughness"]


def test_a_curve_bends() -> None:
    assert encoded([math.exp(-step / 20) for step in range(90)])["loss_bend"] > 0.5


def test_nothing_is_all_zeros_but_what_the_caller_tells() -> None:
    extras = (1.0, -2.0, 3.0, math.nan, math.inf, -math.inf, 0.5, 0.25)
    expected = dict.fromkeys(FEATURES, 0.0)
    expected |= dict(zip(EXTRAS, (1.0, -2.0, 3.0, 0.0, 0.0, 0.0, 0.5, 0.25), strict=True))
    assert expected == encoded(extras=extras)


def test_one_sample_has_a_level_and_no_shape() -> None:
    got = encoded([3.5], [2.0], [0.25])
    expected = {
        **dict.fromkeys(FEATURES, 0.0),
        **{name: near(math.log(4.5)) for name in LEVELS if name.startswith("loss")},
        **{name: near(math.log(3.0)) for name in LEVELS if name.startswith("norm")},
        "loss_std": 0.0,
        "seconds_log_mean": near(math.log(0.25)),
        "losses_present": 1 / LOSSES,
        "norms_present": 1 / NORMS,
        "seconds_present": 1 / SECONDS,
    }
    assert expected == got


@given(
    losses=st.lists(MODERATE, min_size=1, max_size=40),
    broken=st.sampled_from([math.nan, math.inf, -math.inf]),
)
def test_broken_samples_are_counted_and_left_out(losses: list[float], broken: float) -> None:
    clean, got = encoded(losses), encoded([x for loss in losses for x in (loss, broken)])
    assert (0, 0.5) == (clean["losses_broken"], got["losses_broken"])
    for name in ("losses_present", *ORDERLESS[2:], "loss_last", "loss_rank"):
        assert near(clean[name]) == got[name], name
    assert 0 == got["loss_falls"]


@given(losses=st.lists(MODERATE, max_size=600), seed=st.integers(0, 9))
def test_a_ring_is_read_by_its_count_and_no_further(losses: list[float], seed: int) -> None:
    ring = torch.full((LOSSES,), torch.nan)
    for number, loss in enumerate(losses):
        ring[number % LOSSES] = loss
    others = [*packed([], NORMS), *packed([], SECONDS), torch.zeros(8)]
    got = encode_state(ring, torch.tensor(len(losses)), *others)
    assert same_bits(encode_state(*packed(losses, LOSSES), *others), got)


def test_runs_side_by_side_are_encoded_each_for_itself() -> None:
    runs = []
    for run in range(3):
        history = History()
        for step in range(40 * run):
            history.record(2 + math.sin(step * run), 1.0 + step, 0.1)
        sequences = (history.losses, history.gradient_norms, history.seconds)
        rings = zip(sequences, (LOSSES, NORMS, SECONDS), strict=True)
        runs.append([each for samples, size in rings for each in packed(samples, size)])
        runs[-1].append(torch.full((8,), float(run)))
    together = encode_state(*(torch.stack(each) for each in zip(*runs, strict=True)))
    assert (3, 64) == together.shape
    for run, alone in enumerate(runs):
        torch.testing.assert_close(encode_state(*alone), together[run])


def test_float64_stays() -> None:
    rings = [*packed([1.0, 2.0], LOSSES), *packed([], NORMS), *packed([], SECONDS), torch.zeros(8)]
    precise = [ring.double() if ring.is_floating_point() else ring for ring in rings]
    got = encode_state(*precise)
    assert torch.float64 == got.dtype
    torch.testing.assert_close(encode_state(*rings).double(), got, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("place", "argument", "message"),
    [
        (0, torch.zeros(255), r"losses are torch.float32 \[255\]; should be .* \[256\]"),
        (0, torch.zeros(256).half(), r"losses are torch.float16 \[256\]; should be torch.float32"),
        (0, torch.zeros(1, 1, 256), r"should be torch.float32 \[256\] or \[runs, 256\]"),
        (2, torch.zeros(2, 64), r"norms are torch.float32 \[2, 64\]; should be .* \[64\]"),
        (4, torch.zeros(64).double(), r"seconds are torch.float64 \[64\]"),
        (6, torch.zeros(7), r"extras are torch.float32 \[7\]; should be .* \[8\]"),
        (1, torch.zeros(1, dtype=torch.int64), r"losses_seen is torch.int64 \[1\]; .* \[\]"),
        (5, torch.tensor(3.0), r"seconds_seen is torch.float32 \[\]; should be torch.int64"),
    ],
)
def test_what_does_not_go_together_is_one_line(
    place: int, argument: torch.Tensor, message: str
) -> None:
    given = [*packed([], LOSSES), *packed([], NORMS), *packed([], SECONDS), torch.zeros(8)]
    given[place] = argument
    with pytest.raises(ValueError, match=message) as told:
        encode_state(*given)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_packed_histories_are_float32_whatever_a_program_defaults_to(dtype: torch.dtype) -> None:
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            ring, count = packed([0.1, 0.2], 3)
    finally:
        torch.set_default_dtype(torch.float32)

    assert torch.equal(torch.tensor([0.1, 0.2, 0.0]), ring)
    assert 2 == count.item()
