"""Reports of runs: read from their directories, shown in a terminal, as a page and as JSON.

Nothing here imports torch, and nothing knows a plugin: files are read by convention.
"""

from .comparison import comparison_json, comparison_page, comparison_summary
from .facts import as_json
from .reading import RunFacts, read_run
from .single import run_page
from .summary import run_summary

__all__ = [
    "RunFacts",
    "as_json",
    "comparison_json",
    "comparison_page",
    "comparison_summary",
    "read_run",
    "run_page",
    "run_summary",
]
