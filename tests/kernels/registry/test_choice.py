"""Who runs a call: capability, what was measured, priority, what was asked for."""

import pytest
import torch

from neaptide_kernels.registry import (
    KernelError,
    Kernels,
    KernelWarning,
    Op,
    OpSpec,
    Provider,
    Query,
)
from neaptide_kernels.registry.timings import read


def provider(op: Op, name: str, **changes: object) -> Provider:
    return Provider(op=op.spec.name, name=name, run=op.spec.reference, **changes)  # type: ignore[arg-type]


def chosen(kernels: Kernels, op: Op, *arguments: object) -> str:
    return kernels.explain(op.spec.name, arguments).chosen


def test_the_reference_runs_where_nobody_else_does(kernels: Kernels, double: Op) -> None:
    x = torch.tensor([1.5])

    assert torch.equal(torch.tensor([3.0]), double(x))
    assert torch.equal(torch.tensor([4.5]), double(x, factor=3.0))
    assert "reference" == chosen(kernels, double, x)


def test_the_highest_priority_of_those_that_support_a_call(kernels: Kernels, double: Op) -> None:
    def even(query: Query) -> bool | str:
        return query["x"].elements % 2 == 0 or "an odd number of elements"

    kernels.add(provider(double, "low", priority=1))
    kernels.add(provider(double, "even", priority=2, supports=even))

    explained = kernels.explain(double.spec.name, (torch.ones(3),))
    assert ("low", "the highest priority") == (explained.chosen, explained.why)
    assert {"reference": "", "low": "", "even": "an odd number of elements"} == {
        one.provider: one.reason for one in explained.providers
    }
    assert "even" == chosen(kernels, double, torch.ones(4))


def test_what_was_measured_beats_priority(kernels: Kernels, double: Op) -> None:
    def slowly(x: torch.Tensor, factor: float) -> torch.Tensor:
        for _ in range(2000):
            factor = factor + 0.0
            x.sum()
        return x * factor

    kernels.add(Provider(op=double.spec.name, name="slow", run=slowly, priority=5))
    assert "slow" == chosen(kernels, double, torch.ones(4))

    measured, refused = kernels.measure(double.spec.name, (torch.ones(4),), keep=True)

    assert (["reference", "slow"], {}) == ([one.provider for one in measured], refused)
    assert "reference" == chosen(kernels, double, torch.ones(3))  # of the same bucket
    assert "slow" == chosen(kernels, double, torch.ones(400))
    with kernels.using(tuning="off"):
        assert "slow" == chosen(kernels, double, torch.ones(4))


def test_timings_are_for_good_and_of_one_version(kernels: Kernels, double: Op) -> None:
    mine = provider(double, "mine", priority=-1)
    kernels.add(mine)
    kernels.measure(double.spec.name, (torch.ones(4),), keep=True)
    again = Kernels(kernels.path)
    again._ops, again._providers = kernels._ops, kernels._providers

    times = {
        one.provider: one.seconds
        for one in again.explain(double.spec.name, (torch.ones(4),)).providers
    }
    assert all(seconds is not None for seconds in times.values())
    kernels.remove(mine)
    kernels.add(provider(double, "mine", priority=-1, version="2"))
    assert "reference" == chosen(again, double, torch.ones(4))


def test_a_new_version_is_not_passed_over_for_what_was_timed_beside_the_old_one(
    kernels: Kernels, double: Op
) -> None:
    old = provider(double, "mine", priority=1, version="1")
    kernels.add(old)
    kernels.measure(double.spec.name, (torch.ones(4),), keep=True)
    kernels.remove(old)
    kernels.add(provider(double, "mine", priority=1, version="2"))

    explained = kernels.explain(double.spec.name, (torch.ones(4),))

    assert ("mine", "the highest priority") == (explained.chosen, explained.why)


def test_tuning_measures_what_it_meets(kernels: Kernels, double: Op) -> None:
    kernels.add(provider(double, "mine", priority=-1, configs=lambda query: ({}, {})))
    with kernels.using(tuning="tune"):
        double(torch.ones(4))

    explained = kernels.explain(double.spec.name, (torch.ones(4),))

    assert "the fastest one measured" == explained.why
    assert kernels.path.exists()


def test_tuning_measures_a_provider_that_came_later_and_a_new_version(
    kernels: Kernels, double: Op
) -> None:
    def timed() -> set[tuple[str, str]]:
        again = Kernels(kernels.path)  # another process, which has tuned nothing yet
        again._ops, again._providers = kernels._ops, kernels._providers
        with again.using(tuning="tune"):
            again.run(double.spec.name, (torch.ones(4), 2.0))
        (timings,) = read(kernels.path).values()
        return {(one.provider, one.version) for one in timings}

    old = provider(double, "mine", priority=-1, version="1")
    assert {("reference", "1")} == timed()
    kernels.add(old)
    assert {("reference", "1"), ("mine", "1")} == timed()
    kernels.remove(old)
    kernels.add(provider(double, "mine", priority=-1, version="2"))
    assert {("reference", "1"), ("mine", "2")} == timed()


