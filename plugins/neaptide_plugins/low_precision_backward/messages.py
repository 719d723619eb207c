"""Log events and the report of a low-precision backward."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import structlog

    from .lowering import Lowering
    from .meter import VarianceVerdict


def started(log: structlog.BoundLogger, lowering: Lowering) -> None:
    """Log the chosen weights, or a warning if there are none."""
    chosen = lowering.chosen
    facts = {"dtype": lowering.dtype, "left_out": chosen.left_out}
    if chosen.names:
        log.info(
            "low-precision-backward.started",
            weights=len(chosen.names),
            sampled=lowering.sampled.elements,
            **facts,
        )
    else:
        advice = "the plugin has no effect: lower min_elements, or name weights in include"
        log.warning("low-precision-backward.no_weights", advice=advice, **facts)


def measured(log: structlog.BoundLogger, verdict: VarianceVerdict, metric: str) -> None:
    """Log the measurement if it passed; else log that all later backwards are exact."""
    if verdict.passed:
        log.info("low-precision-backward.measured", extra_variance=verdict.ratio, metric=metric)
    else:
        log.warning(
            "low-precision-backward.fell_back",
            extra_variance=verdict.ratio,
            metric=metric,
            reason=verdict.reason,
            backward="exact for the rest of the run",
        )


def not_met(log: structlog.BoundLogger, lowering: Lowering) -> None:
    """Log a warning for chosen weights that occurred in no product."""
    unmet = set(lowering.chosen.names.values()) - lowering.handler.met
    if unmet:
        log.warning("low-precision-backward.not_met", weights=len(unmet), one=min(unmet))


def summary(lowering: Lowering) -> str:
    """Return one line with the number of lowered products and the last measurement."""
    handler = lowering.handler
    text = f"{handler.low} products with a backward in {lowering.dtype}"
    if handler.exact:
        text += f", {handler.exact} exact (few rows, or other dtypes)"
    if lowering.ratio is not None:
        text += f"; extra variance {lowering.ratio:.2%} at the last measurement"
    return f"{text}; fell back: {lowering.refused}" if lowering.refused else text
