"""Blocks of odd kinds: what they take, return, change and depend on."""

from __future__ import annotations

import collections
import random
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from zoo_layers import WIDTH, Stack

if TYPE_CHECKING:
    from collections.abc import Callable


class Odd(nn.Module):
    """A linear layer, and whatever `call` makes of it; `unpack` takes the tensor out again."""

    def __init__(
        self,
        call: Callable[[Any, torch.Tensor], Any],
        unpack: Callable[[Any], torch.Tensor],
        parts: dict[str, Any],
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.call, self.unpack, self.calls = call, unpack, 0
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(self, *args, **kwargs)


class Passed(Stack):
    """Calls each block by `give`, which turns a tensor into what the block takes."""

    def __init__(
        self,
        make: Callable[[], nn.Module],
        give: Callable[[nn.Module, torch.Tensor], Any] = lambda block, x: block(x),
        count: int = 4,
    ) -> None:
        super().__init__(make, count)
        self.give = give

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block.unpack(self.give(block, x))
        return self.head(x.to(torch.float32)).square().mean()


class Pair(NamedTuple):
    hidden: torch.Tensor
    size: int


@attrs.define
class Record:
    hidden: torch.Tensor
    extra: Any = None


class Cache:
    """What grows while a model runs."""

    def __init__(self) -> None:
        self.keys: list[torch.Tensor] = []

    def add(self, key: torch.Tensor) -> torch.Tensor:
        self.keys.append(key)
        return sum(self.keys)


def same(x: Any) -> Any:
    return x


def item(key: Any) -> Callable[[Any], torch.Tensor]:
    return lambda value: value[key]


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


def in_place(block: Any, x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 0] = 0.0
    return y.add_(block.linear(y.clone())).relu_()


def counts(block: Any, x: torch.Tensor) -> torch.Tensor:
    block.seen += 1
    block.mean = 0.9 * block.mean + 0.1 * x.detach().mean((0, 1))
    return x + (block.linear(x) - block.mean) / block.seen


def remembers(block: Any, x: torch.Tensor) -> torch.Tensor:
    """Attributes that are neither parameters nor buffers carry something from call to call."""
    before = getattr(block, "before", None)
    y = block.linear(x if before is None else x + before)
    block.before, block.calls = y.detach().mean(0, keepdim=True), block.calls + 1
    block.log.append(block.calls)
    return x + y / len(block.log)


def by_pythons_rng(block: Any, x: torch.Tensor) -> torch.Tensor:
    return x + block.linear(x) * random.random() if random.random() < 0.7 else x - block.linear(x)


def routed(block: Any, x: torch.Tensor) -> torch.Tensor:
    """A mixture of experts, of which some get nothing."""
    flat = x.reshape(-1, WIDTH)
    weights, chosen = block.router(flat).softmax(-1).topk(2, -1)
    y = torch.zeros_like(flat)
    for index, expert in enumerate(block.experts):
        row, place = torch.where(chosen == index)
        if len(row):
            y = y.index_add(0, row, expert(flat[row]) * weights[row, place, None])
    return x + y.reshape(x.shape)


def scanned(block: Any, x: torch.Tensor) -> torch.Tensor:
    """A selective state space."""
    step = functional.softplus(block.linear(x))
    state, states = torch.zeros_like(x[:, 0]), []
    for moment in range(x.shape[1]):
        state = torch.exp(-step[:, moment] * block.decay.exp()) * state + step[:, moment]
        states.append(state * x[:, moment])
    return x + torch.stack(states, 1)


def recursive(block: Any, x: torch.Tensor, depth: int = 2) -> torch.Tensor:
    y = torch.tanh(block.linear(x))
    return y if depth == 0 else recursive(block, y, depth - 1)


def by_functions(block: Any, x: torch.Tensor) -> torch.Tensor:
    inner = torch.func.vmap(torch.func.grad(lambda row: row.square().sum().sin()))
    return x + block.linear(inner(x.reshape(-1, WIDTH)).reshape(x.shape))


def with_hooks(block: Any, x: torch.Tensor) -> torch.Tensor:
    y = block.linear(x)
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient * 0.5)
    return x + y


def hooked(block: Any) -> Any:
    block.linear.register_forward_pre_hook(lambda _, args: (args[0] * 1.5,))
    block.linear.register_forward_hook(lambda _module, _args, output: output + 1)
    block.linear.register_full_backward_hook(lambda _m, given, _g: (given[0] * 0.9,))
    block.register_forward_pre_hook(lambda _, args: (args[0] * 0.7,))
    block.register_forward_hook(lambda _module, _args, output: output * 1.1)
    block.register_full_backward_hook(lambda _m, given, _g: (given[0] * 0.8,))
    return block


def by_integers(block: Any, tokens: torch.Tensor) -> torch.Tensor:
    return block.table(tokens) + block.linear(block.table(tokens))


