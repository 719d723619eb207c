"""Configurations of every kind of value, and the manifests of plugins that take them."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - read from the classes below
from pathlib import Path
from typing import Any, Literal

import attrs
from hypothesis import strategies as st

from neaptide.config import RunConfig
from neaptide.config.schema import (
    CorrectSection,
    DataSection,
    EvalSection,
    FullSection,
    ModelSection,
    OptimizerSection,
    PhasesSection,
    PredictSection,
    RunSection,
    TrainSection,
    WarmupSection,
)
from neaptide.plugin import PluginSpec


@attrs.frozen(kw_only=True)
class Inner:
    size: int = 1
    note: str | None = None


@attrs.frozen(kw_only=True)
class Rich:
    flag: bool = True
    rate: float = 0.5
    either: int | float | str = 0
    choice: Literal["a", "b", 3] = "a"
    limit: float | None = None
    sizes: tuple[int, ...] = ()
    names: frozenset[str] = frozenset()
    inner: Inner = Inner()
    inners: list[Inner] = attrs.Factory(list)
    table: Mapping[str, Any] = attrs.Factory(dict)
    path: Path = Path("x")


SPECS = {
    name: PluginSpec(name=name, load="strangers:Rich", config=Rich) for name in ("rich", "rich-er")
}

int64 = st.integers(-(2**63), 2**63 - 1)
counts = st.integers(1, 2**63 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(0, exclude_min=True, allow_nan=False, allow_infinity=False)
text = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=8)
plain = st.recursive(
    st.booleans() | int64 | floats | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
tables = st.dictionaries(text, plain, max_size=3)

inners = st.builds(Inner, size=int64, note=st.none() | text)
plugins = st.builds(
    Rich,
    flag=st.booleans(),
    rate=floats,
    either=int64 | floats | text,
    choice=st.sampled_from(["a", "b", 3]),
    limit=st.none() | floats,
    sizes=st.lists(int64, max_size=3).map(tuple),
    names=st.frozensets(text, max_size=3),
    inner=inners,
    inners=st.lists(inners, max_size=3),
    table=tables,
    path=text.map(Path),
)
built = st.just("") | text.map("module:{}x".format)
configs = st.builds(
    RunConfig,
    seed=st.integers(0, 2**63 - 1),
    run=st.builds(
        RunSection,
        dir=st.none() | text.filter(bool),
        keep=counts,
        progress=st.sampled_from(["auto", "plain", "quiet"]),
    ),
    model=st.builds(ModelSection, name=built, options=tables),
    data=st.builds(DataSection, name=built, options=tables),
    train=st.builds(
        TrainSection,
        steps=counts,
        batch_size=counts,
        device=st.sampled_from(["auto", "cpu", "cuda", "cuda:3", "xpu:1", "mps"]),
        clip_norm=st.none() | positive,
        grad_norm=st.booleans(),
    ),
    optimizer=st.builds(OptimizerSection, name=text, lr=positive, options=tables),
    eval=st.builds(EvalSection, every=counts, batches=counts),
    phases=st.builds(
        PhasesSection,
        warmup=st.builds(WarmupSection, steps=counts),
        full=st.builds(FullSection, steps=counts),
        predict=st.builds(
            PredictSection,
            max_horizon=counts,
            confidence=st.none() | st.floats(0, 1, exclude_min=True),
            rise=st.floats(0, 1),
        ),
        correct=st.builds(CorrectSection, steps=counts),
    ),
    plugins=st.dictionaries(st.sampled_from(sorted(SPECS)), plugins),
)
