"""Muon as a torch optimizer: torch's own update, pieces, groups, state, and what it refuses."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from neaptide_plugins.muon.optimizer import Muon

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

pytestmark = pytest.mark.usefixtures("on_device")

SHAPES = [(8, 8), (80, 72), (48, 16), (16, 48), (1, 5), (7, 1)]
SCALES = ["match_rms_adamw", "original"]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator(torch.get_default_device()).manual_seed(seed)


def weights(shapes: Sequence[tuple[int, ...]], seed: int = 0, **kind: Any) -> list[nn.Parameter]:
    generator = seeded(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(**kind)) for shape in shapes]


def train(optimizer: torch.optim.Optimizer, steps: int = 3, first: int = 0) -> None:
    """Step over gradients drawn from the number of the step."""
    for step in range(first, first + steps):
        generator = seeded(100 + step)
        for group in optimizer.param_groups:
            for param in group["params"]:
                drawn = torch.randn(param.shape, generator=generator)
                param.grad = drawn.to(param.dtype) if param.requires_grad else None
        optimizer.step()


def same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return all(map(torch.equal, one, other))


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_matrix_is_updated_as_by_torch_to_the_bit(
    shape: tuple[int, int], scale: str, *, nesterov: bool
) -> None:
    options: dict[str, Any] = {"lr": 0.02, "momentum": 0.9, "nesterov": nesterov}
    ours, theirs = weights([shape]), weights([shape])
    as_torch: dict[str, Any] = {"polynomial": "jordan", "ns_steps": 5, "ns_dtype": "bfloat16"}
    train(Muon(ours, scale=scale, weight_decay=0.3, **as_torch, **options))
    train(torch.optim.Muon(theirs, adjust_lr_fn=scale, weight_decay=0.3, **options))

    assert same(theirs, ours)


def test_in_float32_it_is_torch_but_for_the_rounding_of_bfloat16() -> None:
    ours, theirs = weights(SHAPES), weights(SHAPES)
    before = [weight.detach().clone() for weight in ours]
    train(Muon(ours, lr=0.02, scale="original", polynomial="jordan", ns_steps=5))
    train(torch.optim.Muon(theirs, lr=0.02))

    for one, other, start in zip(ours, theirs, before, strict=True):
        assert (one - other).norm() < 0.05 * (other - start).norm()


def test_other_groups_are_updated_as_by_torchs_adamw_to_the_bit() -> None:
    shapes = [(8, 4), (5,), ()]
    ours, theirs = weights(shapes), weights(shapes)
    options: dict[str, Any] = {"lr": 0.02, "betas": (0.8, 0.99), "weight_decay": 0.2, "eps": 1e-6}
    train(Muon(ours, kind="adamw", **options))
    # On a GPU, Muon calls the foreach version, and the fused one may round otherwise.
    on_cpu = theirs[0].is_cpu
    train(torch.optim.AdamW(theirs, fused=on_cpu, foreach=not on_cpu, **options))

    assert same(theirs, ours)


@pytest.mark.parametrize("split", [(1, 1, 1), (4, 1, 1)], ids=str)
def test_a_split_weight_is_as_many_matrices(split: tuple[int, ...]) -> None:
    (fused,) = weights([(48, 20)])
    apart = [
        nn.Parameter(part.clone())
        for part in fused.detach().split([48 // sum(split) * part for part in split])
    ]
    whole, parts = Muon([fused], split=split), Muon(apart)
    for step in range(3):
        fused.grad = torch.randn(48, 20, generator=seeded(step))
        for part, grad in zip(apart, fused.grad.split([len(p) for p in apart]), strict=True):
            part.grad = grad
        whole.step()
        parts.step()

    assert torch.equal(torch.cat(apart), fused)


def test_a_stack_is_as_many_matrices() -> None:
    (stack,) = weights([(3, 12, 20)])
    apart = [nn.Parameter(part.clone()) for part in stack.detach().flatten(0, 1).split(6)]
    whole, parts = Muon([stack], stacked=True, split=(1, 1)), Muon(apart)
    for step in range(3):
        stack.grad = torch.randn(3, 12, 20, generator=seeded(step))
        for part, grad in zip(apart, stack.grad.flatten(0, 1).split(6), strict=True):
            part.grad = grad
        whole.step()
        parts.step()

    assert torch.equal(torch.stack(apart).view(3, 12, 20), stack)


def test_a_convolution_is_a_matrix_in_any_memory_format() -> None:
    (matrix,) = weights([(12, 45)])
    kernels = matrix.detach().clone().view(12, 5, 3, 3)
    formats = (torch.contiguous_format, torch.channels_last)
    convolutions = [nn.Parameter(kernels.clone(memory_format=each)) for each in formats]
    optimizer = Muon([matrix, *convolutions])
    for step in range(3):
        matrix.grad = torch.randn(12, 45, generator=seeded(step))
        for weight in convolutions:
            weight.grad = matrix.grad.view(12, 5, 3, 3).clone()
        optimizer.step()

    for weight in convolutions:
        assert torch.equal(matrix, weight.flatten(1))


def test_a_gradient_of_zero_leaves_a_matrix_and_a_nan_spoils_no_other() -> None:
    still, spoiled, well, alone = weights([(8, 6)] * 4)
    well.data.copy_(alone.data)
    before = still.detach().clone()
    optimizer, reference = Muon([still, spoiled, well], weight_decay=0.0), Muon([alone])
    reference.param_groups[0]["weight_decay"] = 0.0
    gradient = torch.randn(8, 6)
    still.grad, well.grad, alone.grad = torch.zeros(8, 6), gradient, gradient.clone()
    spoiled.grad = gradient.clone()
    spoiled.grad[2, 3] = torch.nan
    optimizer.step()
    reference.step()

    assert torch.equal(before, still)
    assert bool(spoiled.isnan().all())
    torch.testing.assert_close(alone, well)


def test_without_a_gradient_weight_and_state_stay() -> None:
    one, other, bias = weights([(4, 4), (4, 4), (4,)])
    optimizer = Muon([{"params": [one, other]}, {"params": [bias], "kind": "adamw"}])
    before = other.detach().clone(), bias.detach().clone()
    one.grad = torch.ones(4, 4)
    optimizer.step()

    assert same(before, (other, bias))
    assert [one] == [param for param, state in optimizer.state.items() if state]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_state_is_of_the_weights_dtype_and_goes_on_bit_for_bit(dtype: torch.dtype) -> None:
    shapes = [(24, 8), (8, 24), (8, 8)]

    def made(seed: int) -> tuple[list[nn.Parameter], Muon]:
        matrices, biases = weights(shapes, seed, dtype=dtype), weights([(8,)], seed, dtype=dtype)
        adamw = {"params": biases, "kind": "adamw", "eps": 1e-4}
        groups: list[dict[str, Any]] = [{"params": matrices[:1], "split": (1, 1, 1)}, adamw]
        return [*matrices, *biases], Muon([*groups, {"params": matrices[1:]}], lr=0.01)

    whole, optimizer = made(0)
    train(optimizer, 3)
    saved = copy.deepcopy(optimizer.state_dict())
    kept = [weight.detach().clone() for weight in whole]
    train(optimizer, 3, first=3)

    resumed, again = made(1)
    again.load_state_dict(saved)
    for weight, value in zip(resumed, kept, strict=True):
        weight.data.copy_(value)
    train(again, 3, first=3)

    assert same(whole, resumed)
    momenta = [state["momentum_buffer"] for state in map(again.state.__getitem__, resumed[:3])]
    assert [dtype] * 3 == [momentum.dtype for momentum in momenta]


def test_groups_are_live_and_their_options_their_own() -> None:
    one, other = weights([(6, 6)] * 2)
    optimizer = Muon([{"params": [one]}, {"params": [other], "lr": 0.0}], lr=0.01)
    before = one.detach().clone(), other.detach().clone()
    train(optimizer, 1)
    assert not torch.equal(before[0], one)
    assert torch.equal(before[1], other)

    optimizer.param_groups[1]["lr"] = 0.01
    train(optimizer, 1)
    assert not torch.equal(before[1], other)


def test_a_closure_is_run_with_gradients_and_returned() -> None:
    (weight,) = weights([(4, 4)])
    optimizer = Muon([weight])

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    before = weight.square().sum().item()
    assert before == optimizer.step(closure).item()
    assert weight.square().sum().item() < before


@pytest.mark.usefixtures("on_cpu")  # the simulated GPU has no sparse tensors
def test_what_cannot_be_updated_is_refused_in_one_line() -> None:
    def refused(act: Callable[[], Any]) -> str:
        with pytest.raises(ValueError, match="Muon") as caught:
            act()
        assert "\n" not in str(caught.value)
        return str(caught.value)

    bias, matrix = weights([(4,), (4, 4)])
    optimizer = Muon([matrix])
    sparse = nn.Embedding(4, 4, sparse=True)
    sparse(torch.tensor([1])).sum().backward()

    assert "[4], is no matrix; put it into a group of kind 'adamw'" in refused(lambda: Muon([bias]))
    assert "no stack of matrices" in refused(lambda: Muon([matrix], stacked=True))
    assert "4 rows do not divide in proportions [2, 1]" in refused(
        lambda: Muon([matrix], split=(2, 1))
    )
    assert "no real floating dtype" in refused(lambda: Muon(weights([(2, 2)], dtype=torch.cfloat)))
    assert "dense gradients" in refused(lambda: Muon(sparse.parameters()).step())
    assert "lr is out of range (got -1.0)" in refused(lambda: Muon([matrix], lr=-1.0))
    assert "kind is out of range (got 'sgd')" in refused(lambda: Muon([matrix], kind="sgd"))
    assert "is no matrix" in refused(lambda: optimizer.add_param_group({"params": [bias]}))
    assert 1 == len(optimizer.param_groups)
