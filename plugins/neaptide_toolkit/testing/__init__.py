"""Checks of the contract that every plugin must keep. The tests of any plugin can run the checks.

from neaptide_toolkit.testing import check_plugin

def test_contract():
    check_plugin("my-plugin")
"""

from .allocations import peak_of
from .contract import LAWS, check_plugin
from .failures import ContractError
from .hostile_store import HOSTILE_STORE, HostileStore
from .lying_predictor import LIES, LYING_PREDICTOR
from .providers import check_provider
from .tiny import TinyTask, tiny_task

__all__ = [
    "HOSTILE_STORE",
    "LAWS",
    "LIES",
    "LYING_PREDICTOR",
    "ContractError",
    "HostileStore",
    "TinyTask",
    "check_plugin",
    "check_provider",
    "peak_of",
    "tiny_task",
]
