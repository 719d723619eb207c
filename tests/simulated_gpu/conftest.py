"""Nothing here is collected without `--simulated-gpu`."""

from __future__ import annotations

import sys

collect_ignore_glob = [] if "simulated_gpu" in sys.modules else ["test_*.py"]
