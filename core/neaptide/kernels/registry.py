"""The ops and their providers: which provider runs a call, why, and what happens when it fails."""

from __future__ import annotations

import warnings
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import attrs
import torch

from neaptide.errors import NeaptideError, is_out_of_memory, suggest

from . import timings as tables
from .agreement import copied, disagreements
from .choosing import ASKED, Choice, Explanation, Judged, configured, fastest
from .measuring import time_providers
from .op import Op
from .provider import REFERENCE, Provider
from .query import query_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
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


@attrs.frozen(eq=False)
class _Asked:
    """What one `using` asks for."""

    providers: Mapping[str, str]
    tuning: Tuning | None


class Kernels:
    """The ops of this process. torch's own registry of ops is one for all, and so is this."""

    def __init__(self, path: Path | None = None) -> None:
        self._ops: dict[str, Op] = {}
        self._providers: dict[str, dict[str, Provider]] = {}
        self._added: Counter[tuple[str, str]] = Counter()
        self._quarantined: dict[tuple[str, str], str] = {}
        self._tried: set[tuple[str, str, str, tuple[str, ...]]] = set()
        self._asked: list[_Asked] = []
        self._choices: dict[Query, Choice] = {}
        self._path = path
        self._timings: dict[str, tuple[Timing, ...]] | None = None

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
        """Add a provider; ValueError where the op is unknown or has another one of that name.

        One that is added twice, by two runs say, stays until it is removed twice.
        """
        known = self._providers.get(provider.op)
        if known is None:
            msg = f"there is no op {provider.op!r}{suggest(provider.op, self._ops)}"
            raise ValueError(msg)
        if known.get(provider.name, provider) is not provider:
            msg = f"op {provider.op!r} has a provider {provider.name!r} already; rename yours"
            raise ValueError(msg)
        known[provider.name] = provider
        self._added[provider.op, provider.name] += 1
        self._choices.clear()

    def remove(self, provider: Provider) -> None:
        """Take a provider out again; nothing happens where it is not in."""
        key = (provider.op, provider.name)
        if self._providers.get(provider.op, {}).get(provider.name) is not provider:
            return
        self._added[key] -= 1
        if self._added[key] <= 0:
            del self._providers[provider.op][provider.name], self._added[key]
            self._quarantined.pop(key, None)
            self._tried = {tried for tried in self._tried if tried[:2] != key}
            self._choices.clear()

    @property
    def ops(self) -> Mapping[str, Op]:
        """The ops by name."""
        return self._ops

    @property
    def path(self) -> Path:
        """The file that timings are kept in."""
        return self._path or tables.default_path()

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
        asked = _Asked(providers, tuning)
        self._asked.append(asked)
        self._choices.clear()
        try:
            yield
        finally:
            self._asked.remove(asked)
            self._choices.clear()

    def query(self, op: str, arguments: Sequence[Any]) -> Query:
        """Return what a call asks of providers; arguments left out have their defaults."""
        known = self._known(op)
        return query_of(op, known.names, known.spec.complete(arguments))

    def choose(self, query: Query) -> Choice:
        """Return who runs a call."""
        known = () if self._tuning() == "off" else self._table().get(self._key(query), ())
        name = self._requested(query.op)
        if name is None:
            return fastest(self._usable(query), known, query)
        provider = self._providers[query.op][name]
        reason = self._refusal(provider, query)
        if reason:
            msg = f"provider {name!r} was asked for and cannot run {query.op!r}: {reason}"
            raise KernelError(msg)
        return Choice(provider, configured(provider, known, query), ASKED)

    def explain(self, op: str, arguments: Sequence[Any]) -> Explanation:
        """Say which provider would run a call, and why not the others; nothing is run."""
        query = self.query(op, arguments)
        seconds: dict[str, float] = {}
        for timing in self._table().get(self._key(query), ()):
            seconds.setdefault(timing.provider, timing.seconds)
        judged = []
        for provider in self._providers[op].values():
            reason = self._refusal(provider, query)
            workspace = None if reason else provider.workspace_bytes(query)
            measured = seconds.get(provider.name)
            judged.append(Judged(provider.name, reason, provider.priority, measured, workspace))
        choice = self.choose(query)
        return Explanation(op, choice.provider.name, choice.why, tuple(judged))

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
        provider = choice.provider
        try:
            return provider.run(*arguments, **choice.config)
        except Exception as error:
            if provider.name == REFERENCE or choice.why == ASKED or is_out_of_memory(error):
                raise
            failure = error
        said = f"{type(failure).__name__}: {failure}"
        if spec.mutates:
            self.quarantine(provider, said)
            msg = (
                f"provider {provider.name!r} of {op!r} failed and may have written half of "
                f"{', '.join(sorted(spec.mutates))}: go on from a checkpoint; it is not used again"
            )
            raise KernelError(msg) from failure
        result = spec.reference(*arguments)  # where it fails too, the fault is the caller's
        self.quarantine(provider, said)
        return result

    def measure(
        self, op: str, arguments: Sequence[Any], *, keep: bool
    ) -> tuple[tuple[Timing, ...], dict[str, str]]:
        """Time every usable provider on these arguments; `keep` what was found for later choices.

        Returns the timings, fastest first, and who was refused and why. What the op mutates is
        written to.
        """
        arguments = self._known(op).spec.complete(arguments)
        query = self.query(op, arguments)
        usable = self._usable(query)
        refused = {
            provider.name: self._refusal(provider, query)
            for provider in self._providers[op].values()
            if provider.name not in usable
        }
        measured, wrong = time_providers(self._ops[op].spec, usable.values(), query, arguments)
        if keep:
            self._keep(query, measured)
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
        """Choose, measuring first where that is asked for; who has never run is tried first."""
        if self._tuning() == "tune" and self._key(query) not in self._table():
            usable = self._usable(query).values()
            spec = self._ops[query.op].spec
            self._keep(query, time_providers(spec, usable, query, copied(arguments))[0])
        while True:
            choice = self.choose(query)
            wrong = self._wrong(choice, query)
            if wrong is None:
                break
            if choice.why == ASKED:
                msg = f"provider {choice.provider.name!r} was asked for and fails: {wrong}"
                raise KernelError(msg)
            self.quarantine(choice.provider, wrong)
        if len(self._choices) >= _REMEMBERED:
            self._choices.clear()
        self._choices[query] = choice
        return choice

    def _wrong(self, choice: Choice, query: Query) -> str | None:
        provider = choice.provider
        tried = (provider.op, provider.name, query.device, query.dtypes)
        if provider.name == REFERENCE or tried in self._tried:
            return None
        if query.device == "cuda" and torch.cuda.is_current_stream_capturing():
            return None  # a trial waits for its results, which a capture does not allow
        spec = self._ops[query.op].spec
        samples = [
            (sample, small)
            for sample in spec.samples(torch.device(query.device))
            if not self._refusal(provider, small := self.query(query.op, sample.arguments))
        ]
        alike = [each for each in samples if each[1].dtypes == query.dtypes]
        for sample, _ in alike or samples:
            for problem in disagreements(spec, provider, sample.arguments):
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

    def _usable(self, query: Query) -> dict[str, Provider]:
        return {
            provider.name: provider
            for provider in self._providers[query.op].values()
            if not self._refusal(provider, query)
        }

    def _requested(self, op: str) -> str | None:
        asked = (one.providers.get(op) for one in reversed(self._asked))
        return next((name for name in asked if name is not None), None)

    def _tuning(self) -> Tuning:
        return next((one.tuning for one in reversed(self._asked) if one.tuning), "cached")

    def _keep(self, query: Query, measured: tuple[Timing, ...]) -> None:
        tables.merge(self.path, {self._key(query): measured})
        self._table()[self._key(query)] = measured

    def _key(self, query: Query) -> str:
        return tables.key_of(query, self._ops[query.op].spec.timed_by)

    def _table(self) -> dict[str, tuple[Timing, ...]]:
        if self._timings is None:
            self._timings = tables.read(self.path)
        return self._timings

    def _known(self, op: str) -> Op:
        if op not in self._ops:
            msg = f"there is no op {op!r}{suggest(op, self._ops)}; see neaptide kernels list"
            raise KernelError(msg)
        return self._ops[op]
