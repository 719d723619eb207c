"""Whatever a plugin does in a law comes out as that law's failure, with all of its parts."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import torch
from support import DEVICE, plugin_with, some, stranger

from neaptide import Plugin, PluginSpec, field, hookimpl
from neaptide.hooks import hookspecs
from neaptide.hooks.registry import Installed, Registry, installed_plugins
from neaptide_kernels.registry import KERNELS, Provider
from neaptide_toolkit.testing import (
    LAWS,
    LYING_PREDICTOR,
    ContractError,
    check_plugin,
    check_provider,
    contract,
)
from neaptide_toolkit.testing.providers import PROVIDER_LAW
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HOOKS = sorted(name for name, value in vars(hookspecs).items() if hasattr(value, "neaptide_spec"))
AROUND = [hook for hook in HOOKS if hook.startswith("around_")]
UNSEEN = {"build_data", "build_model", "configure_optimizer", "diagnose"}
"""Hooks that no law reaches: runs from a config ask for all but the last, which the doctor asks."""
REACHED = [hook for hook in HOOKS if hook not in UNSEEN]
CLAIMS = {"forecast": {"claims": {"dynamics"}}, "propose_update": {"claims": {"predictor"}}}
MESSAGE = re.compile(
    r"(plugin|provider) '\S+'.* breaks the law '(?P<law>\S+)'\n"
    r"  tried:  (?P<tried>.+)\n"
    r"  came:   (?P<came>.+)\n"
    r"  change: (?P<change>.+)\n"
    r"  see:    docs/testing-plugins\.md#(?P<anchor>\S+)"
)


class BoomError(Exception):
    """A stranger's own error."""


class StopError(BaseException):
    """What is no Exception."""


class MuteError(Exception):
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise BoomError


ERRORS: list[Callable[[], BaseException]] = [
    lambda: KeyError("ledger"),
    lambda: SystemExit(3),
    lambda: StopError("enough"),
    MuteError,
    StopIteration,
    GeneratorExit,
    lambda: AssertionError("two\nlines"),
    lambda: ContractError("plugin 'x'", "no-such-law", "", "", ""),
    lambda: ExceptionGroup("several", [BoomError("first"), KeyError("second")]),
    MemoryError,
]

TRAINING = set(LAWS) - {"manifest-is-light"} - (set() if DEVICE.type == "cuda" else {"no-races"})
"""The laws that use the settings: all but one, and one more only on a device."""


def failures(spec: PluginSpec, settings: dict[str, Any] | None = None) -> dict[str, ContractError]:
    """Check every law; return the failure of each that fails, once its parts are looked at."""
    found = {}
    for law in LAWS:
        try:
            check_plugin(spec, settings, laws=[law])
        except ContractError as error:
            found[law] = error
            check_parts(error, law)
    return found


def check_parts(error: ContractError, law: str) -> None:
    match = MESSAGE.fullmatch(str(error))
    assert match is not None, str(error)
    assert (law, law) == (match["law"], match["anchor"])
    assert (error.tried, error.came, error.change) == match.group("tried", "came", "change")


def chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None:
        found += [error, *getattr(error, "exceptions", ())]
        error = error.__cause__ or error.__context__
    return found


def raising(name: str, error: BaseException) -> Callable[..., Any]:
    """Return a method that raises; one of a middleware's hook returns a middleware that does."""

    def plain(self: Any) -> None:
        raise error

    def wrapping(self: Any) -> Any:
        def middleware(following: Any, **arguments: Any) -> Any:
            following(**arguments)
            raise error

        return middleware

    method = wrapping if name in AROUND else plain
    method.__name__ = name
    return method


def described(cls: type[Plugin[Any]], **manifest: Any) -> PluginSpec:
    return stranger(cls, summary="Is broken.", **manifest)


@pytest.mark.parametrize("hook", some(REACHED))
def test_what_a_hook_or_its_middleware_raises_is_a_laws_failure(hook: str) -> None:
    error = ERRORS[REACHED.index(hook) % len(ERRORS)]()
    members = {"on_metrics": hookimpl(lambda self: None)}  # somebody takes the metrics
    members[hook] = hookimpl(raising(hook, error))
    found = failures(described(plugin_with(**members), **CLAIMS.get(hook, {})))
    assert any(error in chain(failure) for failure in found.values())
    assert all(f"'stranger' in hook '{hook}'" in failure.came for failure in found.values())


