"""The plugin: computes metrics from the forwards of an evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide import DataError, Plugin, hookimpl
from neaptide.api.steps import MEASURED
from neaptide.run.defaults import import_object
from neaptide.run.feed import moved
from neaptide.tensors import batch_length

from .accuracy import Alignment, align, correct_of
from .config import BUILT_IN, MetricsConfig, name_of
from .outputs import logits_of, outputs_of
from .sums import Sums, perplexity, weighed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from neaptide import AroundEvaluate, AroundForward, Run, WeighedLoss

_WHERE = "plugins.metrics.compute"


@attrs.define(eq=False)
class MetricsPlugin(Plugin[MetricsConfig]):
    """Adds up each metric over the batches. The forward is the one that computes the loss."""

    _run: Run = attrs.field(init=False)
    _functions: dict[str, Callable[..., Any]] = attrs.field(init=False, factory=dict)
    _sums: Sums | None = attrs.field(init=False, default=None)
    _alignment: Alignment | None = attrs.field(init=False, default=None)
    _last: tuple[int, dict[str, float]] | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        """Import the functions; ConfigError if one cannot be found."""
        for metric in self.config.compute:
            if metric not in BUILT_IN:
                self._functions[name_of(metric)] = import_object(metric, _WHERE)

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        """Remember the log, the stash and the device."""
        self._run = run

    @hookimpl
    def around_evaluate(self) -> AroundEvaluate:
        """Add up the metrics of one evaluation."""

        def measured(following: Callable[..., float], **arguments: Any) -> float:
            self._sums = sums = Sums()
            try:
                loss = following(**arguments)
            finally:
                self._sums = None
            values = sums.means()
            if "perplexity" in self.config.compute:
                values["perplexity"] = perplexity(loss)
            names = map(name_of, self.config.compute)
            named = {name: values[name] for name in names if name in values}
            self._run.stash.set(MEASURED, named)
            return loss

        return measured

    @hookimpl
    def around_forward(self) -> AroundForward | None:
        """Take the model's output of each batch of an evaluation."""
        if self.config.compute == ("perplexity",):
            return None

        def seen(
            following: Callable[..., WeighedLoss],
            *,
            model: torch.nn.Module,
            batch: Any,
            moment: str,
            **others: Any,
        ) -> WeighedLoss:
            if self._sums is None or moment != "evaluate":
                return following(model=model, batch=batch, moment=moment, **others)
            with outputs_of(model) as outputs:
                loss = following(model=model, batch=batch, moment=moment, **others)
            if len(outputs) != 1:
                msg = (
                    f"metrics need one call of the model for a batch, and loss_fn made "
                    f"{len(outputs)}; leave only perplexity @ {_WHERE}"
                )
                raise DataError(msg)
            self._take(self._sums, outputs[0], batch, loss)
            return loss

        return seen

    def _take(self, sums: Sums, output: Any, batch: Any, loss: WeighedLoss) -> None:
        if "accuracy" in self.config.compute:
            self._take_accuracy(sums, output, batch, loss)
        there = moved(batch, self._run.device) if self._functions else batch
        for name, function in self._functions.items():
            try:
                returned = function(output, there)
            except Exception as error:
                error.add_note(f"raised by the function {name!r} @ {_WHERE}")
                raise
            sums.add(name, *weighed(returned, batch_length(batch), name))

    def _take_accuracy(self, sums: Sums, output: Any, batch: Any, loss: WeighedLoss) -> None:
        logits = logits_of(output)
        if logits is None:
            msg = (
                f"accuracy needs logits, and the model returned {type(output).__name__} @ {_WHERE}"
            )
            raise DataError(msg)
        key = self.config.targets
        if self._alignment is None:
            self._alignment = align(logits, batch, loss.mean, key=key, shift=self.config.shift)
        if self._alignment is not None:
            sums.add("accuracy", *correct_of(*self._alignment.pairs(logits, batch, key)))

    @hookimpl
    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Remember the newest evaluation of `fit` for the report."""
        if "val_loss" in metrics:
            names = map(name_of, self.config.compute)
            self._last = step, {name: metrics[name] for name in names if name in metrics}

    def report(self) -> str | None:
        """Return the metrics of the newest evaluation of `fit`."""
        if self._last is None:
            return None
        step, values = self._last
        return "\n".join(
            [f"metrics at update {step}", *(f"  {n} {v:.6g}" for n, v in values.items())]
        )
