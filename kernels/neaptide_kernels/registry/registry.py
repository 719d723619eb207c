"""The registry of ops and providers: it chooses a call's provider and handles failures."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from neaptide.errors import is_out_of_memory, suggest
from neaptide.text import called
from neaptide_kernels.accelerator import is_capturing

from . import timings as tables
from .choosing import ASKED, Choice, Explanation, configured, fastest, judge
from .faults import KernelError
from .measuring import built, time_providers, tuned
from .op import Op
from .provider import REFERENCE, Provider
from .query import query_of
from .requests import Requests
from .timings import Table
from .trials import ProviderTrials

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from .query import Query
    from .requests import Tuning
    from .spec import OpSpec
    from .timings import Timing

_REMEMBERED = 4096


class Kernels:
    """The ops of a process. There is one registry, because torch has one registry of ops."""

    def __init__(self, path: Path | None = None) -> None:
        self._ops: dict[str, Op] = {}
        self._providers: dict[str, dict[str, Provider]] = {}
        self._added: Counter[tuple[str, str]] = Counter()
        self._trials = ProviderTrials()
        self._requests = Requests()
        self._choices: dict[Query, Choice] = {}
        self._tuned: set[str] = set()
        self._path = path
        self._timings = Table(lambda: self.path)

    def __repr__(self) -> str:
        return called(self, f"{len(self._ops)} ops")

    def define(self, spec: OpSpec) -> Op:
        """Register an op with torch; the op's reference becomes its first provider.

        Raises ValueError if the op exists, or if torch.compile cannot handle an argument's name.
        """
        if spec.name in self._ops:
            msg = f"op {spec.name!r} is defined already, as {self._ops[spec.name].spec.summary!r}"
            raise ValueError(msg)
        op = Op(spec, lambda arguments: self.run(spec.name, arguments))
        self._ops[spec.name] = op
        reference = Provider(op=spec.name, name=REFERENCE, run=spec.reference, plain=True)
        self._providers[spec.name] = {REFERENCE: reference}
        return op

    def add(self, provider: Provider) -> None:
        """Add a provider; ValueError if the op is unknown or has another provider of that name.

        A provider added twice, for example by two runs, is kept until it is removed twice.
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
        """Remove a provider; without effect if the provider was not added."""
        key = (provider.op, provider.name)
        if self._providers.get(provider.op, {}).get(provider.name) is not provider:
            return
        self._added[key] -= 1
        if self._added[key] <= 0:
            del self._providers[provider.op][provider.name], self._added[key]
            self._trials.forget(provider)
            self._choices.clear()

    @property
    def ops(self) -> Mapping[str, Op]:
        """The ops by name."""
        return self._ops

    @property
    def path(self) -> Path:
        """The file of the timings."""
        return self._path or tables.default_path()

    def providers(self, op: str) -> tuple[Provider, ...]:
        """Return an op's providers, the reference first; KernelError for an unknown op."""
        self._known(op)
        return tuple(self._providers[op].values())

    @contextmanager
    def using(self, *, tuning: Tuning | None = None, **providers: str) -> Iterator[None]:
        """While the context is open, request providers (`quantize_int8="triton"`) or a tuning mode.

        If a requested provider cannot run a call, the call raises KernelError.
        """
        for op, name in providers.items():
            self._known(op)
            if name not in self._providers[op]:
                known = self._providers[op]
                msg = (
                    f"op {op!r} has no provider {name!r}{suggest(name, known)}; the providers are "
                    f"{', '.join(known)}"
                )
                raise KernelError(msg)
        with self._requests.made(tuning, providers):
            self._choices.clear()
            try:
                yield
            finally:
                self._choices.clear()

    def requested(self, op: str) -> str | None:
        """Return the name of the provider that is requested for an op, or None."""
        return self._requests.provider_of(op)

    def query(self, op: str, arguments: Sequence[Any]) -> Query:
        """Return the query of a call; a missing argument takes its default value.

        Raises:
            KernelError: the op does not exist.
            TypeError: an argument without a default is missing.
            ValueError: a tensor is not dense.
        """
        known = self._known(op)
        return query_of(op, known.names, known.spec.complete(arguments))

    def choose(self, query: Query, *, timed: bool = True) -> Choice:
        """Choose a provider for a call; KernelError if a requested provider cannot run the call.

        Without `timed`, timings of this machine do not count: the call is one of another machine.
        """
        timed = timed and self._requests.tuning != "off"
        known = self._timings.of(self._key(query)) if timed else ()
        name = self._requests.provider_of(query.op)
        if name is None:
            return fastest(self._usable(query), known, query)
        provider = self._providers[query.op].get(name)
        reason = self._trials.refusal(provider, query) if provider else "it was removed"
        if provider is None or reason:
            msg = f"provider {name!r} was requested and cannot run {query.op!r}: {reason}"
            raise KernelError(msg)
        return Choice(provider, configured(provider, known, query), ASKED)

    def explain(self, op: str, arguments: Sequence[Any]) -> Explanation:
        """Explain which provider would run a call, and why the other providers would not.

        The call does not run. Raises the errors of `query` and `choose`.
        """
        return self.explain_query(self.query(op, arguments))

    def explain_query(self, query: Query) -> Explanation:
        """As `explain`, for the facts of a call. Raises the errors of `choose`."""
        op = query.op
        timings = self._timings.of(self._key(query))
        seconds = {timing.provider: timing.seconds for timing in reversed(timings)}
        judged = tuple(
            judge(provider, self._trials.refusal(provider, query), seconds, query)
            for provider in self.providers(op)
        )
        choice = self.choose(query)
        return Explanation(op, choice.provider.name, choice.why, judged)

    def run(self, op: str, arguments: Sequence[Any]) -> Any:
        """Run an op on all its arguments; torch's dispatcher calls this method."""
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
            self._quarantine(provider, said)
            msg = (
                f"provider {provider.name!r} of {op!r} failed and may have written part of "
                f"{', '.join(sorted(spec.mutates))}: continue from a checkpoint; it is disabled"
            )
            raise KernelError(msg) from failure
        # If the reference also fails, the caller's arguments are wrong.
        result = spec.reference(*arguments)
        self._quarantine(provider, said)
        return result

    def measure(
        self, op: str, arguments: Sequence[Any], *, keep: bool
    ) -> tuple[tuple[Timing, ...], dict[str, str]]:
        """Time every usable provider on these arguments. `keep` saves the timings for later calls.

        With `keep`, providers that are compiled once per machine are built first. Returns the
        timings, with the fastest first, and the refused providers with the reasons.
        Arguments that the op mutates are overwritten. Raises KernelError for an unknown op.
        Raises NeaptideError if timings cannot be saved.
        """
        arguments = self._known(op).spec.complete(arguments)
        query = self.query(op, arguments)
        failed = built(self.providers(op), query) if keep else {}
        usable = self._usable(query)
        refused = {
            provider.name: self._trials.refusal(provider, query)
            for provider in self.providers(op)
            if provider.name not in usable
        }
        measured, wrong = time_providers(self._ops[op].spec, usable.values(), query, arguments)
        if keep:
            self._timings.keep(self._key(query), measured)
            self._choices.clear()
        return measured, refused | failed | wrong

    def _admitted(self, query: Query, arguments: Sequence[Any]) -> Choice:
        """Choose a provider that has passed its trial; if tuning is requested, tune first."""
        # Trials and tuning make the host wait, which is not permitted while a graph is captured.
        waits = is_capturing(query.device)
        if not waits and self._requests.tuning == "tune":
            self._tune(query, arguments)
        while True:
            choice = self.choose(query)
            provider = choice.provider
            if not self._trials.needed(provider, query, choice.config):
                break
            if waits:
                return choice
            wrong = self._trials.hold(provider, query, choice.config, self._ops[query.op].spec)
            if wrong is None:
                break
            if choice.why == ASKED:
                msg = f"provider {provider.name!r} was requested and fails: {wrong}"
                raise KernelError(msg)
            self._quarantine(provider, wrong)
        if len(self._choices) >= _REMEMBERED:
            self._choices.clear()
        self._choices[query] = choice
        return choice

    def _tune(self, query: Query, arguments: Sequence[Any]) -> None:
        """Time the usable providers if one of them has no timing of its version.

        A provider that fails has no timing afterwards, so a process tunes a key once.
        """
        key, usable = self._key(query), self._usable(query).values()
        timed = {(timing.provider, timing.version) for timing in self._timings.of(key)}
        if key in self._tuned or all((each.name, each.version) in timed for each in usable):
            return
        self._tuned.add(key)
        measured = tuned(self._ops[query.op].spec, usable, query, arguments)
        self._timings.note(key, measured)

    def _quarantine(self, provider: Provider, reason: str) -> None:
        self._trials.quarantine(provider, reason)
        self._choices.clear()

    def _usable(self, query: Query) -> dict[str, Provider]:
        return {
            provider.name: provider
            for provider in self.providers(query.op)
            if not self._trials.refusal(provider, query)
        }

    def _key(self, query: Query) -> str:
        return tables.key_of(query, self._ops[query.op].spec.timed_by)

    def _known(self, op: str) -> Op:
        if op not in self._ops:
            msg = f"there is no op {op!r}{suggest(op, self._ops)}; see neaptide kernels list"
            raise KernelError(msg)
        return self._ops[op]