def test_hooks_that_no_law_reaches_break_none() -> None:
    members = {hook: hookimpl(raising(hook, BoomError())) for hook in UNSEEN}
    assert {} == failures(described(plugin_with(**members)))


@pytest.mark.parametrize(
    ("method", "error", "came", "change"),
    [
        ("__init__", KeyError("x"), "while it was created", "belongs in on_run_start"),
        ("__init__", SystemExit(1), "SystemExit: 1", "in this error's traceback"),
        ("state_dict", SystemExit(1), "in hook 'state_dict'", "let state_dict return"),
        ("load_state_dict", KeyError("x"), "in hook 'load_state_dict'", "the result of state_dict"),
    ],
)
def test_what_a_plugins_own_methods_raise_is_a_laws_failure(
    method: str, error: BaseException, came: str, change: str
) -> None:
    def broken(self: Any, *given: Any) -> None:
        raise error

    members: dict[str, Any] = {method: broken}
    if method == "load_state_dict":
        members["state_dict"] = lambda self: {"steps": 1}
    failure = failures(described(plugin_with(**members)))["resume-is-exact"]
    assert error in chain(failure)
    assert came in failure.came
    assert change in failure.change


def test_an_interrupt_passes() -> None:
    error = KeyboardInterrupt()
    spec = described(plugin_with(after_step=hookimpl(raising("after_step", error))))
    with pytest.raises(KeyboardInterrupt) as caught:
        check_plugin(spec)
    assert error is caught.value


@pytest.mark.parametrize("hook", some(sorted({*REACHED} - {"on_phase_exit", "on_run_end"})))
def test_an_answer_of_a_wrong_type_is_a_laws_failure(hook: str) -> None:
    def plain(self: Any) -> Any:
        return object()

    def wrapping(self: Any) -> Any:
        return lambda following, **arguments: "text"

    method = wrapping if hook in AROUND else plain
    method.__name__ = hook
    members = {"on_metrics": hookimpl(lambda self: None)}
    members[hook] = hookimpl(method)
    found = failures(described(plugin_with(**members), **CLAIMS.get(hook, {})))
    assert any(f"from '{hook}' (got " in failure.came for failure in found.values())


def no_hook(self: Any) -> None: ...
def wrong_argument(self: Any, stepp: int) -> None: ...
def of_one_argument(self: Any) -> Any:
    return lambda following: following()


def of_state(state: Any) -> type[Plugin[Any]]:
    return plugin_with(state_dict=lambda self: state)


@attrs.frozen(kw_only=True)
class Bare:
    """Settings without default and help."""

    size: int


@attrs.frozen(kw_only=True)
class Picky:
    """Settings whose default is refused."""

    size: int = field(1, help="Size.", validator=lambda *_: 1 / 0)


class Loose:
    """No attrs class."""


@attrs.frozen(kw_only=True)
class Nested:
    """Settings that no file holds."""

    place: Any = field(object(), help="A place.")


def reseeding(self: Any) -> None:
    torch.manual_seed(0)


def switching_gradients_off(self: Any) -> None:
    torch.set_grad_enabled(mode=False)


def breaking_the_generator(self: Any) -> None:
    torch.set_rng_state(torch.zeros(3))


def rebuilding(self: Any, model: torch.nn.Module) -> None:
    model.head.bias = None
    model.head.extra = torch.nn.Linear(2, 2)


def resizing(self: Any, model: torch.nn.Module) -> None:
    model.blocks[0].norm.running_mean = torch.zeros(3)


def raising_at_the_end(self: Any) -> None:
    raise BoomError


def copying_beside(self: Any, model: torch.nn.Module) -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        copied = torch.empty_like(model.head.weight)
        copied.copy_(model.head.weight.detach())
    float(copied.sum())  # of the current stream, which has not waited


def hooked(**members: Any) -> type[Plugin[Any]]:
    return plugin_with(**{name: hookimpl(member) for name, member in members.items()})


