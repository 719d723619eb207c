"""The core's implementations of the `firstresult` hooks (the first result is used).

They run last, so that every plugin can replace them.
"""

from __future__ import annotations

import importlib
import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pluggy
import torch

from neaptide.api.task import Data, Task
from neaptide.errors import ConfigError, NeaptideError, suggest
from neaptide.plugin import PROJECT, sole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import nn

    from neaptide.api.history import History
    from neaptide.api.parameters import ParameterStore
    from neaptide.api.phases import Phase, PhaseSchedule
    from neaptide.api.task import DataSpec, ModelSpec

OPTIMIZER_GROUP = "neaptide.optimizers"
"""The group of the module with `build(model, name, lr, options)` and `check(name, lr, options)`."""
STORE_GROUP = "neaptide.stores"
"""The group of the class of the parameter store."""

_default = pluggy.HookimplMarker(PROJECT)(trylast=True)


class Defaults:
    """The default model, data, optimizer, parameter store and choice of the phase.

    Models and data come from `package.module:factory`, optimizers from torch.optim.
    """

    @_default
    def build_model(self, spec: ModelSpec) -> nn.Module | Task | None:
        """Call the factory with `[model.options]`, and return the model."""
        if spec.scheme:
            return None
        factory = import_factory(spec.name, spec.options, "model.name")
        with _naming(spec.name, "model.name"):
            built = factory(**spec.options)
        if isinstance(built, tuple) and len(built) == 2:  # noqa: PLR2004 - (module, loss_fn)
            built = Task(*built)
        if not isinstance(built, torch.nn.Module | Task):
            msg = (
                f"{spec.name!r} must return an nn.Module, (module, loss_fn) or a neaptide.Task "
                f"(got {type(built).__name__}) @ model.name"
            )
            raise ConfigError(msg)
        return built

    @_default
    def build_data(self, spec: DataSpec) -> Data | None:
        """Call the factory with `[data.options]`, and return the data.

        If a parameter of the factory has the name of a run setting, such as `batch_size`, the
        value of this setting is passed.
        """
        if spec.scheme:
            return None
        factory = import_factory(spec.name, spec.options, "data.name")
        known = {
            "batch_size": spec.batch_size,
            "eval_batches": spec.eval_batches,
            "seed": spec.seed,
        }
        named = {key: value for key, value in known.items() if _takes(factory, key)}
        with _naming(spec.name, "data.name"):
            built = factory(**{**named, **spec.options})
        if isinstance(built, tuple) and len(built) == 2:  # noqa: PLR2004 - (train, validation)
            built = Data(*built)
        elif not isinstance(built, Data):
            built = Data(built)
        if not hasattr(built.train, "__iter__"):
            msg = (
                f"{spec.name!r} must return an iterable of batches, (train, validation) or a "
                f"neaptide.Data (got {type(built.train).__name__}) @ data.name"
            )
            raise ConfigError(msg)
        return built

    @_default
    def configure_optimizer(
        self, model: nn.Module, name: str, lr: float, options: Mapping[str, Any]
    ) -> torch.optim.Optimizer:
        """Build an optimizer of torch.optim, or import its class `package.module:Class`.

        Upper and lower case make no difference in the name of a class of torch.optim.
        """
        optimizer: torch.optim.Optimizer = sole(OPTIMIZER_GROUP).build(model, name, lr, options)
        return optimizer

    @_default
    def provide_parameters(
        self, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> ParameterStore:
        """Return the installed store, such as a ResidentStore: it leaves tensors on the device."""
        store: ParameterStore = sole(STORE_GROUP)(model, optimizer)
        return store

    @_default
    def select_phase(self, schedule: PhaseSchedule, history: History) -> Phase:
        """Return the phase that is due according to the schedule."""
        del history
        return schedule.due()


def _takes(factory: Callable[..., Any], argument: str) -> bool:
    """Return whether `factory` has a parameter named `argument`."""
    try:
        return argument in inspect.signature(factory).parameters
    except ValueError:  # a builtin without a signature
        return False


def import_factory(name: str, options: Mapping[str, Any], where: str) -> Callable[..., Any]:
    """Import `package.module:factory`; raise ConfigError if this is impossible.

    Also raise ConfigError if `options` has a name that is not a parameter of the factory.
    """
    factory = import_object(name, where)
    if not callable(factory):
        msg = f"{name!r} must be callable (got {type(factory).__name__}) @ {where}"
        raise ConfigError(msg)
    check_arguments(factory, options, where.replace("name", "options"))
    made: Callable[..., Any] = factory
    return made


def import_object(name: str, where: str) -> Any:
    """Import `package.module:attribute`; raise ConfigError that names the part that is missing."""
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        msg = f"name it as 'package.module:attribute' (got {name!r}) @ {where}"
        raise ConfigError(msg)
    if not all(part.isidentifier() for part in module_name.split(".")):
        msg = (
            f"{module_name!r} is not the name of a module: write 'mine:{attribute}' for mine.py in "
            f"the current directory or in a folder of PYTHONPATH @ {where}"
        )
        raise ConfigError(msg)
    try:
        with _naming(module_name, where):
            found = importlib.import_module(module_name)
    except ImportError as error:
        msg = f"cannot import {module_name!r}: {error}; is it on PYTHONPATH? @ {where}"
        raise ConfigError(msg) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = [known for known in vars(found) if not known.startswith("_")]
            msg = f"{module_name!r} has no {part!r}{suggest(part, known)} @ {where}"
            raise ConfigError(msg)
        found = getattr(found, part)
    return found


@contextmanager
def _naming(called: str, where: str) -> Iterator[None]:
    """Inside the context, add `called` and the setting `where` to any error as a note."""
    try:
        yield
    except SystemExit as error:
        msg = f"{called!r} raised SystemExit({error.code!r}) @ {where}"
        raise NeaptideError(msg) from error
    except Exception as error:
        error.add_note(f"raised by {called!r} @ {where}")
        raise


def check_arguments(function: Any, options: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError if a name in `options` is not a parameter of `function`.

    The error suggests a similar name.
    """
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # a builtin without a signature checks its arguments itself
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for option in options:
        if option not in parameters:
            msg = f"unknown option {option!r}{suggest(option, parameters)} @ {where}.{option}"
            raise ConfigError(msg)
