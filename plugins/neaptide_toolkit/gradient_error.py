"""Measure the error of approximate gradients during a run.

A plugin uses these functions in its hook `around_forward`. There the plugin computes the
approximate and the exact gradients of the same micro-batch.
"""

from __future__ import annotations

import math
from contextvars import ContextVar
from typing import TYPE_CHECKING

import attrs
import torch

from neaptide import buffers
from neaptide.api import rng
from neaptide.devices import widest
from neaptide.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from neaptide.api.parameters import ParameterStore
    from neaptide.api.spans import Span
    from neaptide.api.steps import WeighedLoss

    Gradients = Sequence[torch.Tensor | None]

ELEMENTS = 4_000_000
"""Default number of sampled elements: 16 MB of float32 gradients."""


@attrs.frozen(eq=False)
class Sampled:
    """The parameters whose gradients are compared."""

    names: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]
    elements: int
    """Number of elements of all these parameters together."""
    missing: str | None
    """The reason why `parameters` is empty, in one line; None if there are parameters."""

    __repr__ = one_line


def sample(
    model: nn.Module,
    store: ParameterStore,
    *,
    elements: int = ELEMENTS,
    wanted: Callable[[Span], bool] = lambda _: True,
) -> Sampled:
    """Choose whole trainable parameters on the device, of at most `elements` elements in total.

    The choice depends only on names and shapes, so a resumed run measures the same parameters. If
    there are too many elements, the chosen parameters are spread over the depth of the model. At
    least the smallest parameter is chosen. Parameters in RAM are excluded, because they are on the
    device only while their block runs.

    Args:
        model: the model with these parameters.
        store: the parameter store. Its spans (the records of the parameters) state where each
            parameter is stored.
        elements: the largest total number of elements.
        wanted: called with the span of each trainable parameter; False excludes the parameter.
    """
    trainable = [span for span in store.spans() if span.trainable and wanted(span)]
    known = dict(model.named_parameters())
    order = {name: place for place, name in enumerate(known)}
    here = sorted(
        (span for span in trainable if span.tier == "device"), key=lambda span: order[span.name]
    )
    if not here:
        return Sampled((), (), 0, _nothing(store, trainable))
    sizes = {span.name: math.prod(span.shape) for span in here}
    chosen, total = set[str](), 0
    for name in _spread([span.name for span in here]):
        if total + sizes[name] <= elements:
            chosen.add(name)
            total += sizes[name]
    if not chosen:
        smallest = min(sizes, key=lambda name: (sizes[name], order[name]))
        chosen, total = {smallest}, sizes[smallest]
    names = tuple(sorted(chosen, key=order.__getitem__))
    return Sampled(names, tuple(known[name] for name in names), total, None)


def _nothing(store: ParameterStore, trainable: Sequence[Span]) -> str:
    if trainable:
        tiers = "/".join(sorted({span.tier for span in trainable}))
        return (
            f"none of the {len(trainable)} eligible parameters stays on the device (they are "
            f"on: {tiers}), so their gradients cannot be computed beside a run"
        )
    if any(span.trainable for span in store.spans()):
        return "none of the trainable parameters is eligible"
    return "the model has no trainable parameters"


def _spread(names: Sequence[str]) -> list[str]:
    """Return `names` reordered so that each prefix is spread evenly over the whole list."""
    bits = max(1, (len(names) - 1).bit_length())
    places = (int(format(index, f"0{bits}b")[::-1], 2) for index in range(2**bits))
    return [names[place] for place in places if place < len(names)]


_measured: ContextVar[bool] = ContextVar("measured", default=False)


def is_measured() -> bool:
    """Return whether the current forward is part of a measurement.

    During a measurement, a plugin that approximates gradients must compute exactly and must not
    start its own measurement. There are two reasons. The measurement's backward runs outside the
    hook `around_backward`. And only one approximation is measured at a time.
    """
    return _measured.get()


