"""What people do between two steps."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
from typing import TYPE_CHECKING, Any

import torch
from law_loops import DEVICE, WIDTH, Habit, Loop, batch
from torch import nn
from torch.nn.utils import parameters_to_vector, prune, vector_to_parameters
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

if TYPE_CHECKING:
    from collections.abc import Callable

BETWEEN: list[Habit] = []


def habit(name: str, **more: Any) -> Callable[[Callable[[Loop], None]], Callable[[Loop], None]]:
    """Add a habit that is done before each step but the first."""

    def add(function: Callable[[Loop], None]) -> Callable[[Loop], None]:
        def before(loop: Loop) -> None:
            if loop.step:
                function(loop)

        BETWEEN.append(Habit(name, before, **more))
        return function

    return add


# -- weights ---------------------------------------------------------------------------------------


@habit("load_state_dict of changed weights")
def _(loop: Loop) -> None:
    state = {name: value * 0.9 for name, value in loop.model.state_dict().items()}
    loop.model.load_state_dict(state)


@habit("load_state_dict of one block")
def _(loop: Loop) -> None:
    block = loop.model.blocks[2]
    block.load_state_dict({name: value * 0.9 for name, value in block.state_dict().items()})


@habit("load_state_dict of a part, not strict")
def _(loop: Loop) -> None:
    loop.model.load_state_dict({"blocks.0.linear.bias": torch.ones(WIDTH)}, strict=False)


@habit("load_state_dict with assign=True")
def _(loop: Loop) -> None:
    state = {name: value.clone() * 0.9 for name, value in loop.model.state_dict().items()}
    loop.model.load_state_dict(state, assign=True)


@habit("clamp_ under no_grad")
def _(loop: Loop) -> None:
    with torch.no_grad():
        for parameter in loop.model.parameters():
            parameter.clamp_(-0.1, 0.1)


@habit("data.clamp_")
def _(loop: Loop) -> None:
    for parameter in loop.model.parameters():
        parameter.data.clamp_(-0.1, 0.1)


@habit("data.mul_ of the last block")
def _(loop: Loop) -> None:
    loop.model.blocks[-1].linear.weight.data.mul_(0.5)


@habit("a decay by hand")
def _(loop: Loop) -> None:
    with torch.no_grad():
        for parameter in loop.model.parameters():
            parameter.sub_(0.1 * parameter)


@habit("detach().mul_")
def _(loop: Loop) -> None:
    for weight in loop.blocks_weights:
        weight.detach().mul_(0.9)


@habit("a write through a view that is kept")
def _(loop: Loop) -> None:
    rows = loop.kept.setdefault("rows", loop.weight.detach()[:2])
    if loop.step == 1:
        rows.mul_(0.5)


@habit("_foreach_mul_ of all")
def _(loop: Loop) -> None:
    torch._foreach_mul_([one.data for one in loop.model.parameters()], 0.9)


@habit("copy_ from another parameter")
def _(loop: Loop) -> None:
    with torch.no_grad():
        loop.weight.copy_(loop.model.stem.weight)


@habit("model.apply of an initialisation")
def _(loop: Loop) -> None:
    def renew(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.constant_(module.bias, 0.1)

    loop.model.apply(renew)


@habit("nn.init of one weight")
def _(loop: Loop) -> None:
    nn.init.xavier_uniform_(loop.weight)


@habit("reset_parameters of a block")
def _(loop: Loop) -> None:
    loop.model.blocks[3].linear.reset_parameters()


@habit("vector_to_parameters")
def _(loop: Loop) -> None:
    vector = parameters_to_vector(loop.model.parameters()).detach()
    vector_to_parameters(vector * 0.9, loop.model.parameters())


@habit("p.data = a new tensor")
def _(loop: Loop) -> None:
    loop.weight.data = loop.weight.data * 0.9


@habit("p.data = a transposed tensor")
def _(loop: Loop) -> None:
    loop.weight.data = loop.weight.data.t()


@habit("two blocks swap their data")
def _(loop: Loop) -> None:
    one, other = loop.blocks_weights[:2]
    one.data, other.data = other.data, one.data


@habit("p.data is swapped for a forward and put back")
def _(loop: Loop) -> None:
    kept = [(one, one.data) for one in loop.model.parameters()]
    for one, _ in kept:
        one.data = one.data * 0.5
    loss = float(loop.loss())
    for one, before in kept:
        one.data = before
    loop.model.head.bias.data += loss * 0.01


@habit("p.data is put back from detached, flat tensors")
def _(loop: Loop) -> None:
    kept = [(one, one.detach().view(-1)) for one in loop.blocks_weights]
    for one, _ in kept:
        one.data = one.data * 0.5
    loss = float(loop.loss())
    for one, before in kept:
        one.data = before.view(one.shape)
    loop.model.head.bias.data += loss * 0.01


@habit("a state_dict is kept while p.data is another tensor")
def _(loop: Loop) -> None:
    kept = loop.model.state_dict()
    for one in loop.model.parameters():
        one.data = one.data * 0.5
    loss = float(loop.loss())
    loop.model.load_state_dict(kept)
    loop.model.head.bias.data += loss * 0.01


@habit("averages are exchanged with p.data for a forward")
def _(loop: Loop) -> None:
    parameters = list(loop.model.parameters())
    averages = loop.kept.setdefault("averages", [one.detach().clone() for one in parameters])

    def exchange() -> None:
        for place, one in enumerate(parameters):
            one.data, averages[place] = averages[place], one.data

    for one, average in zip(parameters, averages, strict=True):
        average.lerp_(one.data.to(average.device), 0.5)
    exchange()
    loss = float(loop.loss())
    exchange()
    loop.model.head.bias.data += loss * 0.01


@habit("two sets of weights take turns")
def _(loop: Loop) -> None:
    parameters = loop.blocks_weights
    others = loop.kept.setdefault("others", [one.detach().clone() * 0.5 for one in parameters])
    for place, one in enumerate(parameters):
        one.data, others[place] = others[place], one.data


@habit("a tensor that was assigned is changed later")
def _(loop: Loop) -> None:
    if loop.step == 1:
        loop.kept["mine"] = loop.weight.data * 0.5
        loop.weight.data = loop.kept["mine"]
    loop.kept["mine"].mul_(0.5)


@habit("p.data = the data of another block")
def _(loop: Loop) -> None:
    loop.weight.data = loop.model.blocks[2].linear.weight.data


@habit("p.data = the data of a weight outside of blocks")
def _(loop: Loop) -> None:
    loop.weight.data = loop.model.stem.weight.data


@habit("p.set_ to a new tensor")
def _(loop: Loop) -> None:
    with torch.no_grad():
        loop.weight.set_(loop.weight.detach() * 0.9)


@habit("a state_dict's tensor is changed")
def _(loop: Loop) -> None:
    loop.model.state_dict()["blocks.1.linear.weight"].mul_(0.9)


@habit("a state_dict that was kept is changed")
def _(loop: Loop) -> None:
    kept = loop.kept.setdefault("state", loop.model.state_dict())
    if loop.step == 1:
        kept["blocks.2.linear.weight"].mul_(0.5)


@habit("weights are put back to those of an earlier step")
def _(loop: Loop) -> None:
    kept = loop.kept.setdefault("state", copy.deepcopy(loop.model.state_dict()))
    if loop.step == 3:
        loop.model.load_state_dict(kept)


@habit("averaged weights are swapped in for an evaluation")
def _(loop: Loop) -> None:
    mine = {name: value.detach().clone() for name, value in loop.model.named_parameters()}
    with torch.no_grad():
        for parameter in loop.model.parameters():
            parameter.mul_(0.5)
        loop.loss()
        for name, parameter in loop.model.named_parameters():
            parameter.copy_(mine[name])


@habit("an AveragedModel reads the weights")
def _(loop: Loop) -> None:
    averaged = loop.kept.setdefault(
        "averaged", torch.optim.swa_utils.AveragedModel(nn.Linear(WIDTH, WIDTH).to(DEVICE))
    )
    averaged.update_parameters(loop.model.blocks[1].linear)


@habit("model.to of the same dtype")
def _(loop: Loop) -> None:
    loop.model.float()


@habit("share_memory")
def _(loop: Loop) -> None:
    loop.model.blocks[1].share_memory()


# -- parameters ------------------------------------------------------------------------------------


@habit("a block is frozen and thawed")
def _(loop: Loop) -> None:
    loop.model.blocks[1].requires_grad_(loop.step % 2 == 0)


@habit("a parameter is thawed that the optimizer has", trains=lambda name: True)
def _(loop: Loop) -> None:
    loop.weight.requires_grad_(loop.step >= 3)


def frozen(net: Any) -> nn.Module:
    net.blocks[2].requires_grad_(False)
    found: nn.Module = net
    return found


@habit("add_param_group", trains=lambda name: not name.startswith("blocks.2"), prepare=frozen)
def _(loop: Loop) -> None:
    if loop.step == 2:
        loop.model.blocks[2].requires_grad_()
        loop.optimizer.add_param_group({"params": list(loop.model.blocks[2].parameters())})


@habit("add_param_group of a new module")
def _(loop: Loop) -> None:
    if loop.step == 2:
        loop.model.head = nn.Sequential(loop.model.head, nn.Linear(3, 3).to(DEVICE))
        loop.optimizer.add_param_group({"params": list(loop.model.head[1].parameters())})


@habit("a block is added")
def _(loop: Loop) -> None:
    if loop.step == 2:
        loop.model.blocks.append(copy.deepcopy(loop.model.blocks[0]))
        loop.optimizer.add_param_group({"params": list(loop.model.blocks[-1].parameters())})


@habit("a layer is replaced")
def _(loop: Loop) -> None:
    if loop.step == 2:
        loop.model.blocks[1].linear = nn.Linear(WIDTH, WIDTH).to(DEVICE)


@habit("a parametrization is registered")
def _(loop: Loop) -> None:
    if loop.step == 2:
        nn.utils.parametrizations.weight_norm(loop.model.blocks[1].linear)


@habit("a layer is pruned")
def _(loop: Loop) -> None:
    if loop.step == 2:
        prune.l1_unstructured(loop.model.blocks[1].linear, "weight", amount=0.3)


@habit("a parameter is exchanged")
def _(loop: Loop) -> None:
    if loop.step == 2:
        loop.model.blocks[1].linear.weight = nn.Parameter(torch.ones(WIDTH, WIDTH, device=DEVICE))


# -- gradients -------------------------------------------------------------------------------------


@habit("a backward by hand, then zero_grad")
def _(loop: Loop) -> None:
    loop.loss().backward()
    loop.optimizer.zero_grad()


@habit("a backward by hand, then model.zero_grad")
def _(loop: Loop) -> None:
    loop.loss().backward()
    loop.model.zero_grad()


@habit("a backward by hand that counts")
def _(loop: Loop) -> None:
    loop.loss().backward()


@habit("a whole update by hand")
def _(loop: Loop) -> None:
    loop.loss().backward()
    loop.optimizer.step()
    loop.optimizer.zero_grad()


@habit("optimizer.step by hand")
def _(loop: Loop) -> None:
    loop.optimizer.step()


@habit("gradients set by hand, and a step")
def _(loop: Loop) -> None:
    for parameter in loop.model.parameters():
        parameter.grad = torch.full_like(parameter, 0.1)
    loop.optimizer.step()
    loop.optimizer.zero_grad()


@habit("gradients set by hand that count")
def _(loop: Loop) -> None:
    for parameter in loop.model.parameters():
        parameter.grad = torch.full_like(parameter, 0.1)


@habit("zero_grad to zeros")
def _(loop: Loop) -> None:
    loop.optimizer.zero_grad(set_to_none=False)


@habit("autograd.grad of an input by hand")
def _(loop: Loop) -> None:
    given = batch(90)["x"].requires_grad_()
    (gradient,) = torch.autograd.grad(loop.model(given).sum(), given)
    loop.model.head.bias.data += gradient.mean() * 0.01


@habit("autograd.grad of weights by hand")
def _(loop: Loop) -> None:
    gradients = torch.autograd.grad(loop.loss(), loop.blocks_weights)
    loop.model.head.bias.data += gradients[1].mean() * 0.01


@habit("a hook on a weight's gradient")
def _(loop: Loop) -> None:
    if loop.step == 1:
        loop.weight.register_hook(lambda gradient: gradient * 0.5)


@habit("a post-accumulate hook that scales the gradient")
def _(loop: Loop) -> None:
    def scale(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None, "it has just been added"
        parameter.grad.mul_(0.5)

    if loop.step == 1:
        loop.weight.register_post_accumulate_grad_hook(scale)


# -- the optimizer ---------------------------------------------------------------------------------


@habit("the learning rate is set")
def _(loop: Loop) -> None:
    for group in loop.optimizer.param_groups:
        group["lr"] *= 0.5


@habit("a scheduler of torch")
def _(loop: Loop) -> None:
    kept = loop.kept.setdefault(
        "scheduler", torch.optim.lr_scheduler.StepLR(loop.optimizer, 1, gamma=0.5)
    )
    kept.step()


@habit("weight decay and betas are set")
def _(loop: Loop) -> None:
    for group in loop.optimizer.param_groups:
        group["weight_decay"], group["betas"] = 0.1, (0.8, 0.9)


@habit("amsgrad is switched on")
def _(loop: Loop) -> None:
    if loop.step == 1:
        for group in loop.optimizer.param_groups:
            group["amsgrad"] = True
        for parameter, state in loop.optimizer.state.items():
            state["max_exp_avg_sq"] = torch.zeros_like(parameter)


@habit("the optimizer's state is cleared")
def _(loop: Loop) -> None:
    loop.optimizer.state.clear()


@habit("the optimizer's state is changed")
def _(loop: Loop) -> None:
    for state in loop.optimizer.state.values():
        state["exp_avg"].mul_(0.5)


@habit("the state of one parameter is removed")
def _(loop: Loop) -> None:
    loop.optimizer.state.pop(loop.weight)


@habit("the optimizer's state is loaded")
def _(loop: Loop) -> None:
    state = copy.deepcopy(loop.optimizer.state_dict())
    for one in state["state"].values():
        one["exp_avg"] *= 0.5
    loop.optimizer.load_state_dict(state)


@habit("the optimizer's state is put back")
def _(loop: Loop) -> None:
    kept = loop.kept.setdefault("state", copy.deepcopy(loop.optimizer.state_dict()))
    if loop.step == 3:
        loop.optimizer.load_state_dict(kept)


@habit("a pre-hook of the step edits gradients")
def _(loop: Loop) -> None:
    def halve(optimizer: Any, *_: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(0.5)

    if loop.step == 1:
        loop.optimizer.register_step_pre_hook(halve)


@habit("a pre-hook of all optimizers edits gradients")
def _(loop: Loop) -> None:
    def halve(optimizer: Any, *_: Any) -> None:
        if optimizer is loop.optimizer:
            for parameter in loop.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(0.5)

    if loop.step == 1:
        loop.undo.callback(register_optimizer_step_pre_hook(halve).remove)


@habit("a post-hook of all optimizers clamps weights")
def _(loop: Loop) -> None:
    def clamp(optimizer: Any, *_: Any) -> None:
        if optimizer is loop.optimizer:
            for parameter in loop.model.parameters():
                parameter.data.clamp_(-0.2, 0.2)

    if loop.step == 1:
        loop.undo.callback(register_optimizer_step_post_hook(clamp).remove)


@habit("a post-hook of the step clamps weights")
def _(loop: Loop) -> None:
    def clamp(optimizer: Any, *_: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.data.clamp_(-0.2, 0.2)

    if loop.step == 1:
        loop.optimizer.register_step_post_hook(clamp)


@habit("a post-hook of the step reads gradients")
def _(loop: Loop) -> None:
    def read(optimizer: Any, *_: Any) -> None:
        found = [p.grad.sum() for g in optimizer.param_groups for p in g["params"]]
        loop.model.head.bias.data += torch.stack([one.cpu() for one in found]).mean().to(DEVICE)

    if loop.step == 1:
        loop.optimizer.register_step_post_hook(read)


@habit("a method of the optimizer is replaced")
def _(loop: Loop) -> None:
    if loop.step == 1:
        own = loop.optimizer.step

        def step(*given: Any, **more: Any) -> Any:
            result = own(*given, **more)
            with torch.no_grad():
                loop.weight.mul_(0.9)
            return result

        loop.optimizer.step = step


# -- forwards --------------------------------------------------------------------------------------


@habit("a forward by hand")
def _(loop: Loop) -> None:
    loop.loss()


@habit("a forward by hand, between two changes of a weight")
def _(loop: Loop) -> None:
    loop.weight.data.mul_(0.9)
    first = float(loop.loss())
    loop.weight.data.mul_(0.9)
    loop.model.head.bias.data += first - float(loop.loss())


@habit("a forward by hand without gradients, in eval mode")
def _(loop: Loop) -> None:
    loop.model.eval()
    with torch.no_grad():
        loop.model.head.bias.data += float(loop.loss()) * 0.01
    loop.model.train()


@habit("a forward in inference mode")
def _(loop: Loop) -> None:
    with torch.inference_mode():
        loop.loss()


@habit("a part of the model is called")
def _(loop: Loop) -> None:
    with torch.no_grad():
        loop.model.head.bias.data += loop.model.blocks[1](batch(90)["x"]).mean() * 0.01


@habit("dropout is changed")
def _(loop: Loop) -> None:
    loop.model.blocks[1].dropout.p = 0.1 * loop.step


@habit("a block is put in eval mode")
def _(loop: Loop) -> None:
    loop.model.blocks[1].eval()


@habit("a buffer is changed")
def _(loop: Loop) -> None:
    loop.model.blocks[1].calls.mul_(2)


@habit("a hook scales a block's output")
def _(loop: Loop) -> None:
    if loop.step == 1:
        loop.model.blocks[1].register_forward_hook(lambda _, __, output: output * 0.5)


@habit("a hook inside a block scales an output")
def _(loop: Loop) -> None:
    if loop.step == 1:
        loop.model.blocks[1].linear.register_forward_hook(lambda _, __, output: output * 0.5)


@habit("a backward hook scales a gradient")
def _(loop: Loop) -> None:
    if loop.step == 1:
        loop.model.blocks[1].register_full_backward_hook(lambda _, given, __: (given[0] * 0.5,))


# -- copies, files, the process --------------------------------------------------------------------


@habit("a deepcopy is run and dropped")
def _(loop: Loop) -> None:
    copied = copy.deepcopy(loop.model)
    with torch.no_grad():
        loop.model.head.bias.data += copied.to(DEVICE)(batch(90)["x"]).mean() * 0.01


@habit("torch.save of the state")
def _(loop: Loop) -> None:
    file = io.BytesIO()
    torch.save([loop.model.state_dict(), loop.optimizer.state_dict()], file)
    file.seek(0)
    model, _ = torch.load(file)
    loop.model.head.bias.data += model["blocks.1.linear.weight"].to(DEVICE).mean() * 0.01


@habit("torch.save of the whole model")
def _(loop: Loop) -> None:
    file = io.BytesIO()
    torch.save(loop.model, file)
    file.seek(0)
    found = torch.load(file, weights_only=False)
    for name, value in found.state_dict().items():
        assert torch.equal(value.cpu(), loop.model.state_dict()[name].cpu()), name


@habit("the model is pickled")
def _(loop: Loop) -> None:
    found = pickle.loads(pickle.dumps(loop.model))
    loop.model.head.bias.data += found.head.bias.data * 0.01


@habit("weights are read in another thread")
def _(loop: Loop) -> None:
    found: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: found.append(loop.weight.detach().sum()))
    thread.start()
    thread.join()
    loop.model.head.bias.data += found[0].to(DEVICE) * 0.01


@habit("norms of weights are logged")
def _(loop: Loop) -> None:
    norms = [float(one.detach().norm()) for one in loop.model.parameters()]
    loop.model.head.bias.data += sum(norms) * 1e-3


@habit("the random state is set")
def _(loop: Loop) -> None:
    torch.manual_seed(7)


@habit("random numbers are drawn")
def _(loop: Loop) -> None:
    torch.rand(3)


@habit("garbage is collected")
def _(loop: Loop) -> None:
    gc.collect()