BROKEN: dict[str, tuple[PluginSpec, set[str]]] = {
    "a hook of no such name": (described(hooked(after_stepp=no_hook)), {"resume-is-exact"}),
    "a hook without a mark": (
        described(plugin_with(after_step=lambda self: None)),
        {"resume-is-exact"},
    ),
    "a hook of another signature": (
        described(hooked(after_step=wrong_argument)),
        {"resume-is-exact", "detach-leaves-no-trace"},
    ),
    "a middleware of another signature": (
        described(hooked(around_forward=of_one_argument)),
        {"resume-is-exact", "detach-leaves-no-trace", "estimate-is-allocated"},
    ),
    "state that is no dict": (described(of_state([1])), {"resume-is-exact"}),
    "state that no file holds": (described(of_state({"x": object()})), {"resume-is-exact"}),
    "state that it does not load": (described(of_state({"x": 1})), {"resume-is-exact"}),
    "a class that is not there": (
        PluginSpec(name="lost", load="neaptide:Nothing", summary="Lost."),
        TRAINING - {"config-round-trips"},
    ),
    "a module that is not there": (
        PluginSpec(name="lost", load="neaptide_nowhere:Nothing", summary="Lost."),
        {"resume-is-exact", "works-on-loans-alone"},
    ),
    "a class that is no plugin": (
        PluginSpec(name="lost", load="neaptide:Ledger", summary="Lost."),
        {"resume-is-exact"},
    ),
    "a module that ends the process": (
        PluginSpec(name="lost", load="neaptide_exits:Nothing", summary="Lost."),
        {"resume-is-exact", "numerics-are-as-declared"},
    ),
    "settings without a default": (described(plugin_with(), config=Bare), {"config-round-trips"}),
    "settings refused": (described(plugin_with(), config=Picky), {"config-round-trips"}),
    "settings of no attrs class": (described(plugin_with(), config=Loose), {"config-round-trips"}),
    "settings no file holds": (described(plugin_with(), config=Nested), {"config-round-trips"}),
    "a reseeded generator": (
        described(hooked(before_forward=reseeding)),
        {"numerics-are-as-declared"},
    ),
    "a generator that is broken": (
        described(hooked(before_forward=breaking_the_generator)),
        {"resume-is-exact", "numerics-are-as-declared", "works-on-loans-alone"},
    ),
    "gradients that are switched off": (
        described(hooked(before_forward=switching_gradients_off)),
        {"resume-is-exact", "estimate-is-allocated"},
    ),
    "a weight replaced by a module": (
        described(hooked(convert_model=rebuilding)),
        {"numerics-are-as-declared", "detach-leaves-no-trace"},
    ),
    "a buffer of another shape": (
        described(hooked(on_run_end=raising_at_the_end, on_run_start=resizing)),
        {"numerics-are-as-declared"},
    ),
    "an observer that raises": (
        described(hooked(after_step=raising_at_the_end), observer=True),
        {"resume-is-exact", "estimate-is-measured"},
    ),
    "an observer that takes part": (
        described(hooked(around_forward=lambda self: None), observer=True),
        {"detach-leaves-no-trace"},
    ),
    "a plugin it requires and has not": (
        described(plugin_with(), requires={"nobody"}),
        {"resume-is-exact", "config-round-trips"},
    ),
}
if "simulated_gpu" in sys.modules:
    BROKEN |= {
        "a stream that nothing waits for": (
            described(hooked(after_step=copying_beside)),
            {"no-races"},
        )
    }


