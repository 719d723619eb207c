"""What people do inside a loss function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from law_loops import Habit, batch, loss_of
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    LossFn = Callable[[Any, Any], torch.Tensor]

INSIDE: list[Habit] = []


def uncounted(net: Any) -> nn.Module:
    """Return the net without its counters.

    torch's checkpoint counts a call twice, and torch.func allows no change of a buffer.
    """
    for block in net.blocks:
        block.counts = False
    found: nn.Module = net
    return found


def habit(name: str, **more: Any) -> Callable[[LossFn], LossFn]:
    """Add a loss function."""

    def add(function: LossFn) -> LossFn:
        INSIDE.append(Habit(name, loss_fn=function, **more))
        return function

    return add


@habit("nothing unusual")
def _(model: Any, given: Any) -> torch.Tensor:
    return loss_of(model, given)


@habit("SGD with momentum", optimizer=lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9))
def _(model: Any, given: Any) -> torch.Tensor:
    return loss_of(model, given)


@habit("a gradient penalty")
def _(model: Any, given: Any) -> torch.Tensor:
    x = given["x"].clone().requires_grad_()
    output = model(x)
    (gradient,) = torch.autograd.grad(output.sum(), x, create_graph=True)
    return functional.cross_entropy(output, given["y"]) + gradient.square().mean()


@habit("a gradient of the input that is not differentiated")
def _(model: Any, given: Any) -> torch.Tensor:
    x = given["x"].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss_of(model, {**given, "x": x}), x)
    return loss_of(model, {**given, "x": given["x"] + 0.1 * gradient.sign()})


@habit("the gradient of a part of the weights")
def _(model: Any, given: Any) -> torch.Tensor:
    loss = loss_of(model, given)
    (gradient,) = torch.autograd.grad(loss, [model.head.weight], retain_graph=True)
    return loss * (1 + gradient.square().mean().detach())


@habit("a penalty on weights")
def _(model: Any, given: Any) -> torch.Tensor:
    return loss_of(model, given) + sum(one.square().sum() for one in model.parameters())


@habit("the model is called twice")
def _(model: Any, given: Any) -> torch.Tensor:
    return loss_of(model, given) + loss_of(model, batch(50))


@habit("the model is its own teacher")
def _(model: Any, given: Any) -> torch.Tensor:
    with torch.no_grad():
        target = model(given["x"]).argmax(-1)
    return functional.cross_entropy(model(given["x"]), target)


@habit("a backward of its own")
def _(model: Any, given: Any) -> torch.Tensor:
    if torch.is_grad_enabled():
        loss_of(model, batch(50)).backward()
    return loss_of(model, given)


@habit("torch's checkpoint around the model", prepare=uncounted)
def _(model: Any, given: Any) -> torch.Tensor:
    output = checkpoint(model, given["x"], use_reentrant=False)
    return functional.cross_entropy(output, given["y"])


@habit("torch's checkpoint around a block", prepare=uncounted)
def _(model: Any, given: Any) -> torch.Tensor:
    x = model.stem(given["x"])
    for block in model.blocks:
        x = checkpoint(block, x, use_reentrant=False)
    return functional.cross_entropy(model.head(x), given["y"])


@habit("torch's checkpoint, reentrant", prepare=uncounted)
def _(model: Any, given: Any) -> torch.Tensor:
    x = model.stem(given["x"])
    for block in model.blocks:
        x = checkpoint(block, x, use_reentrant=True)
    return functional.cross_entropy(model.head(x), given["y"])


@habit("autocast")
def _(model: Any, given: Any) -> torch.Tensor:
    with torch.autocast(given["x"].device.type, torch.bfloat16):
        return loss_of(model, given)


@habit("a part of the blocks is left out")
def _(model: Any, given: Any) -> torch.Tensor:
    x = model.stem(given["x"])
    for block in model.blocks[:2]:
        x = block(x)
    return functional.cross_entropy(model.head(x), given["y"])


@habit("blocks are left out by chance")
def _(model: Any, given: Any) -> torch.Tensor:
    x = model.stem(given["x"])
    for block in model.blocks:
        if not model.training or float(torch.rand(())) < 0.6:
            x = block(x)
    return functional.cross_entropy(model.head(x), given["y"])


@habit("a block is used three times")
def _(model: Any, given: Any) -> torch.Tensor:
    x = model.stem(given["x"])
    for block in (model.blocks[0], *[model.blocks[1]] * 3, model.blocks[2]):
        x = block(x)
    return functional.cross_entropy(model.head(x), given["y"])


@habit("blocks in the reverse order")
def _(model: Any, given: Any) -> torch.Tensor:
    x = model.stem(given["x"])
    for block in reversed(model.blocks):
        x = block(x)
    return functional.cross_entropy(model.head(x), given["y"])


@habit("the output of every block is used")
def _(model: Any, given: Any) -> torch.Tensor:
    x = model.stem(given["x"])
    total = x.square().mean()
    for block in model.blocks:
        x = block(x)
        total = total + x.square().mean()
    return functional.cross_entropy(model.head(x), given["y"]) + 0.1 * total


@habit("weights of a block are used directly")
def _(model: Any, given: Any) -> torch.Tensor:
    block = model.blocks[1].linear
    return loss_of(model, given) + functional.linear(given["x"], block.weight).square().mean()


@habit("functional_call with the model's own weights")
def _(model: Any, given: Any) -> torch.Tensor:
    weights = {name: one * 0.9 for name, one in model.named_parameters()}
    output = torch.func.functional_call(model, weights, (given["x"],))
    return functional.cross_entropy(output, given["y"])


@habit("eval mode inside")
def _(model: Any, given: Any) -> torch.Tensor:
    training = model.training
    model.eval()
    loss = loss_of(model, given)
    model.train(training)
    return loss


@habit("weights are swapped by data for a teacher, before the forward")
def _(model: Any, given: Any) -> torch.Tensor:
    kept = [(one, one.data) for one in model.blocks.parameters()]
    for one, _ in kept:
        one.data = one.data * 0.5
    with torch.no_grad():
        taught = model(given["x"])
    for one, before in kept:
        one.data = before
    return loss_of(model, given) + (model(given["x"]) - taught).square().mean()


@habit("weights are swapped by data for a teacher, after the forward")
def _(model: Any, given: Any) -> torch.Tensor:
    output = model(given["x"])
    kept = [(one, one.data) for one in model.blocks.parameters()]
    for one, _ in kept:
        one.data = one.data * 0.5
    with torch.no_grad():
        taught = model(given["x"])
    for one, before in kept:
        one.data = before
    return functional.cross_entropy(output, given["y"]) + (output - taught).square().mean()


@habit("anomaly detection")
def _(model: Any, given: Any) -> torch.Tensor:
    with torch.autograd.detect_anomaly(check_nan=False):
        return loss_of(model, given)


@habit("saved tensors are packed")
def _(model: Any, given: Any) -> torch.Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda one: one.clone(), lambda one: one):
        return loss_of(model, given)


@habit("saved tensors are on the CPU")
def _(model: Any, given: Any) -> torch.Tensor:
    with torch.autograd.graph.save_on_cpu():
        return loss_of(model, given)


@habit("a part runs without gradients")
def _(model: Any, given: Any) -> torch.Tensor:
    with torch.no_grad():
        x = model.blocks[0](model.stem(given["x"]))
    for block in model.blocks[1:]:
        x = block(x)
    return functional.cross_entropy(model.head(x), given["y"])


class Reversed(torch.autograd.Function):
    """The identity, whose gradient has the other sign."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return -gradient


