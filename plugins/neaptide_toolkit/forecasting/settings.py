"""Settings that all plugins `dynamics-*` have. The module is read without torch."""

from __future__ import annotations

import attrs
from attrs.validators import and_, ge, lt

from neaptide.config import field


@attrs.frozen(kw_only=True)
class ForecastSettings:
    """When a forecast is made, what it forecasts, and when it is used."""

    horizons: tuple[int, ...] = field(
        (20, 50, 200),
        help="forecast distances in updates, in rising order; values between them are interpolated",
    )
    every: int = field(5, validator=ge(1), help="updates between two training samples")
    around: int = field(
        12,
        validator=ge(0),
        help="a forecast predicts the mean loss over several updates: from this many updates "
        "before the horizon to this many after it",
    )
    smoothing: float = field(
        0.92,
        validator=and_(ge(0.0), lt(1.0)),
        help="decay of the exponential average that serves as the current loss",
    )
    least: int = field(
        10,
        validator=ge(1),
        help="forecasts of a horizon are used once this many of them have been compared with the "
        "observed losses",
    )

    @horizons.validator
    def _horizons_rise(
        self, _attribute: attrs.Attribute[tuple[int, ...]], value: tuple[int, ...]
    ) -> None:
        if not value or value[0] < 1 or sorted(set(value)) != list(value):
            msg = f"'horizons' must be integers >= 1 in rising order (got {list(value)})"
            raise ValueError(msg)
