"""All state of a run that results may depend on, as values by name."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch

from neaptide.api import rng
from neaptide.checkpoint.store import digest
from neaptide.run import saving
from neaptide_toolkit.tensors import nested_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from neaptide.run.session import Session

Value = Any
"""A tensor, a digest of one, or a number."""

_SWITCHES = {"params", "foreach", "fused", "capturable", "differentiable", "maximize"}
"""How an optimizer computes, and not what."""


def kept(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy in RAM."""
    return tensor.detach().to("cpu", copy=True)


def digested(tensor: torch.Tensor) -> str:
    """Return a digest of dtype, shape and bits."""
    plain = tensor.detach()
    if type(plain) not in (torch.Tensor, torch.nn.Parameter) or plain.layout is not torch.strided:
        return digest({"": plain})
    flat = plain.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8)
    sha256 = hashlib.sha256(f"{plain.dtype} {tuple(plain.shape)} ".encode())
    data: Any = flat.numpy()
    sha256.update(data)
    return sha256.hexdigest()


def state_of(
    session: Session, value_of: Callable[[torch.Tensor], Value], *, whole: bool = False
) -> dict[str, Value]:
    """Return weights, buffers, optimizer state and random state, in this order.

    Names are `weights/NAME`, `trained/NAME`, `tied/NAME`, `buffers/NAME`, `optimizer/NAME/KEY` and
    `random/KIND`.
    If `whole`, also the state of the loop and of plugins: `training/…`, `plugins/NAME/…`.
    """
    found: dict[str, Value] = {}
    parts = session._parts  # noqa: SLF001 - what a checkpoint is made of
    for span in session.store.spans():
        with session.store.loan(span, "read") as weight:
            found[f"weights/{span.name}"] = value_of(weight)
        found[f"trained/{span.name}"] = span.trainable
        if span.tied:
            found[f"tied/{span.name}"] = ", ".join(sorted(span.tied))
    with saving.sections(parts, None) as trees:
        for name, buffer in trees["buffers"].items():
            found[f"buffers/{name}"] = value_of(buffer)
        found |= _of_optimizer(session, trees["optimizer"], value_of)
        found |= _of_random(trees["rng"])
        for kind in ("training", "plugins", "extra") if whole else ():
            found |= dict(_leaves(kind, trees[kind], value_of))
    return found


def gradients_of(
    session: Session, kind: str, value_of: Callable[[torch.Tensor], Value]
) -> dict[str, Value]:
    """Return the gradients that the store has, `KIND/NAME`, in the order of a backward."""
    found = {}
    store = session.store
    for span in reversed(store.spans()):
        if store.has_gradient(span):
            with store.loan(span, "read", of="gradient") as gradient:
                found[f"{kind}/{span.name}"] = value_of(gradient)
    return found


def batch_of(batch: Any, value_of: Callable[[torch.Tensor], Value]) -> dict[str, Value]:
    """Return the tensors of a batch, `batch/KEY`."""
    if isinstance(batch, torch.Tensor):
        return {"batch": value_of(batch)}
    if hasattr(batch, "items"):
        batch = dict(batch.items())
    if isinstance(batch, list | tuple | dict):
        return dict(_leaves("batch", batch, value_of))
    if hasattr(batch, "__dict__"):
        return dict(_leaves("batch", vars(batch), value_of))
    return {}


def random_state() -> dict[str, Value]:
    """Return the state of every generator, `random/KIND`."""
    return _of_random(rng.capture())


def _of_random(state: dict[str, Any]) -> dict[str, Value]:
    found = {}
    for kind, one in state.items():
        rest = (
            [each for each in one if not isinstance(each, torch.Tensor)]
            if isinstance(one, list)
            else []
        )
        sha256 = hashlib.sha256(repr(rest).encode())
        for tensor in nested_tensors([one]):
            sha256.update(tensor.cpu().numpy().tobytes())
        found[f"random/{kind}"] = sha256.hexdigest()
    return found


def _of_optimizer(
    session: Session, tree: dict[str, Any], value_of: Callable[[torch.Tensor], Value]
) -> dict[str, Value]:
    names = {parameter: every[0] for parameter, every in session.store.names.items()}
    params = [one for group in session.store.optimizer.param_groups for one in group["params"]]
    found: dict[str, Value] = {}
    for index, state in sorted(tree["state"].items(), key=lambda item: str(item[0])):
        numbered = isinstance(index, int) and index < len(params)
        name = names.get(params[index], str(index)) if numbered else str(index)
        found |= dict(_leaves(f"optimizer/{name}", state, value_of))
    for place, group in enumerate(tree["param_groups"]):
        own = {key: value for key, value in group.items() if key not in _SWITCHES}
        found |= dict(_leaves(f"optimizer/group {place}", own, value_of))
    return dict(sorted(found.items(), key=lambda item: "/group " not in item[0]))


def _leaves(
    name: str, tree: Any, value_of: Callable[[torch.Tensor], Value]
) -> Iterator[tuple[str, Value]]:
    if isinstance(tree, torch.Tensor):
        yield name, value_of(tree)
    elif isinstance(tree, dict | list | tuple):
        items: Iterable[Any] = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, value in items:
            yield from _leaves(f"{name}/{key}", value, value_of)
    elif isinstance(tree, str | int | float | bool | type(None)):
        yield name, tree
    else:
        yield name, type(tree).__name__
