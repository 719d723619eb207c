"""Decide which providers may run: those that passed a trial, did not fail, and support the call."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from .agreement import first_disagreement
from .faults import KernelWarning
from .provider import REFERENCE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .provider import Provider
    from .query import Query
    from .spec import OpSpec


class ProviderTrials:
    """The results of all trials of providers in a process."""

    def __init__(self) -> None:
        self._quarantined: dict[tuple[str, str], str] = {}
        self._passed: set[tuple[object, ...]] = set()

    def forget(self, provider: Provider) -> None:
        """Delete all results of a provider."""
        key = (provider.op, provider.name)
        self._quarantined.pop(key, None)
        self._passed = {passed for passed in self._passed if passed[:2] != key}

    def quarantine(self, provider: Provider, reason: str) -> None:
        """Refuse a provider from now on, with a warning."""
        reason = " ".join(reason.split())
        self._quarantined[provider.op, provider.name] = reason
        warnings.warn(
            f"kernel provider {provider.name!r} of {provider.op!r} is disabled, and the next best "
            f"one is used: {reason}",
            KernelWarning,
            stacklevel=2,
        )

    def refusal(self, provider: Provider, query: Query) -> str:
        """Return why a provider cannot run a call; empty if the provider can run the call."""
        held = self._quarantined.get((provider.op, provider.name))
        if held is not None:
            return f"quarantined: {held}"
        asked = "supports"
        try:
            answer = provider.supports(query)
            if answer is True:
                for asked in ("configs", "workspace_bytes", "fewest"):
                    getattr(provider, asked)(query)
        except Exception as error:  # noqa: BLE001 - a stranger's code may raise anything
            return f"its {asked}() raised {type(error).__name__}: {error}"
        if answer is True:
            return ""
        if isinstance(answer, str) and answer:
            return answer
        return f"its supports() returned {answer!r}, neither True nor a reason"

    def needed(self, provider: Provider, query: Query, config: Mapping[str, Any]) -> bool:
        """Return whether a provider is untried with a config, for a call's device and dtypes."""
        return provider.name != REFERENCE and _kind(provider, query, config) not in self._passed

    def hold(
        self, provider: Provider, query: Query, config: Mapping[str, Any], spec: OpSpec
    ) -> str | None:
        """Try a provider on the op's samples. Return the first fault, or record the success."""
        wrong = first_disagreement(spec, provider, query, config)
        if wrong is not None:
            return wrong
        self._passed.add(_kind(provider, query, config))
        return None


def _kind(provider: Provider, query: Query, config: Mapping[str, Any]) -> tuple[object, ...]:
    chosen = tuple(sorted(config.items()))
    return (provider.op, provider.name, chosen, query.device, query.dtypes)