def looks_at_gradients(block: Any, x: torch.Tensor) -> torch.Tensor:
    return x + block.linear(x) * (2.0 if torch.is_grad_enabled() and x.requires_grad else 3.0)


def mixed_result(block: Any, x: torch.Tensor) -> Any:
    y = x + block.linear(x)
    return {"all": [y, (y.argmax(-1), None)], "size": y.shape, "again": y, "name": "y"}


def odd(
    call: Callable[..., Any], unpack: Callable[[Any], Any] = same, **parts: Callable[[], Any]
) -> Callable[[], nn.Module]:
    return lambda: Odd(call, unpack, {name: make() for name, make in parts.items()})


def stacked(call: Callable[..., Any], **parts: Callable[[], Any]) -> Callable[[], nn.Module]:
    return lambda: Passed(odd(call, **parts))


def linear(block: Any, x: torch.Tensor) -> torch.Tensor:
    return x + block.linear(x)


def given(
    give: Callable[[Any, torch.Tensor], Any],
    call: Callable[..., Any],
    unpack: Callable[[Any], Any] = same,
    **parts: Callable[[], Any],
) -> Callable[[], nn.Module]:
    return lambda: Passed(odd(call, unpack, **parts), give)


def returned(call: Callable[..., Any], unpack: Callable[[Any], Any]) -> Callable[[], nn.Module]:
    return given(lambda block, x: block(x), call, unpack)


