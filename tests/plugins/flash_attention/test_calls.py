"""Calls of torch's attention: which ones are replaced, for how long, and what is said of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import DEVICE
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from neaptide import ConfigError, HybridTrainer
from neaptide_kernels.registry import KERNELS
from neaptide_plugins.flash_attention.functional import replaced
from neaptide_plugins.flash_attention.tally import Tally
from neaptide_toolkit.testing.parting import same_bits

pytestmark = pytest.mark.usefixtures("on_device")


class Attends(nn.Module):
    """One layer of torch, and a call of its function."""

    def __init__(self, *, need_weights: bool = False) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 16)
        self._need = need_weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(x, x, x, need_weights=self._need)[0]
        heads = x.unflatten(-1, (2, 8)).transpose(1, 2)
        done = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return self.head(done.transpose(1, 2).flatten(-2))


def loss_fn(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


def trained(model: nn.Module, plugins: dict[str, Any], steps: int = 3) -> tuple[Any, Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"plugins": plugins}
    generator = torch.Generator(DEVICE).manual_seed(1)
    with HybridTrainer(model, optimizer, loss_fn=loss_fn, config=config) as trainer:
        losses = [
            trainer.step(torch.randn(3, 6, 16, generator=generator)).loss for _ in range(steps)
        ]
        return losses, trainer.report("flash-attention") if plugins else None


def test_torchs_layers_and_calls_are_replaced_during_the_run_only() -> None:
    before = functional.scaled_dot_product_attention, functional.multi_head_attention_forward
    torch.manual_seed(0)
    expected, _ = trained(Attends(), {})
    torch.manual_seed(0)
    found, report = trained(Attends(), {"flash-attention": {}})
    assert expected == pytest.approx(found, rel=1e-5)
    assert "calls of attention: 6 replaced; left: none" == report
    after = functional.scaled_dot_product_attention, functional.multi_head_attention_forward
    assert before == after


def test_forwards_that_a_backward_repeats_are_replaced_too() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[Attends() for _ in range(4)])
    plugins = {"flash-attention": {}, "activation-checkpointing": {"interval": 1}}
    _, report = trained(model, plugins, steps=1)
    assert "calls of attention: 16 replaced; left: none" == report


def test_weights_that_are_returned_are_left_to_torch() -> None:
    _, report = trained(Attends(need_weights=True), {"flash-attention": {}}, steps=1)
    expected = "1 replaced; left: 1 x nn.MultiheadAttention with need_weights=True"
    assert f"calls of attention: {expected}" == report


def drawn(*shape: int, **kind: Any) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator(DEVICE).manual_seed(len(shape)), **kind)


QUERY = torch.randn(2, 4, 6, 8, device=DEVICE)
LEFT: dict[str, tuple[dict[str, Any], str]] = {
    "three dimensions": (
        dict.fromkeys(("query", "key", "value"), QUERY[0]),
        "tensors of other than four dimensions",
    ),
    "a learned bias": (
        {"attn_mask": torch.zeros(6, 6, device=DEVICE).requires_grad_()},
        "a mask or position bias that is learned",
    ),
    "one key for all": (
        {"key": QUERY[:1], "value": QUERY[:1]},
        "tensors that broadcast",
    ),
    "fewer keys": (
        {"key": QUERY[:, :, :3], "value": QUERY[:, :, :3], "is_causal": True},
        "causal, with a mask or with other keys than queries",
    ),
    "a negative scale": ({"scale": -0.5}, "a scale that is not positive"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_computes_what_torch_computes(name: str) -> None:
    change, reason = LEFT[name]
    given = {"query": QUERY, "key": QUERY, "value": QUERY} | change
    expected = functional.scaled_dot_product_attention(**given)
    tally = Tally()
    with replaced(tally):
        found = functional.scaled_dot_product_attention(**given)
    assert same_bits(expected, found)
    assert (0, f"1 x {reason}") == (tally.replaced, tally.reasons)


@pytest.mark.parametrize(
    "change",
    [
        {"is_causal": True},
        {"attn_mask": torch.ones(6, 6, device=DEVICE).tril().bool()},
        {"attn_mask": torch.linspace(0, 3, 36, device=DEVICE).view(6, 6)},
        {"key": QUERY[:, :2], "value": QUERY[:, :2], "enable_gqa": True},
        {"scale": 0.2},
    ],
)
def test_what_is_replaced_computes_what_torch_computes(change: dict[str, Any]) -> None:
    given = {"query": QUERY, "key": QUERY, "value": QUERY} | change
    expected = functional.scaled_dot_product_attention(**given)
    tally = Tally()
    with replaced(tally):
        found = functional.scaled_dot_product_attention(**given)
    torch.testing.assert_close(found, expected)
    assert (1, "") == (tally.replaced, tally.reasons)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, by jvp
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # by vmap
def test_transforms_of_torch_func_are_left_to_torch() -> None:
    tensor = QUERY.cpu()  # not each device has forward-mode derivatives of attention

    def attended(query: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(query, tensor, tensor)

    def called() -> list[torch.Tensor]:
        with sdpa_kernel(SDPBackend.MATH):  # the others have no forward-mode derivative
            results = [*torch.func.jvp(attended, (tensor,), (tensor,))]
            with forward_ad.dual_level():
                pair = forward_ad.make_dual(tensor, tensor)
                results += [*forward_ad.unpack_dual(attended(pair))]
        results.append(torch.func.grad(lambda query: attended(query).square().sum())(tensor))
        results.append(torch.func.vmap(attended)(tensor[None]))
        return results

    expected = called()
    tally = Tally()
    with replaced(tally):
        found = called()
    torch.testing.assert_close(found, expected)
    assert tally.reasons == "3 x a transform of torch.func; 1 x a forward-mode derivative"
    assert not tally.replaced


def test_a_backend_that_the_caller_chooses_is_left_to_torch() -> None:
    tally = Tally()
    with replaced(tally):
        with sdpa_kernel(SDPBackend.MATH):
            functional.scaled_dot_product_attention(QUERY, QUERY, QUERY)
        functional.scaled_dot_product_attention(QUERY, QUERY, QUERY)
    assert (1, "1 x inside sdpa_kernel") == (tally.replaced, tally.reasons)


def test_wrong_arguments_are_said_in_one_line() -> None:
    with replaced(Tally()), pytest.raises(ValueError, match=r"key \[2, 4, 6, 4\]") as told:
        functional.scaled_dot_product_attention(QUERY, QUERY[..., :4], QUERY)
    assert "\n" not in str(told.value)


def test_a_provider_can_be_requested_and_is_given_back() -> None:
    torch.manual_seed(0)
    expected, _ = trained(Attends(), {"flash-attention": {}})
    torch.manual_seed(0)
    found, _ = trained(Attends(), {"flash-attention": {"provider": "blocks"}})
    assert expected == pytest.approx(found, rel=1e-5)
    assert "triton" not in {one.name for one in KERNELS.providers("attention")}
    with pytest.raises(
        ConfigError, match=r"'blok'.*did you mean 'blocks'.*flash-attention\.provider"
    ):
        trained(Attends(), {"flash-attention": {"provider": "blok"}})


def test_contexts_that_overlap_leave_torchs_functions_behind_in_any_order() -> None:
    own = functional.scaled_dot_product_attention, functional.multi_head_attention_forward
    tensors = [torch.randn(1, 2, 8, 4, device=DEVICE) for _ in range(3)]
    tallies = [Tally(), Tally()]
    first, second = map(replaced, tallies)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    functional.scaled_dot_product_attention(*tensors)
    assert [0, 1] == [tally.replaced for tally in tallies]
    second.__exit__(None, None, None)
    assert own == (
        functional.scaled_dot_product_attention,
        functional.multi_head_attention_forward,
    )


def test_a_run_says_once_what_was_replaced(caplog: pytest.LogCaptureFixture) -> None:
    trained(Attends(need_weights=True), {"flash-attention": {}})
    (line,) = [one for one in caplog.messages if "flash_attention.calls" in one]
    assert "replaced=1" in line
    assert "1 x nn.MultiheadAttention with need_weights=True" in line


def test_a_run_without_attention_is_warned(caplog: pytest.LogCaptureFixture) -> None:
    _, report = trained(nn.Linear(16, 16), {"flash-attention": {}})
    assert report is None
    (record,) = [one for one in caplog.records if "flash_attention.calls" in one.getMessage()]
    assert "WARNING" == record.levelname
