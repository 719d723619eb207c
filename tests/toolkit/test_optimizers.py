"""`OptimizerPlugin` and `decays`, as a stranger's plugin uses them."""

import subprocess
import sys
from typing import Any

import attrs
import pytest
import torch

from neaptide import ConfigError, PluginSpec, field
from neaptide_toolkit.optimizers import FACTOR, OptimizerPlugin, decays

pytestmark = pytest.mark.usefixtures("on_device")


@attrs.frozen(kw_only=True)
class Options:
    momentum: float = field(0.9, validator=FACTOR, help="of SGD")
    unused: tuple[float, float, float] = field((0.1, 0.2, 0.3), validator=decays, help="decays")


SPEC = PluginSpec(name="slow", load="here:Slow", options={"optimizer:slow": Options})


class Slow(OptimizerPlugin):
    spec = SPEC
    optimizer = torch.optim.SGD

    def build(self, model: torch.nn.Module, lr: float, options: Options) -> torch.optim.Optimizer:
        if options.momentum > 1:
            msg = "too much @ optimizer.options.momentum"
            raise ConfigError(msg)
        return torch.optim.SGD(model.parameters(), lr=lr / 2, momentum=options.momentum)


def built(lr: float = 0.5, name: str = "slow", **options: Any) -> torch.optim.Optimizer | None:
    plugin = Slow(SPEC.config())
    return plugin.configure_optimizer(torch.nn.Linear(2, 2), name, lr, options)


def test_it_builds_its_own_optimizer_and_no_other() -> None:
    optimizer = built(momentum=0.25)
    assert isinstance(optimizer, torch.optim.SGD)
    assert (0.25, 0.25) == (optimizer.defaults["lr"], optimizer.defaults["momentum"])
    assert built(name="adamw") is None


@pytest.mark.parametrize(
    ("lr", "options", "message"),
    [
        (-1.0, {}, "Invalid learning rate: -0.5 @ optimizer.name"),
        (0.5, {"momentum": 2.0}, "too much @ optimizer.options.momentum"),
        (0.5, {"unused": [0.5, 0.5, 1.0]}, "'unused' must be three numbers in [0, 1)"),
    ],
)
def test_what_is_refused_says_where(lr: float, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        built(lr, **options)
    (problem,) = refused.value.problems
    assert problem.startswith(message)
    assert 1 == problem.count("@")


def test_a_config_that_imports_it_does_not_import_torch() -> None:
    code = "import sys, neaptide_toolkit.optimizers; sys.exit('torch' in sys.modules)"
    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode
