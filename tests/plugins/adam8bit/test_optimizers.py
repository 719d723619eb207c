"""Adam8bit and Lion8bit as torch optimizers: groups, state, what they refuse, what they reach."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from support import DEVICE
from torch import nn

from neaptide_plugins.adam8bit.optimizer import Adam8bit
from neaptide_plugins.lion8bit.optimizer import Lion8bit

pytestmark = pytest.mark.usefixtures("on_device")

BOTH = pytest.mark.parametrize("cls", [Adam8bit, Lion8bit])


def net(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 20)).to(dtype)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, first: int = 0) -> None:
    dtype = next(model.parameters()).dtype
    for step in range(first, first + steps):
        x = torch.randn(8, 20, generator=torch.Generator(DEVICE).manual_seed(step)).to(dtype)
        optimizer.zero_grad()
        (model(x) - x).square().mean().backward()
        optimizer.step()


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(map(torch.equal, one.parameters(), other.parameters()))


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_loaded_goes_on_bit_for_bit(cls: Any, dtype: torch.dtype) -> None:
    whole, resumed = net(dtype=dtype), net(dtype=dtype)
    optimizer = cls(whole.parameters(), lr=1e-3)
    train(whole, optimizer, 5)
    saved = copy.deepcopy(optimizer.state_dict())
    resumed.load_state_dict(whole.state_dict())
    train(whole, optimizer, 5, first=5)

    again = cls(resumed.parameters(), lr=1.0)
    again.load_state_dict(saved)
    kinds = {name: value.dtype for name, value in again.state[next(resumed.parameters())].items()}
    train(resumed, again, 5, first=5)

    assert same(whole, resumed)
    assert torch.int8 == kinds["exp_avg"]
    assert {torch.float32} == {kinds[name] for name in kinds if "scale" in name or name == "step"}
    assert 1e-3 == again.param_groups[0]["lr"]


@BOTH
def test_a_copy_and_a_pickle_go_on_alike(cls: Any) -> None:
    model = net()
    train(model, optimizer := cls(model.parameters()), 3)

    other, same_kind = copy.deepcopy((model, optimizer))
    train(model, optimizer, 3, first=3)
    train(other, same_kind, 3, first=3)

    assert same(model, other)


@BOTH
def test_groups_are_live_and_their_options_their_own(cls: Any) -> None:
    model = net()
    first, second = model[0], model[2]
    optimizer = cls(
        [{"params": first.parameters()}, {"params": second.parameters(), "lr": 0.0}],
        lr=1e-2,
        weight_decay=0.0,
    )
    before = copy.deepcopy(model)

    train(model, optimizer, 1)
    assert not same(first, before[0])
    assert same(second, before[2])

    optimizer.param_groups[1]["lr"] = torch.tensor(1e-2)
    train(model, optimizer, 1, first=1)
    assert not same(second, before[2])


@BOTH
def test_a_learning_rate_as_a_tensor_is_the_number(cls: Any) -> None:
    number, tensor = net(), net()

    train(number, cls(number.parameters(), lr=0.5**7), 3)
    train(tensor, cls(tensor.parameters(), lr=torch.tensor(0.5**7)), 3)

    assert same(number, tensor)


@BOTH
def test_a_scheduler_of_torch_drives_it(cls: Any) -> None:
    model = net()
    optimizer = cls(model.parameters(), lr=1e-2, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float(step == 0))
    train(model, optimizer, 1)
    scheduler.step()
    before = copy.deepcopy(model)

    train(model, optimizer, 1)

    assert same(model, before)


@BOTH
def test_a_parameter_without_gradient_keeps_weight_state_and_count(cls: Any) -> None:
    model = net()
    model[0].bias.requires_grad_(False)
    optimizer = cls(model.parameters(), weight_decay=0.1)
    before = model[0].bias.clone()
    train(model, optimizer, 2)
    model[2].bias.requires_grad_(False)
    train(model, optimizer, 1)

    assert torch.equal(before, model[0].bias)
    assert not optimizer.state[model[0].bias]
    counts = [float(optimizer.state[each]["step"]) for each in (model[2].weight, model[2].bias)]
    assert [3.0, 2.0] == counts


@BOTH
def test_tied_parameters_are_updated_once(cls: Any) -> None:
    model = nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 20))
    model[1].weight = model[0].weight
    optimizer = cls(model.parameters())

    train(model, optimizer, 2)

    assert 3 == len(optimizer.state)
    assert 2.0 == float(optimizer.state[model[0].weight]["step"])


@BOTH
def test_a_closure_is_run_with_gradients_and_returned(cls: Any) -> None:
    weight = nn.Parameter(torch.ones(4))
    optimizer = cls([weight], lr=1e-2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert 4.0 == optimizer.step(closure).item()
    assert float(weight.detach().max()) < 1


@BOTH
def test_nothing_of_two_tensors_is_rounded_alike(cls: Any) -> None:
    """Equal weights of two groups, and of two dtypes of gradients, part in bfloat16."""
    alike = [nn.Parameter(torch.ones(512, dtype=torch.bfloat16)) for _ in range(3)]
    optimizer = cls([{"params": alike[:2]}, {"params": alike[2:]}], lr=1e-3)
    for weight in alike:
        weight.grad = torch.ones_like(weight)
    optimizer.step()

    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert 0 < (alike[one] != alike[other]).sum() < 512


@BOTH
@pytest.mark.usefixtures("on_cpu")  # the simulated GPU has no sparse tensors
def test_what_cannot_be_updated_is_refused_in_one_line(cls: Any) -> None:
    def refused(act: Callable[[], Any]) -> str:
        with pytest.raises(ValueError, match="8bit") as caught:
            act()
        assert "\n" not in str(caught.value)
        return str(caught.value)

    half, plain = nn.Parameter(torch.ones(4).half()), nn.Parameter(torch.ones(4))
    optimizer = cls([plain])
    sparse = nn.Embedding(4, 4, sparse=True)
    sparse(torch.tensor([1])).sum().backward()

    assert "parameter 1 of group 0 is torch.float16" in refused(lambda: cls([plain, half]))
    assert "complex64" in refused(lambda: cls([nn.Parameter(torch.ones(2, dtype=torch.cfloat))]))
    assert "takes a dense float32" in refused(lambda: cls(sparse.parameters()).step())
    assert "lr must be finite" in refused(lambda: cls([plain], lr=-1.0))
    assert "lr must be 1-element (got [2])" in refused(lambda: cls([plain], lr=torch.ones(2)))
    assert "beta2 must be in [0, 1)" in refused(lambda: cls([plain], betas=(0.9, 1.0)))
    assert "float16" in refused(lambda: optimizer.add_param_group({"params": [half]}))
    assert 1 == len(optimizer.param_groups)


@BOTH
def test_state_of_another_optimizer_is_refused_before_anything_changes(cls: Any) -> None:
    model, other = net(), net()
    train(model, torch.optim.AdamW(model.parameters()), 0)
    foreign = torch.optim.AdamW(other.parameters())
    train(other, foreign, 1)
    wider = nn.Linear(20, 65)
    optimizer, own = cls(model.parameters()), cls(wider.parameters())
    train(model, optimizer, 1)
    kept = copy.deepcopy(optimizer.state_dict())
    own.load_state_dict(own.state_dict())

    with pytest.raises(ValueError, match=r"has exp_avg, exp_avg_sq, step, but \w+8bit needs"):
        optimizer.load_state_dict(foreign.state_dict())
    wrong = copy.deepcopy(kept)
    wrong["state"][0]["exp_avg"] = torch.zeros(3, dtype=torch.int8)
    with pytest.raises(ValueError, match=r"'exp_avg' of parameter 0 is torch.int8 \[3\] in the s"):
        optimizer.load_state_dict(wrong)

    now = optimizer.state_dict()["state"]
    assert all(torch.equal(now[n][k], kept["state"][n][k]) for n in now for k in now[n])


class Lion(torch.optim.Optimizer):
    """Lion in float32, as its paper has it."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                mean = self.state[weight].setdefault("mean", torch.zeros_like(weight))
                weight.sub_(group["lr"] * (0.9 * mean + 0.1 * weight.grad).sign())
                mean.lerp_(weight.grad, 0.01)