def gradients(
    model: nn.Module,
    store: ParameterStore,
    call: Callable[[], WeighedLoss],
    parameters: Sequence[nn.Parameter],
    *,
    loss_scale: float = 1.0,
) -> list[torch.Tensor | None]:
    """Return the gradients of the mean loss of `call()`, and do not change the run.

    Buffers, module modes, random state and every `.grad` are unchanged afterwards. Each call starts
    from the same random state, so dropout is the same in all calls.

    Args:
        model: the model whose buffers and modes are restored.
        store: makes the weights available during the computation.
        call: runs model and loss, like the `next` that the hook `around_forward` gets. A context
            manager that is active around `gradients` is also active during the backward.
        parameters: as chosen by `sample`; parameters frozen since then count as unused.
        loss_scale: for fp16 gradients, a power of two. The loss is multiplied by `loss_scale`, and
            the gradients are divided by `loss_scale`.

    Returns:
        One tensor for each parameter, in its shape and dtype; None if the loss does not use it.

    Raises:
        ValueError: all `parameters` are frozen, or the loss depends on no trainable parameter.
    """
    modes = {module: module.training for module in model.modules()}
    wanted = [parameter for parameter in parameters if parameter.requires_grad]
    with buffers.preserved(model), rng.preserved():
        try:
            with torch.enable_grad():
                loss = _called(call).mean
                if not (wanted and loss.requires_grad):
                    msg = "the loss depends on no trainable parameter, so it has no gradients"
                    raise ValueError(msg)
                scaled = loss if loss_scale == 1.0 else loss * loss_scale
            # The backward runs without autocast, as in the loop.
            with store.compute(), torch.autocast(scaled.device.type, enabled=False):
                found = torch.autograd.grad(scaled, wanted, allow_unused=True)
        finally:
            for module, training in modes.items():
                module.training = training
    if loss_scale != 1.0:
        found = tuple(None if gradient is None else gradient / loss_scale for gradient in found)
    known = dict(zip(wanted, found, strict=True))
    return list(map(known.get, parameters))


def _called(call: Callable[[], WeighedLoss]) -> WeighedLoss:
    token = _measured.set(True)
    try:
        return call()
    finally:
        _measured.reset(token)


@attrs.frozen
class GradientError:
    """The error of approximate gradients: norms and inner product, over all tensors together."""

    squared: float
    """Squared L2 norm of the difference."""
    exact: float
    """Squared L2 norm of the exact gradients."""
    approximate: float
    """Squared L2 norm of the approximate gradients."""
    product: float
    """Inner product of exact and approximate gradients."""

    __repr__ = one_line

    @property
    def finite(self) -> bool:
        """True if the error is a finite number. It is False if a gradient has an inf or NaN."""
        return all(map(math.isfinite, (self.squared, self.exact, self.approximate)))

    @property
    def relative(self) -> float:
        """L2 norm of the difference / L2 norm of the exact gradients; 0 if both norms are 0."""
        if self.squared == 0:
            return 0.0
        return math.sqrt(self.squared / self.exact) if self.exact else math.inf

    @property
    def cosine(self) -> float:
        """Cosine between the gradients, in [-1, 1]; 1 if both are zero, 0 if only one is zero."""
        norms = math.sqrt(self.exact) * math.sqrt(self.approximate)
        if not norms:
            return 1.0 if self.exact == self.approximate else 0.0
        return max(-1.0, min(1.0, self.product / norms)) if math.isfinite(norms) else math.nan


def compare(
    exact: Gradients, approximate: Gradients, *, factors: Gradients | None = None
) -> GradientError:
    """Return the error of the gradients `approximate`; a gradient of None counts as zeros.

    Sums are computed in float64, where the device has it, and copied to the host once.

    Args:
        exact: one tensor, or None, for each parameter.
        approximate: one tensor, or None, for each parameter, in the same order.
        factors: one tensor, or None, for each parameter. Both gradients of the parameter are
            first multiplied by this factor. With the factor `1 / (sqrt(v) + eps)` the error is
            measured in Adam's metric. None means the factor 1.

    Raises:
        ValueError: the sequences have different lengths.
    """
    total: torch.Tensor | None = None
    for place, (one, other) in enumerate(zip(exact, approximate, strict=True)):
        factor = None if factors is None else factors[place]
        sums = _sums(one, other, factor)
        if sums is not None:
            total = sums if total is None else total + sums.to(total.device)
    if total is None:
        return GradientError(0.0, 0.0, 0.0, 0.0)
    return GradientError(*total.tolist())


@torch.no_grad()
def _sums(
    exact: torch.Tensor | None, approximate: torch.Tensor | None, factor: torch.Tensor | None
) -> torch.Tensor | None:
    given = exact if exact is not None else approximate
    if given is None:
        return None
    wide = [
        torch.zeros_like(_real(given), dtype=widest(given.device))
        if each is None
        else _real(each).to(widest(given.device))
        for each in (exact, approximate)
    ]
    one, other = (each if factor is None else each * factor for each in wide)
    pairs = ((one - other, one - other), (one, one), (other, other), (one, other))
    return torch.stack([(left * right).sum() for left, right in pairs])


def _real(gradient: torch.Tensor) -> torch.Tensor:
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    return torch.view_as_real(dense) if dense.is_complex() else dense