@pytest.fixture(autouse=True)
def _a_module_that_exits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "neaptide_exits.py").write_text("raise SystemExit(4)\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize("what", some(BROKEN, of=2))
def test_a_broken_plugin_breaks_laws_and_nothing_else(what: str) -> None:
    spec, broken = BROKEN[what]
    with torch.enable_grad():  # restores what the plugin of that name switches off
        assert broken <= set(failures(spec))


@pytest.mark.parametrize("lie", ["misshapen", "stale"])
def test_a_predictor_that_lies_breaks_laws_and_nothing_else(lie: str) -> None:
    # It keeps copies of the weights that it does not state.
    assert "estimate-is-measured" in failures(LYING_PREDICTOR, {"lie": lie})


def test_settings_that_do_not_exist_are_a_laws_failure() -> None:
    found = failures(STEADY_PREDICTOR, {"sizze": 3})
    # Nothing is trained for the first of them, and nothing compared for the second.
    assert TRAINING - {"numerics-are-as-declared"} == set(found)
    assert "sizze" in found["config-round-trips"].came


def test_a_plugin_beside_it_is_named_where_it_raises() -> None:
    error = BoomError("no")
    other = stranger(plugin_with(after_step=hookimpl(raising("after_step", error))), "other")
    with pytest.raises(ContractError) as caught:
        check_plugin(described(plugin_with()), beside=[other], laws=["resume-is-exact"])
    assert error is caught.value.__cause__
    assert "fix plugin 'other' in `beside`" in caught.value.change


def test_a_result_by_chance_is_told_from_state_that_is_not_saved() -> None:
    @hookimpl
    def after_backward(self: Any, model: torch.nn.Module) -> None:
        drift = int.from_bytes(torch.Generator().seed().to_bytes(8, "big")[:2], "big")
        model.head.bias.grad.add_(1e-3 * drift)

    cls = plugin_with(after_backward=after_backward)
    with pytest.raises(ContractError, match="even two runs without a break have different"):
        check_plugin(described(cls, numerics="changes-training"), laws=["resume-is-exact"])


@pytest.mark.parametrize(
    ("code", "came"),
    [
        ("import torch", "the import loads torch"),
        ("raise KeyError('x')", "exit code 1: KeyError: 'x'"),
        ("raise SystemExit(5)", "exit code 5"),
    ],
)
def test_a_manifests_module_is_imported_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, came: str
) -> None:
    (tmp_path / "strangers_manifest.py").write_text(f"{code}\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    spec = described(plugin_with())
    entry = Installed(spec.name, "strangers 1.0", "strangers_manifest:SPEC", spec)
    known = Registry({**installed_plugins().installed, spec.name: entry})
    monkeypatch.setattr("neaptide_toolkit.testing.manifests.installed_plugins", lambda: known)
    with pytest.raises(ContractError) as caught:
        check_plugin(spec, laws=["manifest-is-light"])
    check_parts(caught.value, "manifest-is-light")
    assert caught.value.came.startswith(came)


def test_an_entry_point_that_cannot_be_imported_breaks_the_first_law(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = Installed("broken", "strangers 1.0", "nowhere:SPEC", None, "importing it raised")
    known = Registry({"broken": entry})
    monkeypatch.setattr(contract, "installed_plugins", lambda: known)
    with pytest.raises(ContractError) as caught:
        check_plugin("broken", laws=["resume-is-exact"])
    check_parts(caught.value, "manifest-is-light")


def test_a_name_that_nobody_has_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match=r"no plugin 'emma' is installed \(did you mean 'ema'\?\)"):
        check_plugin("emma")
    with pytest.raises(ValueError, match=r"no law 'resume'.* the laws are manifest-is-light, "):
        check_plugin("ema", laws=["resume"])


def refuse(*_: Any, **__: Any) -> Any:
    raise SystemExit(2)


@pytest.mark.parametrize(
    "members",
    [
        {"run": refuse},
        {"run": lambda codes, scale, zero, group, dtype: codes},
        {"run": lambda codes: codes},
        {"run": lambda *_: None, "supports": refuse},
        {"run": lambda *_: None, "configs": refuse},
        {"run": lambda *_: None, "supports": lambda query: "nothing at all"},
    ],
    ids=["exits", "wrong type", "wrong signature", "supports", "configs", "supports none"],
)
def test_a_broken_provider_breaks_its_law_and_nothing_else(members: dict[str, Any]) -> None:
    import neaptide_kernels.int8  # noqa: F401 - defines the op

    with pytest.raises(ContractError) as caught:
        check_provider(Provider(op="dequantize_int8", name="mine", **members))
    check_parts(caught.value, PROVIDER_LAW)


def test_a_provider_of_no_op_breaks_its_law() -> None:
    assert "dequantise" not in KERNELS.ops
    with pytest.raises(ContractError, match="no op 'dequantise'") as caught:
        check_provider(Provider(op="dequantise", name="mine", run=refuse))
    check_parts(caught.value, PROVIDER_LAW)