def digits_loss(make: Callable[[Any], torch.optim.Optimizer], dtype: torch.dtype) -> float:
    """Return the loss on the held-out third after 300 updates, a normed net on digits."""
    data = load_digits()
    x = torch.tensor(data.data / 16, dtype=dtype)
    y = torch.tensor(data.target)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 128), nn.GELU(),
        nn.Linear(128, 10),
    ).to(dtype)  # fmt: skip
    optimizer = make(model.parameters())
    generator = torch.Generator().manual_seed(1)
    for _ in range(300):
        chosen = torch.randint(0, 1200, (64,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[chosen]).float(), y[chosen]).backward()
        optimizer.step()
    return nn.functional.cross_entropy(model(x[1200:]).float(), y[1200:]).item()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            lambda params: Adam8bit(params, lr=1e-3),
            lambda params: torch.optim.AdamW(params, lr=1e-3),
        ),
        (lambda params: Lion8bit(params, lr=3e-4), lambda params: Lion(params, lr=3e-4)),
    ],
    ids=["adam", "lion"],
)
@pytest.mark.usefixtures("on_cpu")
def test_digits_are_learned_as_with_32_bits(ours: Any, theirs: Any) -> None:
    """Within 5 % of the loss, with weights of bfloat16 within 10 % of that of float32."""
    wanted = digits_loss(theirs, torch.float32)

    assert wanted < 0.4
    assert digits_loss(ours, torch.float32) < 1.05 * wanted
    assert digits_loss(ours, torch.bfloat16) < 1.1 * wanted


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("optimizer", [Adam8bit, Lion8bit])
def test_the_default_dtype_is_nobodys_business(optimizer: Any, dtype: torch.dtype) -> None:
    weight = torch.nn.Parameter(torch.ones(300))
    weight.grad = torch.ones(300)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        optimizer([weight], lr=0.1).step()
    finally:
        torch.set_default_dtype(before)

    assert (weight.dtype, True) == (torch.float32, bool((weight < 1).all()))
