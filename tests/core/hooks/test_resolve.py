"""The order of plugins and everything that can be wrong between them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neaptide import ConfigError, PluginSpec
from neaptide.hooks.resolve import resolve


def spec(name: str, **manifest: Any) -> PluginSpec:
    """Return a manifest nobody loads."""
    return PluginSpec(name=name, load="nowhere:Nothing", **manifest)


def names(*enabled: PluginSpec) -> list[str]:
    """Return the resolved order."""
    return [found.name for found in resolve(enabled)]


def problems(*enabled: PluginSpec, installed: tuple[PluginSpec, ...] = ()) -> tuple[str, ...]:
    """Return what resolving complains of."""
    with pytest.raises(ConfigError) as caught:
        resolve(enabled, lambda: installed)
    return caught.value.problems


def test_the_configs_order_holds() -> None:
    """Nothing asks for anything: nothing moves."""
    assert ["c", "a", "b"] == names(spec("c"), spec("a"), spec("b"))


def test_before_and_after_move_plugins() -> None:
    """Both ways of asking."""
    assert ["b", "a"] == names(spec("a", after={"b"}), spec("b"))
    assert ["b", "a"] == names(spec("a"), spec("b", before={"a"}))


def test_ties_keep_the_configs_order() -> None:
    """Only `d` has to move; the others stay as they were."""
    order = names(spec("b"), spec("a"), spec("c"), spec("d", before={"a"}))
    assert ["b", "c", "d", "a"] == order


def test_asking_about_plugins_that_are_absent_is_no_problem() -> None:
    """`before` and `after` order, they do not require."""
    assert ["a"] == names(spec("a", after={"gone"}, before={"lost"}))


def test_nothing_enabled_is_fine() -> None:
    """An empty list resolves to itself."""
    assert [] == names()


def test_a_claim_is_held_once() -> None:
    """Two strangers conflict without knowing each other."""
    found = problems(spec("int8", claims={"linear.weight"}), spec("fp8", claims={"linear.weight"}))
    (problem,) = found
    assert (
        "'int8' and 'fp8' both claim 'linear.weight'; "
        "keep one (set enabled = false in the other's table) @ plugins"
    ) == problem


def test_conflicts_name_plugins_or_claims() -> None:
    """Either way one line, at the plugin that objects."""
    assert ("'a' cannot run beside 'b' (it conflicts with 'b') @ plugins.a",) == problems(
        spec("a", conflicts={"b"}), spec("b")
    )
    assert ("'a' cannot run beside 'b' (it conflicts with 'activations') @ plugins.a",) == problems(
        spec("a", conflicts={"activations"}), spec("b", claims={"activations"})
    )


def test_a_plugin_does_not_conflict_with_itself() -> None:
    """It may object to others of its own claim."""
    assert ["a"] == names(spec("a", claims={"activations"}, conflicts={"activations"}))


def test_a_requirement_says_what_to_do() -> None:
    """Enable what is installed, or install something."""
    assert ("'a' requires 'b', which nothing provides; add [plugins.b] @ plugins",) == problems(
        spec("a", requires={"b"}), installed=(spec("b"), spec("c"))
    )
    assert (
        "'a' requires 'predictor', which nothing provides; install a plugin that does @ plugins",
    ) == problems(spec("a", requires={"predictor"}))
    both = [spec(name, claims={"predictor"}) for name in ("z", "y")]
    assert (
        (
            "'a' requires 'predictor', which nothing provides; "
            "add one of [plugins.y], [plugins.z] @ plugins"
        ),
    ) == problems(spec("a", requires={"predictor"}), installed=(*both, spec("b")))


def test_a_requirement_is_met_by_name_or_claim() -> None:
    """Who provides it does not matter."""
    assert ["a", "b"] == names(spec("a", requires={"b"}), spec("b"))
    assert ["a", "b"] == names(spec("a", requires={"predictor"}), spec("b", claims={"predictor"}))


def test_a_cycle_is_spelled_out() -> None:
    """Every plugin on it, and the way back."""
    (found,) = problems(spec("a", after={"b"}), spec("b", after={"c"}), spec("c", after={"a"}))
    path, _, rest = found.removeprefix("the order of plugins is circular: ").partition("; ")
    assert "change before or after @ plugins" == rest
    around = path.split(" -> ")
    assert 4 == len(around)
    assert around[-1] == around[0]
    assert {"'a'", "'b'", "'c'"} == set(around)


def test_a_plugin_after_itself_is_a_cycle() -> None:
    """The smallest one."""
    expected = "the order of plugins is circular: 'a' -> 'a'; change before or after @ plugins"
    assert (expected,) == problems(spec("a", after={"a"}))


def test_enabled_twice_is_said_once() -> None:
    """However many times it is there."""
    assert ("plugin 'a' is enabled twice @ plugins",) == problems(spec("a"), spec("a"), spec("a"))


def test_all_problems_come_at_once() -> None:
    """A claim, a conflict, a requirement and a cycle: four lines."""
    found = problems(
        spec("a", claims={"predictor"}, after={"b"}),
        spec("b", claims={"predictor"}, after={"a"}),
        spec("c", conflicts={"a"}, requires={"ema"}),
        installed=(spec("ema"),),
    )
    assert (
        (
            "'a' and 'b' both claim 'predictor'; "
            "keep one (set enabled = false in the other's table) @ plugins"
        ),
        "'c' cannot run beside 'a' (it conflicts with 'a') @ plugins.c",
        "'c' requires 'ema', which nothing provides; add [plugins.ema] @ plugins",
        "the order of plugins is circular: 'a' -> 'b' -> 'a'; change before or after @ plugins",
    ) == found


@given(st.permutations("abcdef"), st.sets(st.tuples(*[st.sampled_from("abcdef")] * 2), max_size=8))
def test_every_wish_is_kept(enabled: list[str], wishes: set[tuple[str, str]]) -> None:
    """Whatever forward edges are asked for, the order has them all and loses nobody."""
    edges = {(min(pair), max(pair)) for pair in wishes if pair[0] != pair[1]}
    specs = [
        spec(name, before={late for early, late in edges if early == name}) for name in enabled
    ]
    order = names(*specs)
    assert sorted(enabled) == sorted(order)
    assert all(order.index(early) < order.index(late) for early, late in edges)
    if not edges:
        assert list(itertools.chain(enabled)) == order