@habit("the gradient is reversed on its way")
def _(model: Any, given: Any) -> torch.Tensor:
    x = model.blocks[0](model.stem(given["x"]))
    for block in model.blocks[1:]:
        x = block(Reversed.apply(x))
    return functional.cross_entropy(model.head(x), given["y"])


@habit("a hook on a tensor")
def _(model: Any, given: Any) -> torch.Tensor:
    x = model.blocks[0](model.stem(given["x"]))
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient * 0.5)
    for block in model.blocks[1:]:
        x = block(x)
    return functional.cross_entropy(model.head(x), given["y"])


@habit("an output is changed in place")
def _(model: Any, given: Any) -> torch.Tensor:
    x = model.stem(given["x"])
    for block in model.blocks:
        x = block(x).mul_(0.9)
    return functional.cross_entropy(model.head(x), given["y"])


@habit("an input is changed in place later")
def _(model: Any, given: Any) -> torch.Tensor:
    x = model.stem(given["x"])
    for block in model.blocks:
        y = block(x)
        with torch.no_grad():
            x = y
    return functional.cross_entropy(model.head(x), given["y"])


@habit("a buffer is changed inside")
def _(model: Any, given: Any) -> torch.Tensor:
    if model.training:
        model.blocks[1].calls.add_(3)
    return loss_of(model, given)


@habit("random numbers are drawn inside")
def _(model: Any, given: Any) -> torch.Tensor:
    noise = torch.rand(given["x"].shape).to(given["x"])
    return loss_of(model, {**given, "x": given["x"] + noise})


@habit("a loss of shape (1,)")
def _(model: Any, given: Any) -> torch.Tensor:
    return loss_of(model, given).reshape(1)


@habit("the model compiled as a whole", prepare=lambda net: torch.compile(net, backend="aot_eager"))
def _(model: Any, given: Any) -> torch.Tensor:
    return loss_of(model, given)


def in_place(net: nn.Module) -> nn.Module:
    net.compile(backend="aot_eager")
    return net


@habit("the model compiled in place", prepare=in_place)
def _(model: Any, given: Any) -> torch.Tensor:
    return loss_of(model, given)


def by_block(net: Any) -> nn.Module:
    for place, block in enumerate(net.blocks):
        net.blocks[place] = torch.compile(block, backend="aot_eager")
    return net


@habit("each block compiled", prepare=by_block)
def _(model: Any, given: Any) -> torch.Tensor:
    return loss_of(model, given)


def by_block_in_place(net: Any) -> nn.Module:
    for block in net.blocks:
        block.compile(backend="aot_eager")
    return net


@habit("each block compiled in place", prepare=by_block_in_place)
def _(model: Any, given: Any) -> torch.Tensor:
    return loss_of(model, given)


compiled = torch.compile(loss_of, backend="aot_eager")


@habit("a compiled loss")
def _(model: Any, given: Any) -> torch.Tensor:
    found: torch.Tensor = compiled(model, given)
    return found


@habit("blocks that are frozen for a part of the loss")
def _(model: Any, given: Any) -> torch.Tensor:
    """As a discriminator, while the loss of the generator is computed."""
    model.blocks.requires_grad_(requires_grad=False)
    frozen = loss_of(model, given)
    model.blocks.requires_grad_(requires_grad=True)
    return frozen + model(given["x"]).square().mean()


@habit("a derivative of each sample by vmap", prepare=uncounted)
def _(model: Any, given: Any) -> torch.Tensor:
    slopes = torch.func.vmap(torch.func.grad(lambda x: model(x).sum()), randomness="different")(
        given["x"]
    )
    return loss_of(model, given) + slopes.square().mean()


@habit("a derivative in one direction", prepare=uncounted)
def _(model: Any, given: Any) -> torch.Tensor:
    output, slope = torch.func.jvp(model, (given["x"],), (torch.ones_like(given["x"]),))
    return functional.cross_entropy(output, given["y"]) + slope.square().mean()
