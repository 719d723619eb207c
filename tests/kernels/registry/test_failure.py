"""Providers that raise, lie or write half: what is left of them, and of the call."""

import warnings

import pytest
import torch

from neaptide_kernels.registry import KernelError, Kernels, KernelWarning, Op, Provider


def raising(*_: object, **__: object) -> torch.Tensor:
    message = "no\n  driver"
    raise RuntimeError(message)


def test_the_reference_takes_over_from_one_that_raises(kernels: Kernels, double: Op) -> None:
    kernels.add(Provider(op=double.spec.name, name="broken", run=raising, priority=1))

    with pytest.warns(KernelWarning, match="'broken'.*no driver"):
        assert torch.equal(torch.tensor([2.0]), double(torch.ones(1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(torch.tensor([2.0]), double(torch.ones(1)))  # said once

    reasons = {
        one.provider: one.reason
        for one in kernels.explain(double.spec.name, (torch.ones(1),)).providers
    }
    assert reasons["broken"].startswith("quarantined: on the sample '0': raised RuntimeError")


def test_one_that_lies_is_found_before_its_first_call(kernels: Kernels, double: Op) -> None:
    def wrong(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor + (x > 7)

    kernels.add(Provider(op=double.spec.name, name="liar", run=wrong, priority=1))

    with pytest.warns(KernelWarning, match="2 of 17 elements differ from the reference's"):
        assert torch.equal(torch.full((4,), 18.0), double(torch.full((4,), 9.0)))


def test_one_that_fails_later_is_replaced_too(kernels: Kernels, double: Op) -> None:
    def small_only(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor if x.numel() < 100 else raising()

    kernels.add(Provider(op=double.spec.name, name="small", run=small_only, priority=1))
    double(torch.ones(3))

    with pytest.warns(KernelWarning, match="no driver"):
        assert torch.equal(torch.full((200,), 2.0), double(torch.ones(200)))


def test_the_callers_own_fault_costs_nobody_a_place(kernels: Kernels, double: Op) -> None:
    kernels.add(Provider(op=double.spec.name, name="mine", run=double.spec.reference, priority=1))
    double(torch.ones(1))

    with pytest.raises(RuntimeError, match="size of tensor a"):
        kernels.run(double.spec.name, [torch.ones(2), torch.ones(3)])
    assert "mine" == kernels.explain(double.spec.name, (torch.ones(1),)).chosen


def test_memory_that_runs_out_is_no_fault_of_a_provider(kernels: Kernels, double: Op) -> None:
    def hungry(x: torch.Tensor, factor: float) -> torch.Tensor:
        if x.numel() > 100:
            message = "CUDA out of memory"
            raise torch.OutOfMemoryError(message)
        return x * factor

    kernels.add(Provider(op=double.spec.name, name="hungry", run=hungry, priority=1))
    with pytest.raises(torch.OutOfMemoryError):
        double(torch.ones(200))
    assert "hungry" == kernels.explain(double.spec.name, (torch.ones(200),)).chosen


def test_half_written_arguments_stop_the_run(kernels: Kernels, add: Op) -> None:
    def half(x: torch.Tensor, amount: torch.Tensor) -> None:
        x[:1] += amount[:1]
        if x.numel() > 3:
            raising()
        x[1:] += amount[1:]

    kernels.add(Provider(op=add.spec.name, name="half", run=half, priority=1))
    add(torch.ones(3), torch.ones(3))

    with pytest.warns(KernelWarning), pytest.raises(KernelError, match="written part of x"):
        add(torch.ones(9), torch.ones(9))
    x = torch.ones(9)
    add(x, torch.ones(9))
    assert torch.equal(torch.full((9,), 2.0), x)


def test_a_trial_writes_to_no_arguments_of_the_call(kernels: Kernels, add: Op) -> None:
    def twice(x: torch.Tensor, amount: torch.Tensor) -> None:
        x.add_(amount).add_(amount)

    kernels.add(Provider(op=add.spec.name, name="twice", run=twice, priority=1))
    x = torch.zeros(2)

    with pytest.warns(KernelWarning, match=r"x\[0\]: 3 of 3 elements differ"):
        add(x, torch.ones(2))
    assert torch.equal(torch.ones(2), x)


def test_a_question_that_raises_is_a_no(kernels: Kernels, double: Op) -> None:
    kernels.add(
        Provider(op=double.spec.name, name="odd", run=raising, priority=1, supports=raising)  # type: ignore[arg-type]
    )

    explained = kernels.explain(double.spec.name, (torch.ones(1),))

    assert "reference" == explained.chosen
    assert "its supports() raised RuntimeError" in explained.providers[1].reason


def test_one_that_is_asked_for_does_not_hide_behind_the_reference(
    kernels: Kernels, double: Op
) -> None:
    kernels.add(Provider(op=double.spec.name, name="broken", run=raising))

    with (
        kernels.using(**{double.spec.name: "broken"}),
        pytest.raises(KernelError, match="'broken' was requested and fails: on the sample '0'"),
    ):
        double(torch.ones(1))


def test_a_liar_is_not_timed(kernels: Kernels, double: Op) -> None:
    kernels.add(Provider(op=double.spec.name, name="liar", run=lambda x, factor: x * 3, priority=1))

    measured, refused = kernels.measure(double.spec.name, (torch.ones(4),), keep=False)

    assert ["reference"] == [one.provider for one in measured]
    assert {
        "liar": "on the sample '17': result 0: 16 of 17 elements differ from the reference's"
    } == refused
    assert not kernels.path.exists()


def test_timing_asks_a_provider_for_what_it_supports_alone(kernels: Kernels, double: Op) -> None:
    def small_only(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor if x.numel() < 10 else raising()

    provider = Provider(
        op=double.spec.name,
        name="small",
        run=small_only,
        supports=lambda query: query["x"].elements < 10 or "too many elements",
    )
    kernels.add(provider)

    measured, refused = kernels.measure(double.spec.name, (torch.ones(4),), keep=False)

    assert ({"reference", "small"}, {}) == ({one.provider for one in measured}, refused)


def test_memory_that_runs_out_in_a_trial_is_no_fault_of_a_provider(
    kernels: Kernels, double: Op
) -> None:
    free = [False]

    def hungry(x: torch.Tensor, factor: float) -> torch.Tensor:
        if not free[0]:
            message = "CUDA out of memory"
            raise torch.OutOfMemoryError(message)
        return x * factor

    kernels.add(Provider(op=double.spec.name, name="hungry", run=hungry, priority=1))
    with pytest.raises(torch.OutOfMemoryError):
        double(torch.ones(1))
    free[0] = True

    assert torch.equal(torch.full((1,), 2.0), double(torch.ones(1)))
    assert "hungry" == kernels.explain(double.spec.name, (torch.ones(1),)).chosen
