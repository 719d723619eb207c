"""The shape cache: equal calls of fake data are done once, and nothing else changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import simulated_gpu
import torch
from models import Model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OPTIMIZERS = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


@pytest.fixture(autouse=True)
def cache() -> Iterator[None]:
    yield
    simulated_gpu.use_shape_cache(True)


def observed(program: Callable[[], Any], *, cached: bool) -> dict[str, Any]:
    """Return all that the machine says of a program of fake data."""
    torch.cuda.empty_cache()
    torch.cuda.reset_accumulated_memory_stats()
    simulated_gpu.reset()
    simulated_gpu.use_shape_cache(cached)
    with simulated_gpu.fake_data(), simulated_gpu.timeline() as trace:
        result = program()
        torch.cuda.synchronize()
        found = {
            "result": result,
            "statistics": simulated_gpu.statistics(),
            "memory": torch.cuda.memory_stats(),
            "races": [told.split(" of stream")[0].split(" (")[0] for told in simulated_gpu.races()],
        }
        del result
        torch.cuda.empty_cache()
    simulated_gpu.reset()
    numbers = found["statistics"].pop("streams")
    return {**found, "trace": trace, "streams": [each[1:] for each in numbers.values()]}


def training(optimizer: str, *, dropout: float) -> Callable[[], None]:
    def run() -> None:
        model = Model(layers=4, dropout=dropout, device="cuda", dtype=torch.bfloat16)
        made = torch.optim.AdamW(model.parameters(), 0.01, **OPTIMIZERS[optimizer])
        tokens = torch.zeros(2, 33, dtype=torch.long, device="cuda")
        for _ in range(3):
            logits = model(tokens[:, :-1]).flatten(0, 1).float()
            torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            made.step()
            made.zero_grad()

    return run


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_training_has_the_same_time_memory_and_trace(optimizer: str, dropout: float) -> None:
    program = training(optimizer, dropout=dropout)
    without = observed(program, cached=False)
    assert without["statistics"]["launches"] > 500
    assert without == observed(program, cached=True)


def test_the_same_races_are_told() -> None:
    side = torch.cuda.Stream()

    def racing() -> None:
        weights = [torch.zeros(64, 64, device="cuda") for _ in range(4)]
        torch.cuda.synchronize()
        for one in weights:
            one.mul_(2.0)
            with torch.cuda.stream(side):
                one[:32] += 1.0

    without = observed(racing, cached=False)
    assert len(without["races"]) > 0
    assert without == observed(racing, cached=True)


def described(value: Any, arguments: list[torch.Tensor]) -> Any:
    """Return what can be known of a result: shape, and whose storage it has."""
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage().data_ptr() if value.numel() else 0
        shares = [storage == each.untyped_storage().data_ptr() for each in arguments]
        same = [value is each for each in arguments]
        return (
            value.shape,
            value.stride(),
            value.storage_offset(),
            value.dtype,
            value.device,
            shares,
            same,
        )
    if isinstance(value, tuple | list):
        return [described(each, arguments) for each in value]
    return value


def called(function: Callable[..., Any]) -> list[Any]:
    """Call a function with several shapes, each twice; return what is known of the results."""
    found = []
    for shape in ((4, 6), (6, 4), (4, 6)):
        for dtype in (torch.float32, torch.bfloat16, torch.float32):
            for strides in (shape, shape[::-1]):
                a, b = (torch.empty(strides, device="cuda", dtype=dtype) for _ in range(2))
                if strides != shape:
                    a, b = a.t(), b.t()
                found.append(described(function(a, b), [a, b]))
                found.append(described([a, b], [a, b]))
                found.append(described(function(a, a), [a, a]))  # both are one tensor
                found.append(described(function(a[1:], b[1:]), [a, b]))
    return found


CALLS = {
    "add": torch.add,
    "integers to the default dtype": lambda a, _: a.to(torch.int32) / 2,
    "in place": lambda a, b: a.add_(b),
    "in place with a number": lambda a, _: a.mul_(0.5),
    "out of another size": lambda a, b: torch.add(
        a, b, out=torch.empty(0, device="cuda", dtype=a.dtype)
    ),
    "out of the same size": lambda a, b: torch.add(a, b, out=torch.empty_like(a)),
    "product": lambda a, b: a @ b.t(),
    "several results": lambda a, _: torch.max(a, 1),
    "arguments that are not given": lambda a, _: torch.native_layer_norm(
        a, a.shape[-1:], None, None, 1e-5
    ),
    "a list": lambda a, b: torch._foreach_add([a, b], 1.0),
    "lists of numbers": lambda a, b: torch._foreach_mul([a, b], [2.0, 3.0]),
    "views": lambda a, _: [a.t(), a[1:, ::2], a.unfold(0, 2, 1), a.chunk(2), a.expand(2, *a.shape)],
    "random": lambda a, _: [a.normal_(), torch.rand_like(a), torch.bernoulli(a)],
    "number of the host": lambda a, _: a * torch.tensor(2.0),
    "numbers decide the shape": lambda a, _: [
        torch.arange(0.0, end, 0.5, device="cuda") for end in (1.0, a.shape[0], 3.0)
    ],
    "sizes decide the shape": lambda a, _: [a.repeat(n, 1) for n in (1, 2, 1)],
    "cat": lambda a, b: torch.cat([a, b, a]),
    "indices of the host": lambda a, _: a[torch.tensor([0, 1])],
    "other shape in place": lambda a, _: a.clone().t_().resize_(3),
}


@pytest.mark.parametrize("name", CALLS)
def test_results_have_the_same_shapes_and_storages(name: str) -> None:
    without = observed(lambda: called(CALLS[name]), cached=False)
    assert without == observed(lambda: called(CALLS[name]), cached=True)


def test_the_default_dtype_is_part_of_a_call() -> None:
    def program() -> list[torch.dtype]:
        found = []
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            found.append((torch.ones(3, dtype=torch.int32, device="cuda") / 2).dtype)
        return found

    try:
        assert observed(program, cached=True)["result"] == [
            torch.float32,
            torch.float64,
            torch.float32,
        ]
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_wrong_call_fails_each_time() -> None:
    with simulated_gpu.fake_data():
        here = torch.empty(3, 4, device="cuda")
        for _ in range(3):
            with pytest.raises(RuntimeError):
                here @ here
            with pytest.raises(RuntimeError, match="same device"):
                here + torch.empty(3, 4)
        assert (here @ here.t()).shape == (3, 3)
        del here
        torch.cuda.empty_cache()


def test_memory_that_is_full_is_told_by_a_known_call_too() -> None:
    simulated_gpu.configure(capacity=64 << 20)
    with simulated_gpu.fake_data():
        kept = [torch.empty(16 << 20, dtype=torch.uint8, device="cuda")]
        kept += [kept[0] + 1 for _ in range(3)]
        with pytest.raises(torch.OutOfMemoryError):
            kept[0] + 1
        kept.clear()
        torch.cuda.empty_cache()


def test_equal_calls_run_metas_kernel_once() -> None:
    calls = []
    library = torch.library.Library("aten", "IMPL")
    library.impl("logaddexp", lambda a, _: calls.append(1) or a.new_empty(a.shape), "Meta")
    try:
        with simulated_gpu.fake_data():
            a, b = (torch.empty(3, 5, device="cuda") for _ in range(2))
            for _ in range(4):
                torch.logaddexp(a, b)
            assert len(calls) == 1
            torch.logaddexp(a[:2], b[:2])
            assert len(calls) == 2
            simulated_gpu.use_shape_cache(False)
            torch.logaddexp(a, b)
            assert len(calls) == 3
            del a, b
            torch.cuda.empty_cache()
    finally:
        library._destroy()
