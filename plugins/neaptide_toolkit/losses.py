"""The loss function of a run: the user's, or the loss that the model itself computes.

`loss_of` is the entry point of the group `neaptide.losses`.
"""

from __future__ import annotations

import inspect
import math
import traceback
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide.api import rng
from neaptide.api.steps import Loss, WeighedLoss
from neaptide.errors import DataError, ModelError
from neaptide.targets import IGNORED
from neaptide.text import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neaptide.api.task import LossFn

_NO_GRAPH = "does not require grad"
"""Part of the text of the error that torch raises for a gradient of a tensor without a graph."""
_ELEMENTS = 1 << 24
"""Logits that are converted to float32 at once."""


def loss_of(given: LossFn | None, log: Any = None) -> LossFn:
    """Return the loss function of a run; `given` is the user's, or None for the model's own.

    `log` is the run's log, or None. The function logs there once if its loss is one per token.
    """
    if isinstance(given, MeasuredLoss):
        return attrs.evolve(given, log=log)
    return MeasuredLoss(given or ModelLoss(), log)


@attrs.define(eq=False)
class ModelLoss:
    """Returns `model(**batch).loss`, weighed by the number of targets that are not -100.

    This is the loss function if the user gives no `loss_fn`. The mean may be over `labels` as they
    are, or without the first position (causal models). The first batch shows which one: its loss is
    compared with the cross-entropy of `logits`. If both are equal, the positions tell whose logits
    have a gradient. If it is neither, the loss is a mean over samples. If the batch has
    `num_items_in_batch`, the loss is a sum that was divided by it.
    """

    __repr__ = one_line
    _shift: int | None = None
    """Number of positions without a prediction; None if it is not known."""
    _decided: bool = False

    def __call__(
        self, model: torch.nn.Module, batch: Mapping[str, Any]
    ) -> torch.Tensor | Loss | WeighedLoss:
        """Raise DataError if the batch is not a mapping or the output has no loss."""
        output = _output(model, batch)
        loss = _part(output, "loss")
        if not isinstance(loss, torch.Tensor):
            msg = (
                f"without loss_fn the model must return an object with .loss "
                f"(got {type(output).__name__}, its loss is {loss!r}); pass loss_fn, or labels "
                f"in the batch"
            )
            raise DataError(msg)
        labels, logits = batch.get("labels"), _part(output, "logits")
        if not isinstance(labels, torch.Tensor) or labels.dtype != torch.int64 or loss.numel() > 1:
            return loss
        divisor = batch.get("num_items_in_batch")
        if not self._decided and isinstance(logits, torch.Tensor):
            self._decide(loss, logits, labels, divisor)
        per_token = labels.ndim > 1  # labels of shape `[batch]` are classes of samples
        if divisor is not None:
            # Models that take a divisor are causal, unless the comparison says otherwise.
            shift = int(per_token) if self._shift is None else self._shift
            count = _count(labels, shift).to(loss.device)
            return Loss(loss * divisor, count, per_token=per_token and self._shift is not None)
        if self._shift is None:
            if self._decided or bool((labels != IGNORED).any()):
                return loss
            return WeighedLoss(loss.reshape(()), _count(labels, 0).to(loss.device), is_sum=False)
        count = _count(labels, self._shift).to(loss.device)
        return WeighedLoss(loss.reshape(()), count, is_sum=False, per_token=per_token)

    def _decide(
        self, loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor, divisor: Any
    ) -> None:
        """Compare `loss` with both means; if the batch cannot tell them apart, decide later."""
        means, value = [], float(loss.detach())
        for shift in (0, 1):
            total = _cross_entropy(logits, labels, shift)
            count = int(_count(labels, shift)) if divisor is None else float(divisor)
            means.append(total / count if count else math.nan)
        coarser = min(loss.dtype, logits.dtype, key=lambda dtype: dtype.itemsize)
        tolerance = 16 * torch.finfo(coarser).eps
        near = [math.isclose(mean, value, rel_tol=tolerance) for mean in means]
        if all(near):
            self._shift = _with_gradients(loss, logits, labels)
            if self._shift is None:
                self._shift = _much_nearer(means, value, torch.finfo(loss.dtype).eps)
        elif any(near):
            self._shift = near.index(True)
        self._decided = math.isfinite(value) and (self._shift is not None or not any(near))


