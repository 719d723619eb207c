"""The ops and their providers: which provider runs a call, why, and what happens when it fails."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import attrs
import torch

from neaptide.errors import NeaptideError, is_out_of_memory, suggest

from . import timings as tables
from .agreement import disagreements
from .measuring import time_providers
from .op import Op
from .provider import REFERENCE, Provider
from .query import query_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from .query import Query
    from .spec import OpSpec
    from .timings import Timing

Tuning = Literal["off", "cached", "tune"]
_REMEMBERED = 4096


class KernelError(NeaptideError):
    """A kernel that was asked for cannot run, or one failed after it may have written."""

    exit_code = 2


class KernelWarning(RuntimeWarning):
    """A provider failed and is not used any more; the reference takes over."""


@attrs.frozen
class Choice:
    """The provider of a call, how it is called, and why it is this one."""

    provider: Provider
    config: Mapping[str, Any]
    why: str


@attrs.frozen
class Judged:
    """One provider in an explanation."""

    provider: str
    usable: bool
    reason: str
    """Why it is refused; empty where it is usable."""
    priority: int
    seconds: float | None
    """What was measured for calls of this size; None where nothing was."""


@attrs.frozen
class Explanation:
    """Which provider would run a call, and what keeps each of the others from it."""

    op: str
    chosen: str
    why: str
    providers: tuple[Judged, ...]


class Kernels:
    """The ops of this process. torch's own registry of ops is one for all, and so is this."""

    def __init__(self, path: Path | None = None) -> None:
        self._ops: dict[str, Op] = {}
        self._providers: dict[str, dict[str, Provider]] = {}
        self._quarantined: dict[tuple[str, str], str] = {}
        self._tried: set[tuple[str, str, str]] = set()
        self._requested: dict[str, str] = {}
        self._choices: dict[Query, Choice] = {}
        self._path = path
        self._timings: dict[str, tuple[Timing, ...]] | None = None
        self._tuning: Tuning = "cached"

    # -- what there is --------------------------------------------------------------------------

    def define(self, spec: OpSpec) -> Op:
        """Register an op with torch, and its reference as its first provider."""
        if spec.name in self._ops:
            msg = f"op {spec.name!r} is defined already, as {self._ops[spec.name].spec.summary!r}"
            raise ValueError(msg)
        op = Op(spec, lambda arguments: self.run(spec.name, arguments))
        self._ops[spec.name] = op
        reference = Provider(op=spec.name, name=REFERENCE, run=spec.reference)
        self._providers[spec.name] = {REFERENCE: reference}
        return op

    def add(self, provider: Provider) -> None:
        """Add a provider; ValueError where the op is unknown or has one of that name."""
        known = self._providers.get(provider.op)
        if known is None:
            msg = f"there is no op {provider.op!r}{suggest(provider.op, self._ops)}"
            raise ValueError(msg)
        if provider.name in known:
            msg = (
                f"op {provider.op!r} has a provider {provider.name!r} already; choose another name"
            )
            raise ValueError(msg)
        known[provider.name] = provider
        self._choices.clear()

    def remove(self, provider: Provider) -> None:
        """Take a provider out again; nothing happens where it is not in."""
        if self._providers.get(provider.op, {}).get(provider.name) is provider:
            del self._providers[provider.op][provider.name]
            self._quarantined.pop((provider.op, provider.name), None)
            self._tried = {
                tried for tried in self._tried if tried[:2] != (provider.op, provider.name)
            }
            self._choices.clear()

    @property
    def ops(self) -> Mapping[str, Op]:
        """The ops by name."""
        return self._ops

    def providers(self, op: str) -> tuple[Provider, ...]:
        """Return an op's providers, the reference first; KernelError for an unknown op."""
        self._known(op)
        return tuple(self._providers[op].values())

    # -- what is chosen --------------------------------------------------------------------------

    @contextmanager
    def using(self, *, tuning: Tuning | None = None, **providers: str) -> Iterator[None]:
        """Ask for providers by op (`quantize_int8="triton"`), or for a way to tune, inside `with`.

        A provider that is asked for and cannot run a call raises KernelError: nothing else takes
        over silently.
        """
        for op, name in providers.items():
            self._known(op)
            if name not in self._providers[op]:
                known = self._providers[op]
                msg = (
                    f"op {op!r} has no provider {name!r}{suggest(name, known)}; there is "
                    f"{', '.join(known)}"
                )
                raise KernelError(msg)
        before, how = dict(self._requested), self._tuning
        self._requested.update(providers)
        self._tuning = tuning or how
        self._choices.clear()
        try:
            yield
        finally:
            self._requested, self._tuning = before, how
            self._choices.clear()

    def query(self, op: str, arguments: Sequence[Any]) -> Query:
        """Return what a call asks of providers; arguments left out have their defaults."""
        known = self._known(op)
        return query_of(op, known.names, known.complete(arguments))

    def choose(self, query: Query, arguments: Sequence[Any] | None = None) -> Choice:
        """Return who runs a call; with arguments, tuning may measure first."""
        asked = self._requested.get(query.op)
        if asked is not None:
            provider = self._providers[query.op][asked]
            reason = self._refusal(provider, query)
            if reason:
                msg = f"provider {asked!r} was asked for and cannot run {query.op!r}: {reason}"
                raise KernelError(msg)
            return Choice(provider, self._best_config(provider, query), "asked for")
        usable = {
            provider.name: provider
            for provider in self._providers[query.op].values()
            if not self._refusal(provider, query)
        }
        for timing in self._measured(query, usable, arguments):
            measured = usable.get(timing.provider)
            if measured is not None and measured.version == timing.version:
                return Choice(measured, timing.config, "the fastest one measured")
        first = max(usable.values(), key=lambda provider: provider.priority)
        why = "the highest priority" if len(usable) > 1 else "the only one"
        return Choice(first, self._best_config(first, query), why)

    def explain(self, op: str, arguments: Sequence[Any]) -> Explanation:
        """Say which provider would run a call, and why not the others; nothing is run."""
        query = self.query(op, arguments)
        seconds: dict[str, float] = {}
        for timing in self._table().get(tables.key_of(query), ()):
            seconds.setdefault(timing.provider, timing.seconds)
        judged = tuple(
            Judged(
                provider.name,
                not (reason := self._refusal(provider, query)),
                reason,
                provider.priority,
                seconds.get(provider.name),
            )
            for provider in self._providers[op].values()
        )
        choice = self.choose(query)
        return Explanation(op, choice.provider.name, choice.why, judged)

    # -- what runs -------------------------------------------------------------------------------

    def run(self, op: str, arguments: Sequence[Any]) -> Any:
        """Run an op on all of its arguments: what torch's dispatcher calls."""
        spec = self._ops[op].spec
        if spec.check is not None:
            spec.check(*arguments)
        query = query_of(op, self._ops[op].names, arguments)
        choice = self._choices.get(query)
        if choice is None:
            choice = self._admitted(query, arguments)
        if choice.provider.name == REFERENCE or op in self._requested:
            return choice.provider.run(*arguments, **choice.config)
        try:
            return choice.provider.run(*arguments, **choice.config)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self.quarantine(choice.provider, f"{type(error).__name__}: {error}")
            if spec.mutates:
                msg = (
                    f"provider {choice.provider.name!r} of {op!r} failed and may have written half "
                    f"of {', '.join(sorted(spec.mutates))}: resume from a checkpoint; it is not "
                    f"used again in this process"
                )
                raise KernelError(msg) from error
        return spec.reference(*arguments)

    def tune(self, op: str, arguments: Sequence[Any]) -> tuple[tuple[Timing, ...], dict[str, str]]:
        """Time every usable provider on these arguments, and keep what was found.

        Returns the timings, fastest first, and who was refused and why. The arguments may be
        written to.
        """
        arguments = self._ops[op].complete(arguments)
        query = self.query(op, arguments)
        refused: dict[str, str] = {}
        usable: list[Provider] = []
        for provider in self._providers[op].values():
            reason = self._refusal(provider, query)
            if reason:
                refused[provider.name] = reason
            else:
                usable.append(provider)
        measured, wrong = time_providers(self._ops[op].spec, usable, query, arguments)
        key = tables.key_of(query)
        tables.merge(self._file(), {key: measured})
        self._table()[key] = measured
        self._choices.clear()
        return measured, refused | wrong

    def quarantine(self, provider: Provider, reason: str) -> None:
        """Never use a provider again in this process; warns once."""
        reason = " ".join(reason.split())
        self._quarantined[provider.op, provider.name] = reason
        self._choices.clear()
        warnings.warn(
            f"kernel provider {provider.name!r} of {provider.op!r} is not used any more, the next "
            f"best takes over: {reason}",
            KernelWarning,
            stacklevel=2,
        )

    # -- inside ----------------------------------------------------------------------------------

    def _admitted(self, query: Query, arguments: Sequence[Any]) -> Choice:
        """Choose, trying whoever has not run yet on small samples first."""
        while True:
            choice = self.choose(query, arguments)
            wrong = self._wrong(choice, query)
            if wrong is None:
                break
            if query.op in self._requested:
                msg = (
                    f"provider {choice.provider.name!r} was asked for and fails its trial: {wrong}"
                )
                raise KernelError(msg)
            self.quarantine(choice.provider, wrong)
        if len(self._choices) >= _REMEMBERED:
            self._choices.clear()
        self._choices[query] = choice
        return choice

    def _wrong(self, choice: Choice, query: Query) -> str | None:
        provider = choice.provider
        tried = (provider.op, provider.name, query.device)
        if provider.name == REFERENCE or tried in self._tried:
            return None
        if query.device == "cuda" and torch.cuda.is_current_stream_capturing():
            return None  # a trial waits for its results, which a capture does not allow
        spec = self._ops[query.op].spec
        for sample in spec.samples(torch.device(query.device)):
            if self._refusal(provider, self.query(query.op, sample.arguments)):
                continue
            arguments = self._ops[query.op].complete(sample.arguments)
            for problem in disagreements(spec, provider, arguments):
                return f"on the sample {sample.name!r}: {problem}"
        self._tried.add(tried)
        return None

    def _refusal(self, provider: Provider, query: Query) -> str:
        """Return why a provider does not run a call; empty where it does."""
        held = self._quarantined.get((provider.op, provider.name))
        if held is not None:
            return f"quarantined: {held}"
        try:
            answer = provider.supports(query)
        except Exception as error:  # noqa: BLE001 - a stranger's code may raise anything
            return f"its supports() raised {type(error).__name__}: {error}"
        return "" if answer is True else str(answer) or "it gives no reason"

    def _best_config(self, provider: Provider, query: Query) -> Mapping[str, Any]:
        for timing in self._table().get(tables.key_of(query), ()) if self._tuning != "off" else ():
            if timing.provider == provider.name and timing.version == provider.version:
                return timing.config
        return next(iter(provider.configs(query)), {})

    def _measured(
        self, query: Query, usable: Mapping[str, Provider], arguments: Sequence[Any] | None
    ) -> Iterable[Timing]:
        if self._tuning == "off":
            return ()
        known = self._table().get(tables.key_of(query))
        if known is None and self._tuning == "tune" and arguments is not None:
            copies = _copies(arguments)
            spec = self._ops[query.op].spec
            known, _ = time_providers(spec, usable.values(), query, copies)
            tables.merge(self._file(), {tables.key_of(query): known})
            self._table()[tables.key_of(query)] = known
        return known or ()

    def _table(self) -> dict[str, tuple[Timing, ...]]:
        if self._timings is None:
            self._timings = tables.read(self._file())
        return self._timings

    def _file(self) -> Path:
        return self._path or tables.default_path()

    def _known(self, op: str) -> Op:
        if op not in self._ops:
            msg = f"there is no op {op!r}{suggest(op, self._ops)}; see neaptide kernels list"
            raise KernelError(msg)
        return self._ops[op]


def _copies(arguments: Sequence[Any]) -> list[Any]:
    return [
        value.clone()
        if isinstance(value, torch.Tensor)
        else [each.clone() if isinstance(each, torch.Tensor) else each for each in value]
        if isinstance(value, list | tuple)
        else value
        for value in arguments
    ]