def test_tuning_does_not_try_a_provider_again_that_failed(kernels: Kernels, double: Op) -> None:
    calls = []

    def fails(x: torch.Tensor, factor: float) -> torch.Tensor:
        calls.append(x.numel())
        if x.numel() == 200:
            message = "too large"
            raise RuntimeError(message)
        return x * factor

    kernels.add(Provider(op=double.spec.name, name="fails", run=fails, priority=-1))
    with kernels.using(tuning="tune"):
        with pytest.warns(KernelWarning, match="left out of tuning"):
            double(torch.ones(200))
        tried = len(calls)
        double(torch.ones(201))

    assert tried == len(calls)


def test_a_provider_that_is_asked_for_runs_or_fails_loudly(kernels: Kernels, double: Op) -> None:
    never = provider(double, "never", supports=lambda query: "it never does", priority=9)
    kernels.add(never)
    kernels.add(provider(double, "last", priority=-9))
    name = double.spec.name

    with kernels.using(**{name: "last"}):
        assert ("last", "asked for") == (
            kernels.explain(name, (torch.ones(2),)).chosen,
            kernels.explain(name, (torch.ones(2),)).why,
        )
    with kernels.using(**{name: "never"}), pytest.raises(KernelError, match="it never does"):
        double(torch.ones(2))
    with pytest.raises(KernelError, match="did you mean 'never'"), kernels.using(**{name: "nevr"}):
        pass
    with pytest.raises(KernelError, match="there is no op"), kernels.using(nothing="last"):
        pass


def test_requests_end_in_any_order(kernels: Kernels, double: Op) -> None:
    name = double.spec.name
    kernels.add(provider(double, "one", priority=-1))
    kernels.add(provider(double, "two", priority=-2))
    first, second = kernels.using(**{name: "one"}), kernels.using(**{name: "two"})
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)

    assert "two" == chosen(kernels, double, torch.ones(1))
    second.__exit__(None, None, None)
    assert "reference" == chosen(kernels, double, torch.ones(1))


def test_a_provider_of_two_runs_stays_until_both_end(kernels: Kernels, double: Op) -> None:
    mine = provider(double, "mine", priority=1)
    kernels.add(mine)
    kernels.add(mine)
    kernels.remove(mine)

    assert "mine" == chosen(kernels, double, torch.ones(1))
    kernels.remove(mine)
    kernels.remove(mine)
    assert "reference" == chosen(kernels, double, torch.ones(1))


def test_names_are_unique_and_known(kernels: Kernels, double: Op) -> None:
    kernels.add(provider(double, "mine"))

    with pytest.raises(ValueError, match="has a provider 'mine' already"):
        kernels.add(provider(double, "mine"))
    with pytest.raises(ValueError, match="there is no op 'doubel'"):
        kernels.add(Provider(op="doubel", name="mine", run=print))
    with pytest.raises(ValueError, match="is defined already"):
        kernels.define(double.spec)


def test_a_query_tells_what_a_provider_has_to_know(kernels: Kernels, double: Op) -> None:
    query = kernels.query(double.spec.name, (torch.ones(4, 6)[:, ::2],))

    assert ("cpu", None, False) == (query.device, query.capability, query.deterministic)
    assert ((4, 3), torch.float32, False) == (
        query["x"].shape,
        query["x"].dtype,
        query["x"].contiguous,
    )
    assert (2.0, 16, ("float32",)) == (query["factor"], query.bucket, query.dtypes)
    with pytest.raises(KeyError):
        query["y"]


@pytest.mark.parametrize("name", ["mode", "self"])
def test_argument_names_that_torch_takes_are_refused(kernels: Kernels, name: str) -> None:
    variables: dict[str, object] = {"torch": torch}
    exec(f"def reference(x: torch.Tensor, {name}: int) -> torch.Tensor: return x", variables)
    spec = OpSpec(
        name="neaptide_test::misnamed",
        summary="an argument of a taken name",
        reference=variables["reference"],  # type: ignore[arg-type]
        fake=lambda x, _: torch.empty_like(x),
        samples=lambda device: (),
        large=lambda device: (),
    )

    with pytest.raises(ValueError, match=f"torch.compile reserves the name '{name}'"):
        kernels.define(spec)


def test_a_missing_argument_is_named(kernels: Kernels, double: Op) -> None:
    with pytest.raises(TypeError, match=r"neaptide_test::double_\d+ needs x"):
        kernels.explain(double.spec.name, ())
