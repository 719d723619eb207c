"""The verb `neaptide config schema`.

It prints one JSON Schema of the settings of core and plugins.
"""

from __future__ import annotations

import logging

from neaptide.cli.output import AsJson, print_json

LOG = logging.getLogger(__name__)


def schema(*, json: AsJson = False) -> None:
    """Print the JSON Schema of configurations, with the settings of every installed plugin."""
    from neaptide.hooks.registry import installed_plugins  # noqa: PLC0415 - only this verb needs it

    from .json_schema import json_schema  # noqa: PLC0415 - likewise

    del json  # the output is JSON in either case
    document, left_out = json_schema(installed_plugins())
    for problem in left_out.values():
        LOG.warning("left out of the schema: %s", problem)
    print_json(document)
