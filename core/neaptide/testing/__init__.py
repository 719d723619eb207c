"""The contract every plugin must keep, as checks anyone can run on theirs.

from neaptide.testing import check_plugin

def test_contract():
    check_plugin("my-plugin")
"""

from .contract import LAWS, ContractError, check_plugin
from .hostile import HOSTILE_STORE, HostileStore
from .providers import check_provider
from .tiny import TinyTask, tiny_task

__all__ = [
    "HOSTILE_STORE",
    "LAWS",
    "ContractError",
    "HostileStore",
    "TinyTask",
    "check_plugin",
    "check_provider",
    "tiny_task",
]