def parameter(*shape: int) -> Callable[[], nn.Parameter]:
    return lambda: nn.Parameter(0.3 * torch.randn(shape))


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    # what they return
    "a tuple": returned(lambda b, x: (x + b.linear(x), None, 3), item(0)),
    "a list": returned(lambda b, x: [x + b.linear(x)], item(0)),
    "a dict": returned(mixed_result, lambda value: value["all"][0]),
    "one tensor twice": returned(mixed_result, lambda value: value["again"] + value["all"][0]),
    "an ordered dict": returned(lambda b, x: collections.OrderedDict(y=x + b.linear(x)), item("y")),
    "a named tuple": returned(
        lambda b, x: Pair(b.linear(x), x.shape[1]), lambda pair: pair.hidden * pair.size
    ),
    "an object": returned(
        lambda b, x: Record(b.linear(x), [x]), lambda value: value.hidden + value.extra[0]
    ),
    "its input": returned(lambda b, x: (x, b.linear(x)), lambda pair: pair[0] + pair[1]),
    "a view of its input": returned(
        lambda b, x: (x[..., :4], b.linear(x)), lambda pair: pair[1] + pair[0].repeat(1, 1, 2)
    ),
    "a view of its output": returned(lambda b, x: b.linear(x).transpose(1, 2), lambda y: y.mT),
    "its own weight": returned(
        lambda b, x: (b.linear(x), b.linear.weight), lambda pair: pair[0] @ pair[1]
    ),
    "integers": returned(
        lambda b, x: (b.linear(x), x.argmax(-1)), lambda pair: pair[0] * pair[1].unsqueeze(-1)
    ),
    "a part without gradient": returned(
        lambda b, x: (b.linear(x), b.linear(x).detach()), lambda pair: pair[0] + pair[1]
    ),
    "a part never used": returned(lambda b, x: (x + b.linear(x), b.linear(x) * 2), item(0)),
    # what they take
    "keywords": given(
        lambda b, x: b(x, scale=2.0, bias=None, mask=x > 0),
        lambda b, x, *, scale, bias, mask: (x + scale * b.linear(x)).where(mask, x) + (bias or 0),
    ),
    "lists": given(lambda b, x: b([x, x.tanh()]), lambda b, xs: b.linear(xs[0]) + xs[1]),
    "a nested dict": given(
        lambda b, x: b({"a": {"b": [x, None]}}), lambda b, value: linear(b, value["a"]["b"][0])
    ),
    "an object in place": given(
        lambda b, x: (record := Record(x), b(record), record)[2],
        lambda b, record: setattr(record, "hidden", record.hidden + b.linear(record.hidden)),
        lambda record: record.hidden,
    ),
    "a tensor twice": given(lambda b, x: b(x, x), lambda b, x, y: b.linear(x) * y + y),
    "integers only": given(
        lambda b, x: b(x.detach().abs().mul(9).long().sum(-1) % 11) + x,
        by_integers,
        table=lambda: nn.Embedding(11, WIDTH),
    ),
    "no gradients": given(lambda b, x: b(x.detach()) + x, linear),
    "nothing": given(
        lambda b, x: b() + x,
        lambda b: b.linear(torch.ones(1, 1, WIDTH, device=b.linear.weight.device)),
    ),
    "an expanded tensor": given(lambda b, x: b(x.mean(1, keepdim=True).expand_as(x)) + x, linear),
    "a tensor changed before": given(lambda b, x: b(x.mul(1.5).add_(1.0)), linear),
    "a tensor to change": given(
        lambda b, x: b(x * 1.0), lambda b, x: x.mul_(0.5).add_(b.linear(x.clone()))
    ),
    # what they do
    "change in place": stacked(in_place),
    "count in buffers": stacked(
        counts, seen=lambda: torch.zeros((), dtype=torch.int64), mean=lambda: torch.zeros(WIDTH)
    ),
    "remember in attributes": stacked(remembers, log=list),
    "python's rng": stacked(by_pythons_rng),
    "experts": stacked(
        routed,
        router=lambda: nn.Linear(WIDTH, 6),
        experts=lambda: nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6)),
    ),
    "state space": stacked(scanned, decay=parameter(WIDTH)),
    "recursion": stacked(recursive),
    "an autograd function": stacked(lambda b, x: x + Squared.apply(b.linear(x))),
    "torch.func": stacked(by_functions),
    "tensor hooks": stacked(with_hooks),
    "module hooks": lambda: Passed(lambda: hooked(odd(linear)())),
    "a look at gradients": stacked(looks_at_gradients),
    "checkpoint": stacked(lambda b, x: x + checkpoint(b.linear, x, use_reentrant=False)),
    "reentrant checkpoint": stacked(lambda b, x: x + checkpoint(b.linear, x, use_reentrant=True)),
    "torch.no_grad": stacked(lambda b, x: x + b.linear(x) * torch.no_grad()(b.linear)(x).sigmoid()),
    "autocast": stacked(
        lambda b, x: x + torch.autocast(x.device.type, torch.bfloat16)(b.linear)(x).float()
    ),
    "torch's rng": stacked(
        lambda b, x: x + b.linear(x) * torch.randn(WIDTH, device=x.device) + torch.rand_like(x)
    ),
    "dropout in place": stacked(lambda b, x: functional.dropout(b.linear(x), 0.3, inplace=True)),
    "a split and joined": stacked(lambda b, x: torch.cat([b.linear(x)[..., :3], x[..., 3:]], -1)),
    "in-place softmax": stacked(lambda b, x: x + b.linear(x).exp_().softmax(-1)),
    # what they are made of
    "complex": stacked(
        lambda b, x: x + (x.to(torch.complex64) @ b.turn).abs() * b.linear(x),
        turn=lambda: nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.complex64) / WIDTH),
    ),
    "float64": lambda: Passed(
        lambda: odd(lambda b, x: x + b.linear(x.double()).float())().double()
    ),
    "bfloat16": lambda: Passed(
        lambda: odd(lambda b, x: x + b.linear(x.bfloat16()).float())().bfloat16()
    ),
    "mixed widths": stacked(
        lambda b, x: x + b.low(b.linear(x).bfloat16()).float() * b.scale,
        low=lambda: nn.Linear(WIDTH, WIDTH).bfloat16(),
        scale=parameter(),
    ),
    "no dimension": stacked(lambda b, x: x + b.scale * b.linear(x), scale=parameter()),
    "no elements": stacked(
        lambda b, x: linear(b, x) + (x @ b.none.T).sum(), none=parameter(0, WIDTH)
    ),
    "strides": stacked(
        lambda b, x: linear(b, x) @ b.turned,
        turned=lambda: nn.Parameter(torch.eye(WIDTH, 2 * WIDTH)[:, ::2] + 0.0),
    ),
    "turned": stacked(
        lambda b, x: linear(b, x) @ b.turned,
        turned=lambda: nn.Parameter((torch.randn(4, WIDTH) / 3).T @ torch.randn(WIDTH, 4).T),
    ),
    "expanded": stacked(
        lambda b, x: linear(b, x) + b.wide, wide=lambda: nn.Parameter(torch.zeros(1, 1, WIDTH))
    ),
    "unused": stacked(linear, never=parameter(4)),
    "frozen": stacked(
        lambda b, x: linear(b, x) @ b.still,
        still=lambda: nn.Parameter(torch.eye(WIDTH), requires_grad=False),
    ),
    "parameter list": stacked(
        lambda b, x: linear(b, x) + b.few[0] * b.few[1],
        few=lambda: nn.ParameterList([torch.ones(WIDTH), torch.ones(WIDTH)]),
    ),
    "parameter dict": stacked(
        lambda b, x: linear(b, x) * b.few["scale"],
        few=lambda: nn.ParameterDict({"scale": nn.Parameter(torch.ones(WIDTH))}),
    ),
    "containers": stacked(
        lambda b, x: x + b.deep["a"][0](b.linear(x)),
        deep=lambda: nn.ModuleDict({"a": nn.ModuleList([nn.Linear(WIDTH, WIDTH)])}),
    ),
}