def _output(model: torch.nn.Module, batch: Mapping[str, Any]) -> Any:
    if not hasattr(batch, "keys"):
        msg = (
            f"without loss_fn a batch must be a mapping for model(**batch).loss "
            f"(got {type(batch).__name__}); pass loss_fn=lambda model, batch: …"
        )
        raise DataError(msg)
    try:
        return model(**batch)
    except TypeError as error:
        try:
            inspect.signature(model.forward).bind(**batch)
        except TypeError as unbound:
            msg = (
                f"without a loss_fn the model is called as model(**batch), and its forward does "
                f"not take this batch: {unbound} (keys: {', '.join(map(str, batch))}); pass "
                f"loss_fn, or make the factory of model.name return (module, loss_fn)"
            )
            raise DataError(msg) from error
        raise


def _part(output: Any, name: str) -> Any:
    return output.get(name) if isinstance(output, dict) else getattr(output, name, None)


def _count(labels: torch.Tensor, shift: int) -> torch.Tensor:
    return (labels[..., shift:] != IGNORED).sum()


def _with_gradients(loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> int | None:
    """Return the shift for which exactly the counted positions have a gradient; None if unknown."""
    if not (loss.requires_grad and logits.requires_grad):
        return None
    (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True, allow_unused=True)
    if gradient is None:
        return None
    found = gradient.ne(0).any(dim=-1)
    for shift in (0, 1):
        counted = labels[..., shift:] != IGNORED
        if torch.equal(found, torch.nn.functional.pad(counted, (0, shift))):
            return shift
    return None


def _much_nearer(means: list[float], value: float, eps: float) -> int | None:
    """Return the place of the mean that is much nearer to `value` than the other one, or None."""
    gaps = [abs(mean - value) for mean in means]
    far = max(gaps)
    return gaps.index(min(gaps)) if far > 8 * max(min(gaps), eps * abs(value)) else None


@torch.no_grad()
def _cross_entropy(logits: torch.Tensor, labels: torch.Tensor, shift: int) -> float:
    """Return the sum of cross-entropies, chunk by chunk; nan if these are no logits and targets."""
    if logits.shape[:-1] != labels.shape or labels.ndim <= shift:
        return math.nan
    classes = logits.shape[-1]
    rows = logits[..., : logits.shape[-2] - shift, :].reshape(-1, classes)
    targets = labels[..., shift:].reshape(-1)
    if bool((targets >= classes).any()):
        return math.nan
    step, total = max(1, _ELEMENTS // max(1, classes)), 0.0
    for start in range(0, len(rows), step):
        some, wanted = rows[start : start + step].float(), targets[start : start + step]
        total += float(torch.nn.functional.cross_entropy(some, wanted, reduction="sum"))
    return total


@attrs.define(eq=False)
class MeasuredLoss:
    """Calls `loss_fn`, also where no gradients are wanted and `loss_fn` itself needs them.

    An example is a gradient penalty (`torch.autograd.grad` inside) in an evaluation.
    """

    __repr__ = one_line
    _loss_fn: LossFn
    _log: Any = None
    _needs_graph: bool | None = attrs.field(default=None, init=False)
    """None until the first call without gradients."""

    def __call__(self, model: torch.nn.Module, batch: Any) -> Any:
        """Return the result of `loss_fn`; without gradients, it has no graph."""
        enabled = torch.is_grad_enabled()
        found = self._loss_fn(model, batch) if enabled else self._without_graph(model, batch)
        if self._log is not None and getattr(found, "per_token", False):
            self._log.info("loss.per_token")
            self._log = None
        return found

    def _without_graph(self, model: torch.nn.Module, batch: Any) -> Any:
        if not self._needs_graph:
            state = rng.capture() if self._needs_graph is None else None
            self._needs_graph = False
            try:
                return self._loss_fn(model, batch)
            except RuntimeError as error:
                if _NO_GRAPH not in str(error):
                    raise
                if _is_of_backward(error):
                    msg = (
                        "loss_fn runs a backward of its own, which would leave gradients in an "
                        "evaluation or a probe; use torch.autograd.grad for the gradients it needs"
                    )
                    raise ModelError(msg) from error
            self._needs_graph = True
            if state is not None:
                rng.restore(state)
        with torch.enable_grad():
            found = self._loss_fn(model, batch)
        if isinstance(found, Loss):
            return attrs.evolve(found, sum=found.sum.detach())
        if isinstance(found, WeighedLoss):
            return attrs.evolve(found, value=found.value.detach())
        return found.detach() if isinstance(found, torch.Tensor) else found


def _is_of_backward(error: BaseException) -> bool:
    """Return whether `loss.backward()`, and not `torch.autograd.grad`, raised the error."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is torch.autograd.backward.__code__ for frame, _ in frames)
