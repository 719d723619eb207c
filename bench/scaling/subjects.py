"""Programs (subjects) that train the decoder: streaming, plain PyTorch, FSDP2 and torchao."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from neaptide import HybridTrainer
from scaling.decoder import Decoder, loss_fn
from scaling.needed_bytes import BF16, inputs, state_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from scaling.configurations import Configuration

    Batch = tuple[Tensor, Tensor]

RATE = 1e-4
CLIP_NORM = 1.0
MODULES = {"fsdp2": "torch.distributed.fsdp", "torchao": "torchao"}
"""Modules that a subject needs in addition to torch."""


@dataclass(frozen=True)
class Made:
    """A subject that is ready to train."""

    step: Callable[[Batch], object]
    moved: Callable[[], tuple[float, float]] | None
    """Function that returns the bytes copied to and from the device so far; None if the subject
    does not count them."""
    settings: dict[str, Any]


def optimizer_of(
    configuration: Configuration, parameters: Any, **options: Any
) -> torch.optim.Optimizer:
    """Return the configuration's optimizer."""
    if configuration.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=RATE, **options)
    momentum = 0.9 if configuration.optimizer == "momentum" else 0.0
    return torch.optim.SGD(parameters, lr=RATE, momentum=momentum, **options)


def streamed(configuration: Configuration, device: torch.device, pieces: int) -> Made:
    """Return a trainer whose plugin `layer-streaming` updates the weights in the backward."""
    model = Decoder(configuration.shape, torch.bfloat16, "cpu", device)
    clipped = configuration.clip != "none"
    settings: dict[str, Any] = {
        "blocks": "blocks.*.*" if configuration.halves else "blocks.*",
        "update": "in_backward",
        "optimizer_on": "device",
        "master": configuration.master,
        "clip": configuration.clip,
        "micro_batches": pieces,
        "inputs": "host",
        "resident": 0,
    }
    train: dict[str, Any] = {"device": device.type, "check_finite": False}
    trainer = HybridTrainer(
        model,
        optimizer_of(configuration, model.parameters()),
        loss_fn=loss_fn,
        config={
            "phases": {"warmup": {"steps": 0}},
            "train": {**train, "clip_norm": CLIP_NORM} if clipped else train,
            "plugins": {"layer-streaming": settings},
        },
    )
    streaming = trainer.store.streaming
    count = len(streaming.blocks)
    whole = sum(block.host.nbytes for block in streaming.blocks)
    own = configuration.shape.blocks * configuration.shape.block_parameters
    steps = 0

    def step(batch: Batch) -> None:
        nonlocal steps
        trainer.step(batch)
        steps += 1

    def moved() -> tuple[float, float]:
        state, waiting = state_bytes(configuration) * own, inputs(configuration)
        fetched = streaming.residency.fetches * whole / count
        return fetched + steps * (state + waiting), steps * (BF16 * own + state + waiting)

    return Made(step, moved, {"layer-streaming": settings, "train": train})


def resident(configuration: Configuration, device: torch.device, pieces: int) -> Made:
    """Return a program in plain PyTorch.

    Weights are bfloat16 with a float32 master, and every block is recomputed.
    """
    model = Decoder(configuration.shape, torch.bfloat16, device, device)
    wrap(model)
    groups = [list(block.parameters()) for block in model.blocks]
    known = {parameter for group in groups for parameter in group}
    groups.append([p for p in model.parameters() if p not in known])
    masters = [[p.detach().float().requires_grad_() for p in group] for group in groups]
    fused = device.type == "cuda"
    optimizers = [optimizer_of(configuration, group, fused=fused) for group in masters]

    def update() -> None:
        for group, copies, optimizer in zip(groups, masters, optimizers, strict=True):
            for parameter, master in zip(group, copies, strict=True):
                assert parameter.grad is not None
                master.grad, parameter.grad = parameter.grad.float(), None
            optimizer.step()
            for parameter, master in zip(group, copies, strict=True):
                parameter.detach().copy_(master)
                master.grad = None

    return Made(accumulated(model, pieces, update), None, {"pieces": pieces, "master": "float32"})


def fsdp2(configuration: Configuration, device: torch.device, pieces: int) -> Made:
    """Return a program with FSDP2, `CPUOffloadPolicy` and fused AdamW in a group of one process."""
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415 - needs a group
    from torch.distributed.fsdp import (  # noqa: PLC0415 - as above
        CPUOffloadPolicy,
        MixedPrecisionPolicy,
        fully_shard,
    )

    gpu = device.type == "cuda"
    backend = "cpu:gloo,cuda:nccl" if gpu else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    model = Decoder(configuration.shape, torch.float32, "cpu", device)
    wrap(model)
    options: dict[str, Any] = {
        "mesh": init_device_mesh(device.type, (1,)),
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        "offload_policy": CPUOffloadPolicy(pin_memory=gpu),
    }
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    optimizer = optimizer_of(configuration, model.parameters(), fused=True)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    settings = {"pieces": pieces, "weights": "float32 on the host", "optimizer": "fused, CPU"}
    return Made(accumulated(model, pieces, update), None, settings)


def torchao(configuration: Configuration, device: torch.device, pieces: int) -> Made:
    """Return a program with torchao's `CPUOffloadOptimizer`.

    Weights are on the device. Gradients and the optimizer state are on the host.
    """
    from torchao.optim import CPUOffloadOptimizer  # noqa: PLC0415 - may be missing

    model = Decoder(configuration.shape, torch.bfloat16, device, device)
    wrap(model)
    optimizer = CPUOffloadOptimizer(
        model.parameters(), torch.optim.AdamW, offload_gradients=True, fused=True, lr=RATE
    )

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    settings = {"weights": "bfloat16, without a master", "offload_gradients": True}
    return Made(accumulated(model, pieces, update), None, settings)


def wrap(model: Decoder) -> None:
    """Make the backward recompute every block."""
    for number, block in enumerate(model.blocks):
        model.blocks[number] = checkpoint_wrapper(block)


def accumulated(
    model: nn.Module, pieces: int, update: Callable[[], None]
) -> Callable[[Batch], None]:
    """Return a step that accumulates gradients over parts of a batch, then calls `update`."""

    def step(batch: Batch) -> None:
        for piece in zip(*(tensor.chunk(pieces) for tensor in batch), strict=True):
            (loss_fn(model, piece) / pieces).backward()
        update()

    return step


SUBJECTS = {"streamed": streamed, "resident": resident, "fsdp2": fsdp2, "torchao": torchao}
